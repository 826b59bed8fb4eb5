"""Executes a plan with Megatron-Core on this machine and compares it with its prediction."""

from __future__ import annotations

import importlib.util
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor import megatron_here
from executor.compare import Row, compare
from executor.launch import run_worker
from executor.record import environment, read_memory, read_steps, write_json

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class RunResult:
    """What a run gave: its record's folder, what was measured, and the comparison."""

    record: Path
    measured: dict[str, Any]
    rows: list[Row]
    warnings: list[str]


def missing_software() -> str | None:
    """One line when torch or Megatron-Core is not installed, else None."""
    for module, package in (("torch", "torch"), ("megatron.core", "megatron-core")):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"`advisor run` needs {package}, which is not installed. Try: pip install 'advisor[run]'."
    return None


def has_cuda() -> bool:
    """Whether NVIDIA devices stand ready, asked without importing torch."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def check(plan: Plan, workload: Workload, model: ModelSpec) -> None:
    """Raise ValueError, one line with the way out, for what cannot run here."""
    problem = missing_software() or megatron_here.why_not_here(plan, workload, model, has_cuda())
    if problem:
        raise ValueError(problem)


def execute(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    *,
    predicted: dict[str, Any],
    steps: int,
    warmup: int,
    out: Path,
    progress: Callable[[str], None],
    limit: float = 1800.0,
) -> RunResult:
    """Train `warmup + steps` steps and compare the median step with the prediction.

    out is the record's folder. Raises ValueError when the plan cannot run here, RunFailed when a rank
    fails; the record then still holds every step that ended.
    """
    cuda = has_cuda()
    check(plan, workload, model)
    processes = plan.world
    job = make_job(plan, workload, model, steps=steps, warmup=warmup, cuda=cuda)
    write_json(out / "job.json", job)
    write_json(out / "prediction.json", predicted)
    write_json(out / "environment.json", environment())
    told = 0

    def poll() -> None:
        nonlocal told
        done = read_steps(out)
        for step in done[told:]:
            loss = f"loss {step['loss']:.3f}" if step["loss"] is not None else ""
            kind = "warm-up" if step["warmup"] else "measured"
            progress(f"step {step['step'] + 1}/{steps + warmup}  {step['seconds']:.3f} s  {loss}  {kind}")
        told = len(done)

    run_worker("executor.workers.train", [str(out / "job.json")], processes, out, limit, progress, poll)
    measured, warnings = summarise(out, workload, processes)
    rows = compare(predicted, measured)
    write_json(
        out / "comparison.json",
        {"measured": measured, "rows": [row.to_dict() for row in rows], "warnings": warnings},
    )
    return RunResult(out, measured, rows, warnings)


def make_job(
    plan: Plan, workload: Workload, model: ModelSpec, *, steps: int, warmup: int, cuda: bool
) -> dict[str, Any]:
    """What a worker is told: plain values only, so that job.json repeats the run."""
    return {
        "plan": plan.to_dict(),
        "workload": workload.to_dict(),
        "model": {
            "name": model.name,
            "activation": model.activation,
            "qk_norm": model.qk_norm,
            "padded_vocab": model.padded_vocab(plan.tp),
            "tied_embeddings": model.tied_embeddings,
            "learned_positions": model.learned_positions,
        },
        "transformer_config": megatron_here.transformer_config(plan, model, cuda),
        "ddp_config": megatron_here.ddp_config(plan),
        "num_microbatches": plan.num_microbatches(workload.global_batch),
        "steps": steps + warmup,
        "warmup": warmup,
        "device": "cuda" if cuda else "cpu",
        "threads": max(1, (os.cpu_count() or 1) // plan.world),
        "learning_rate": LEARNING_RATE,
    }


def summarise(folder: Path, workload: Workload, processes: int) -> tuple[dict[str, Any], list[str]]:
    """Medians of a record's measured steps, and what makes them uncertain."""
    steps = read_steps(folder)
    counted = [step for step in steps if not step["warmup"]]
    if not counted:
        raise ValueError(f"{folder} holds no measured step. Run it again with more --steps.")
    seconds = [step["seconds"] for step in counted]
    # The median step stands for all: its phases add up to its time, medians of phases would not.
    typical = sorted(counted, key=lambda step: step["seconds"])[(len(counted) - 1) // 2]
    median, phases = typical["seconds"], typical["phases"]
    spread = statistics.pstdev(seconds) / statistics.mean(seconds)
    losses = [step["loss"] for step in steps if step["loss"] is not None]
    memory = [max(0, entry["peak_bytes"] - entry["base_bytes"]) for entry in read_memory(folder)]
    measured = {
        "step_time_s": median,
        "step_time_min_s": min(seconds),
        "spread": spread,
        "num_steps": len(seconds),
        "tokens_per_second_per_gpu": workload.tokens_per_step / median / processes,
        "phases": phases,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "peak_memory_bytes": memory,
    }
    warnings = []
    if spread > 0.10:
        warnings.append(
            f"steps scatter by {spread:.0%}: other work shared the machine; trust the minimum more"
        )
    if losses and losses[-1] >= losses[0]:
        warnings.append("the loss did not fall: too few steps to judge, or a broken layout")
    return measured, warnings
