"""Predicted beside measured, term by term."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from executor.term_phases import by_phase

# Within this factor a term is called as predicted.
AS_PREDICTED = 0.15


@dataclass(frozen=True)
class Row:
    """One compared quantity. unit: s, tokens/s or byte; ratio is measured over predicted."""

    name: str
    predicted: float
    measured: float
    unit: str
    verdict: str

    @property
    def ratio(self) -> float:
        """Measured over predicted; infinite when nothing was predicted. [1]"""
        return self.measured / self.predicted if self.predicted else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; no ratio where nothing was predicted, as JSON knows no infinity."""
        return asdict(self) | {"ratio": self.ratio if self.predicted else None}


def verdict(predicted: float, measured: float, low: float | None = None, high: float | None = None) -> str:
    """What a reader should make of the two numbers."""
    if low is not None and high is not None:
        if low <= measured <= high:
            return "inside the interval"
        return "slower than the interval" if measured > high else "quicker than the interval"
    if not predicted:
        return "not predicted" if measured else "as predicted"
    ratio = measured / predicted
    if abs(ratio - 1) <= AS_PREDICTED:
        return "as predicted"
    return f"{ratio:.2f} of predicted" if ratio < 1 else f"{ratio:.2f} x predicted"


def phases_predicted(terms: dict[str, float]) -> dict[str, float]:
    """Predicted seconds of the phases that a run measures, from the leaves of the time tree by name. [s]"""
    found = by_phase(terms)
    return {
        "forward": found["forward"],
        "backward": found["backward"],
        "communication and waiting": found["communication"],
        "optimizer": found["optimizer"],
    }


def compare(predicted: dict[str, Any], measured: dict[str, Any]) -> list[Row]:
    """Rows of the comparison.

    predicted is the object of `predict --json`; measured has step_time_s, tokens_per_second_per_gpu,
    phases (seconds by name) and peak_memory_bytes by rank.
    """
    interval = predicted["interval"]
    step, seen = predicted["step_time_s"], measured["step_time_s"]
    rows = [Row("step time", step, seen, "s", verdict(step, seen, interval["low"], interval["high"]))]
    rate, got = predicted["tokens_per_second_per_gpu"], measured["tokens_per_second_per_gpu"]
    rows.append(Row("tokens/s of each process", rate, got, "tokens/s", verdict(rate, got)))
    expected = phases_predicted(_leaves(predicted["terms"]))
    phases = dict(measured["phases"])
    phases["communication and waiting"] = phases.pop("communication", 0.0)
    for name, seconds in expected.items():
        rows.append(Row(name, seconds, phases.get(name, 0.0), "s", verdict(seconds, phases.get(name, 0.0))))
    # Medians of phases need not add up to the median step.
    others = max(0.0, seen - sum(phases.get(name, 0.0) for name in expected))
    rest = step - sum(expected.values())
    rows.append(Row("everything else", rest, others, "s", verdict(rest, others)))
    if measured["peak_memory_bytes"]:
        memory = predicted["memory"]["worst_rank_gib"] * 2**30
        peak = max(measured["peak_memory_bytes"])
        rows.append(Row("memory of the worst rank", memory, peak, "byte", verdict(memory, peak)))
    if measured.get("peak_allocated_bytes"):
        tensors, peak = predicted["memory"]["allocated_gib"] * 2**30, max(measured["peak_allocated_bytes"])
        rows.append(Row("of it live tensors", tensors, peak, "byte", verdict(tensors, peak)))
    return rows


def _leaves(term: dict[str, Any]) -> dict[str, float]:
    if not term["parts"]:
        return {term["name"]: term["seconds"]}
    found: dict[str, float] = {}
    for part in term["parts"]:
        found |= _leaves(part)
    return found
