"""Short training runs that show what kernels alone do not: dispatch in context, the optimizer, chains of operations.

Each probe is made of one thing mostly, so that a fit can tell them apart: layers so small that only their host time
is left, few and many of them; wide layers; a large vocabulary; experts; messages between the parts of a layer,
between stages and between experts, which take longer in a step than back to back.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.model_tables import Moe
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.calibrate_records import Observed, read_observed
from executor.launch import RunFailed, run_worker
from executor.record import environment, write_json
from executor.run import check, make_job

WARMUP, STEPS = 3, 7
NOISY = 0.10  # share of the cores above which other work is left out of times
LIMIT = 300.0  # seconds; a probe takes some, its start on a busy machine most of them


def small(name: str, **sizes: Any) -> ModelSpec:
    """A model of the family of tiny-gpt with other sizes."""
    heads = sizes.get("num_heads", 8)
    sizes = {"num_kv_heads": heads, "head_dim": sizes.get("hidden", 256) // heads} | sizes
    family = "moe" if "moe" in sizes else "dense"
    return dataclasses.replace(load_model("tiny-gpt"), name=name, family=family, **sizes)


@dataclass(frozen=True)
class Probe:
    """A model, its sequence length, the micro-batches of a rank, and how ranks share it: "dp", "tp", "pp" or "ep"."""

    model: ModelSpec
    seq_len: int
    microbatches: int
    shared: str = "dp"

    def fits(self, processes: int) -> bool:
        """Whether that many processes can share it."""
        if self.shared == "tp":
            return processes > 1 and self.model.num_kv_heads % processes == 0
        if self.shared == "pp":
            return processes % 2 == 0
        moe = self.model.moe
        return self.shared == "dp" or (moe is not None and processes > 1 and moe.num_experts % processes == 0)

    def plan(self, processes: int, precision: str) -> Plan:
        """The plan of that many processes."""
        if self.shared == "tp":
            return Plan(tp=processes, sequence_parallel=True, precision=precision)
        if self.shared == "pp":
            return Plan(pp=2, vpp=2, dp=processes // 2, precision=precision)
        if self.shared == "ep":
            return Plan(dp=processes, ep=processes, precision=precision)
        return Plan(dp=processes, precision=precision)

    def workload(self, processes: int) -> Workload:
        """Its sequences a step."""
        return Workload(self.seq_len, self.plan(processes, "fp32").dp * self.microbatches)


def probes() -> list[Probe]:
    """The most telling first."""
    host = {"hidden": 32, "ffn_hidden": 64, "num_heads": 2, "vocab": 256}
    short = {"hidden": 64, "ffn_hidden": 128, "num_heads": 8, "vocab": 256}
    middle = {"hidden": 256, "ffn_hidden": 704, "num_heads": 8}
    moe, more = Moe(num_experts=4, topk=2, expert_ffn=128), Moe(num_experts=8, topk=2, expert_ffn=256)
    return [
        Probe(small("many-layers", num_layers=10, **host), 16, 6),
        Probe(small("wide", num_layers=2, hidden=512, ffn_hidden=1536, vocab=512), 128, 2),
        Probe(small("tensor", num_layers=4, vocab=1024, **middle), 160, 3, "tp"),
        Probe(small("stages", num_layers=8, vocab=1024, **middle), 160, 4, "pp"),
        Probe(small("middle", num_layers=4, hidden=192, ffn_hidden=512, num_heads=6, vocab=2048), 192, 2),
        Probe(small("exchange", num_layers=4, vocab=1024, moe=more, **middle), 160, 2, "ep"),
        Probe(small("few-layers", num_layers=2, **host), 16, 6),
        Probe(
            small("vocabulary", num_layers=1, hidden=128, ffn_hidden=256, num_heads=4, vocab=16384), 128, 2
        ),
        Probe(small("long", num_layers=2, hidden=128, ffn_hidden=256, num_heads=4, vocab=512), 768, 1),
        Probe(
            small("experts", num_layers=4, hidden=128, ffn_hidden=128, num_heads=4, vocab=512, moe=moe),
            128,
            2,
        ),
        Probe(small("short-messages", num_layers=6, **short), 32, 4, "tp"),
    ]


def others_busy(seconds: float = 1.0) -> float:
    """Share of all cores that other work holds while this process waits; 0 where Linux does not tell. [1]"""

    def counted() -> tuple[float, float]:
        # user nice system idle iowait irq softirq steal. Source: proc(5), /proc/stat.
        times = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(times) - times[3] - times[4], sum(times)

    try:
        busy, whole = counted()
        time.sleep(seconds)
        busy_then, whole_then = counted()
    except (OSError, ValueError, IndexError):
        return 0.0
    return (busy_then - busy) / max(whole_then - whole, 1e-9)


def run_probes(
    processes: int,
    seconds: float,
    folder: Path,
    cuda: bool,
    progress: Callable[[float, str], None],
) -> tuple[list[Observed], list[str]]:
    """Probes that end within about `seconds`, and what did not run."""
    began, found, failed = time.monotonic(), [], []
    todo = [probe for probe in probes() if probe.fits(processes)]
    quiet = not cuda and others_busy() > NOISY
    for index, probe in enumerate(todo):
        spent = time.monotonic() - began
        # Another one is begun only if it will end in time, judged by those before.
        if index and spent * (index + 1) / index > seconds:
            failed.append(f"no time for {len(todo) - index} of {len(todo)} short runs: give it more --time")
            break
        name = probe.model.name
        progress(index / len(todo), f"training {name}")
        plan = probe.plan(processes, "bf16" if cuda else "fp32")
        try:
            found.append(run_probe(probe.model, plan, probe.workload(processes), folder / name, cuda, quiet))
        except (ValueError, RunFailed) as error:
            failed.append(f"the short run {name} did not end well: {error}")
    progress(1.0, "trained")
    return found, failed


def run_probe(
    model: ModelSpec,
    plan: Plan,
    workload: Workload,
    folder: Path,
    cuda: bool,
    quiet: bool,
) -> Observed:
    """One probe, kept as the record of a run. ValueError or RunFailed when it cannot run.

    quiet: time it on a clock that leaves queueing for a core out, where other work holds cores. On an idle machine
    ranks queue for the threads that send their own messages, which every run does.
    """
    check(plan, workload, model)
    folder.mkdir(parents=True)
    job = make_job(plan, workload, model, steps=STEPS, warmup=WARMUP, cuda=cuda)
    worker = "probe" if quiet else "train"
    write_json(folder / "job.json", job | {"clock": "quiet" if quiet else "wall"})
    write_json(folder / "environment.json", environment())
    run_worker(f"executor.workers.{worker}", [str(folder / "job.json")], plan.world, folder, LIMIT)
    return read_observed(folder)
