"""Short training runs that show what kernels alone do not: dispatch in context, the optimizer, chains of operations.

Each probe is made of one thing mostly, so that a fit can tell them apart: layers so small that only their host time
is left, few and many of them; wide layers; a large vocabulary; experts.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec, Moe
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.calibrate_records import Observed, read_observed
from executor.launch import RunFailed, run_worker
from executor.record import environment, write_json
from executor.run import check, make_job

WARMUP, STEPS = 3, 7
LIMIT = 300.0  # seconds; a probe takes some, its start on a busy machine most of them


def small(name: str, **sizes: Any) -> ModelSpec:
    """A model of the family of tiny-gpt with other sizes."""
    heads = sizes.get("num_heads", 8)
    sizes = {"num_kv_heads": heads, "head_dim": sizes.get("hidden", 256) // heads} | sizes
    family = "moe" if "moe" in sizes else "dense"
    return dataclasses.replace(load_model("tiny-gpt"), name=name, family=family, **sizes)


def probes() -> list[tuple[ModelSpec, int, int]]:
    """Model, sequence length and micro-batches of a rank; the most telling first."""
    host = {"hidden": 32, "ffn_hidden": 64, "num_heads": 2, "vocab": 256}
    moe = Moe(num_experts=4, topk=2, expert_ffn=128)
    return [
        (small("many-layers", num_layers=10, **host), 16, 6),
        (small("wide", num_layers=2, hidden=512, ffn_hidden=1536, vocab=512), 128, 2),
        (small("middle", num_layers=4, hidden=192, ffn_hidden=512, num_heads=6, vocab=2048), 192, 2),
        (small("few-layers", num_layers=2, **host), 16, 6),
        (small("vocabulary", num_layers=1, hidden=128, ffn_hidden=256, num_heads=4, vocab=16384), 128, 2),
        (small("long", num_layers=2, hidden=128, ffn_hidden=256, num_heads=4, vocab=512), 768, 1),
        (small("experts", num_layers=4, hidden=128, ffn_hidden=128, num_heads=4, vocab=512, moe=moe), 128, 2),
    ]


def run_probes(
    processes: int,
    seconds: float,
    folder: Path,
    cuda: bool,
    tell: Callable[[str], None],
    progress: Callable[[float, str], None],
) -> tuple[list[Observed], list[str]]:
    """Probes that end within about `seconds`, with every process a data-parallel rank, and what did not run."""
    began, found, failed = time.monotonic(), [], []
    todo = probes()
    for index, (model, seq_len, microbatches) in enumerate(todo):
        spent = time.monotonic() - began
        # Another one is begun only if it will end in time, judged by those before.
        if index and spent * (index + 1) / index > seconds:
            failed.append(f"no time for {len(todo) - index} of {len(todo)} short runs: give it more --time")
            break
        progress(index / len(todo), f"training {model.name}")
        plan = Plan(dp=processes, precision="bf16" if cuda else "fp32")
        workload = Workload(seq_len, processes * microbatches)
        try:
            found.append(run_probe(model, plan, workload, folder / model.name, cuda, tell))
        except (ValueError, RunFailed) as error:
            failed.append(f"the short run {model.name} did not end well: {error}")
    progress(1.0, "trained")
    return found, failed


def run_probe(
    model: ModelSpec, plan: Plan, workload: Workload, folder: Path, cuda: bool, tell: Callable[[str], None]
) -> Observed:
    """One probe, kept as the record of a run. ValueError or RunFailed when it cannot run."""
    check(plan, workload, model)
    folder.mkdir(parents=True)
    job = make_job(plan, workload, model, steps=STEPS, warmup=WARMUP, cuda=cuda)
    # A processor's ranks queue for cores with other work; a device belongs to its rank.
    worker = "train" if cuda else "probe"
    write_json(folder / "job.json", job | {"clock": "wall" if cuda else "quiet"})
    write_json(folder / "environment.json", environment())
    run_worker(f"executor.workers.{worker}", [str(folder / "job.json")], plan.world, folder, LIMIT, tell)
    return read_observed(folder)
