"""A record summed up: medians, predicted beside measured, bytes of state, and the receipt of features."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.model_file import from_mapping
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor import state
from executor.compare import Row, compare
from executor.job_file import plan_of, way_on
from executor.logs.summary import scatter_of
from executor.record import most_on_device, read_memory, read_ranks, read_steps, write_json
from executor.resolve import Feature, Here, receipt, resolve

# Share of a step that ranks may wait for a core before it is said. [1]
QUEUED = 0.10


@dataclass(frozen=True)
class RunResult:
    """What a run gave: its record's folder, what was measured, the comparison, bytes of state, and the receipt."""

    record: Path
    measured: dict[str, Any]
    rows: list[Row]
    warnings: list[str]
    states: list[state.Bytes] = field(default_factory=list)
    features: list[Feature] = field(default_factory=list)


def conclude(out: Path, job: dict[str, Any]) -> RunResult:
    """Summary, comparison and receipt of a record, written into it."""
    plan, workload = plan_of(job), Workload(**job["workload"])
    predicted = json.loads((out / "prediction.json").read_text())
    requested = Plan(**json.loads((out / "requested.json").read_text()))
    model = from_mapping(job["model"])
    measured, warnings = summarise(out, workload, plan.world)
    rows = compare(predicted, measured)
    ranks = read_ranks(out)
    states = state.compare(plan, workload, model, ranks)
    warnings += state.warnings(states)
    machine = Here(job["device"] == "cuda", job["te"], job["apex"])
    _, why = resolve(requested, model, machine)
    features = receipt(requested, plan, why, merged([rank["observed"] for rank in ranks]), model)
    write_json(
        out / "comparison.json",
        {
            "measured": measured,
            "rows": [row.to_dict() for row in rows],
            "state": [each.to_dict() for each in states],
            "features": [feature.to_dict() for feature in features],
            "warnings": warnings,
        },
    )
    return RunResult(out, measured, rows, warnings, states, features)


def merged(observed: list[dict[str, str]]) -> dict[str, str]:
    """What ranks saw, each thing once: stages of a pipeline see different ones."""
    found: dict[str, list[str]] = {}
    for rank in observed:
        for name, text in rank.items():
            if text not in found.setdefault(name, []):
                found[name].append(text)
    return {name: " | ".join(texts) for name, texts in found.items()}


def summarise(folder: Path, workload: Workload, processes: int) -> tuple[dict[str, Any], list[str]]:
    """Medians of a record's measured steps, and what makes them uncertain."""
    steps = read_steps(folder)
    counted = [step for step in steps if not step["warmup"]]
    if not counted:
        raise ValueError(
            f"{folder} holds no measured step: it was cut before the end of its warm-up. {way_on(folder)}"
        )
    seconds = [step["seconds"] for step in counted]
    # The median step stands for all: its phases add up to its time, medians of phases would not.
    typical = sorted(counted, key=lambda step: step["seconds"])[(len(counted) - 1) // 2]
    median, phases = typical["seconds"], typical["phases"]
    # As `advisor diagnose` counts it: a few slow steps do not widen it, they are told apart.
    scatter, limit = scatter_of(seconds)
    spread = scatter / statistics.median(seconds)
    # A run that was cut and went on began anew: its last session learned on its own.
    session = max(step.get("session", 0) for step in steps)
    losses = [
        step["loss"] for step in steps if step["loss"] is not None and step.get("session", 0) == session
    ]
    shared = most_on_device(read_ranks(folder))
    # What a device holds is all its ranks', and the cost model tells of one.
    memory = peaks(steps, read_memory(folder)) if shared == 1 else []
    measured: dict[str, Any] = {
        "step_time_s": median,
        "step_time_min_s": min(seconds),
        "spread": spread,
        "num_steps": len(seconds),
        "tokens_per_second_per_gpu": workload.tokens_per_step / median / processes,
        "phases": phases,
        "exposed": typical.get("exposed", {}),
        "queued_s": statistics.median(step.get("queued", 0.0) for step in counted),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "peak_memory_bytes": memory,
    }
    if allocated := tensors(steps):
        measured["peak_allocated_bytes"] = allocated
    warnings = []
    if shared > 1:
        warnings.append(
            f"{shared} ranks shared a GPU: the run checks code, and its seconds say nothing of a plan"
        )
    if spread > 0.10:
        warnings.append(
            f"steps scatter by {100 * spread:.0f} %: other work on the machine, or too short a warm-up; "
            "trust the minimum more"
        )
    if slow := [each for each in seconds if each > limit]:
        warnings.append(
            f"{len(slow)} of {len(seconds)} steps stand far above the median, up to {max(slow):.3f} s: "
            "other work on the machine, or too short a warm-up"
        )
    queued = measured["queued_s"] / median
    cores = cores_of(folder)
    if cores and processes > cores:
        measured["shared_cores"] = cores
    elif queued > QUEUED:
        warnings.append(
            f"ranks waited for a core {100 * queued:.0f} % of a step: other work held it; seconds are longer"
        )
    if len(losses) > 1 and losses[-1] >= losses[0]:
        warnings.append("the loss did not fall: too few steps to judge, or a broken layout")
    return measured, warnings


def cores_of(folder: Path) -> int:
    """Cores of the machine of a record's one node, 0 where several nodes ran or the record does not say."""
    try:
        hosts = {rank["host"] for rank in read_ranks(folder)}
        cores = json.loads((folder / "environment.json").read_text())["cores"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return cores if isinstance(cores, int) and len(hosts) == 1 else 0


def peaks(steps: list[dict[str, Any]], ends: list[dict[str, Any]]) -> list[int]:
    """Most that each rank takes: of a device all of it, context and reserve too, as predicted; else what it
    allocates beyond its libraries. Empty where the run did not reach its end. [byte]"""
    if devices := _most(steps, "device"):
        return devices
    return [max(0, entry["peak_bytes"] - entry["base_bytes"]) for entry in ends]


def tensors(steps: list[dict[str, Any]]) -> list[int]:
    """Peak of live tensors of each rank, torch's max_memory_allocated; empty on a CPU. [byte]"""
    return _most(steps, "peak_allocated")


def _most(steps: list[dict[str, Any]], name: str) -> list[int]:
    found = [step["memory"][name] for step in steps if name in step.get("memory", {})]
    return [max(each) for each in zip(*found, strict=True)]
