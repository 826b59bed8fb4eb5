"""Two plans, or a plan and a run, term by term: who is quicker, by how much, and which term decides.

Predictions are compared as the objects that `predict --json` prints, so that a run's record, which keeps
that object, is compared in the same way as a plan file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from advisor.comparison.record import Side
from executor.compare import Row, compare
from hardware_db.order import Order, order_held
from hardware_db.platforms import as_written

MILLION = 1e6
# Single terms err more than whole steps do, whose errors partly cancel; assumed: half of a difference.
TERM_ERROR = 0.5
# Below this share two times are one.
SAME = 1e-9


@dataclass(frozen=True)
class Line:
    """One quantity of both sides; delta is b less a, None where one side lacks it."""

    name: str
    unit: str
    a: float | None
    b: float | None

    @property
    def delta(self) -> float | None:
        """B less A."""
        return None if self.a is None or self.b is None else self.b - self.a

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"delta": self.delta}


@dataclass(frozen=True)
class Verdict:
    """Who is quicker and how sure that is.

    faster: "a", "b" or None; by: the quicker one's throughput over the other's, less 1. shared_errors: one model
    on one machine and software, so that errors of the predictions mostly cancel. deciding: the term whose
    difference goes the way of the verdict furthest; turns_at: the share of that difference that must be wrong
    to turn the order. close: the difference lies within the uncertainty. order: how often the order of published
    plans held that are predicted as far apart, where both plans do the same work.
    """

    faster: str | None
    by: float
    shared_errors: bool
    intervals_overlap: bool
    close: bool
    deciding: Line | None = None
    turns_at: float = 0.0
    order: Order | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "faster": self.faster,
            "by": self.by,
            "shared_errors": self.shared_errors,
            "intervals_overlap": self.intervals_overlap,
            "within_uncertainty": self.close,
            "deciding_term": self.deciding.to_dict() if self.deciding else None,
            "turns_if_wrong_by": self.turns_at if self.deciding else None,
            "order_held": self.order.to_dict() if self.order else None,
        }


@dataclass
class Comparison:
    """Two sides and what follows from them."""

    a: Side
    b: Side
    measured: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.measured = list(_measured_rows(self.a, self.b))

    @cached_property
    def same_work(self) -> bool:
        """Whether steps do the same work on as many GPUs, so that seconds a step compare."""
        one, other = self.a.predicted, self.b.predicted
        return all(one[key] == other[key] for key in ("model", "workload", "gpus"))

    @property
    def unit(self) -> str:
        """Of the times compared: seconds of a step, or of one GPU for a million tokens."""
        return "s" if self.same_work else "GPU-s per million tokens"

    def scale(self, side: Side) -> float:
        """What turns seconds of a step into the unit compared. [1], or steps for a million tokens of a GPU."""
        known = side.predicted
        if self.same_work:
            return 1.0
        return MILLION / float(known["tokens_per_second_per_gpu"] * known["step_time_s"])

    def time(self, side: Side) -> float:
        """The best known time of a side: measured, else predicted."""
        return side.step_time * self.scale(side)

    def interval(self, side: Side) -> tuple[float, float]:
        """Where the time of a side lies: the prediction's interval, or the scatter of measured steps."""
        low, high = side.interval
        return low * self.scale(side), high * self.scale(side)

    @cached_property
    def numbers(self) -> tuple[Line, ...]:
        """The quantities people ask for."""
        a, b = self.a, self.b
        runs = bool(a.measured or b.measured)
        steps = [side.predicted["step_time_s"] for side in (a, b)]
        lines = [Line("step time, predicted" if runs else "step time", "s", *steps)]
        if runs:
            lines.append(Line("step time, measured", "s", *(_of(side, "step_time_s") for side in (a, b))))
        said = ", predicted" if runs else ""
        for name, key, unit in (
            ("tokens/s/GPU", "tokens_per_second_per_gpu", "tokens/s"),
            ("model TFLOP/s/GPU", "model_tflops_per_gpu", "TFLOP/s"),
            ("MFU", "mfu", "1"),
        ):
            lines.append(Line(name + said, unit, a.predicted[key], b.predicted[key]))
            if runs:
                lines.append(Line(f"{name}, measured", unit, *(_rate(side, key) for side in (a, b))))
        worst = f"memory of the worst rank{said}"
        lines.append(Line(worst, "GiB", *(_memory(each)[0] for each in (a, b))))
        if any(side.measured and side.measured["peak_memory_bytes"] for side in (a, b)):
            lines.append(Line("peak of the worst rank, measured", "GiB", *(_peak(side) for side in (a, b))))
        lines.append(Line("memory of the device", "GiB", *(_memory(each)[1] for each in (a, b))))
        # Of what was measured, where it was.
        hours = [1e9 / side.tokens_per_second_per_gpu / 3600 for side in (a, b)]
        known = ["measured" if side.measured else "predicted" for side in (a, b)]
        of = f", {' and '.join(dict.fromkeys(known))}" if runs else ""
        lines.append(Line(f"GPU-hours per billion tokens{of}", "h", *hours))
        if a.price or b.price:
            paid = [
                hour * side.price if side.price else None for hour, side in zip(hours, (a, b), strict=True)
            ]
            lines.append(Line(f"cost per billion tokens{of}", "USD", *paid))
        return tuple(lines)

    @cached_property
    def terms(self) -> tuple[Line, ...]:
        """Every leaf of the two time trees, largest difference first; they sum to the times."""
        sides = [(side.leaves, self.scale(side)) for side in (self.a, self.b)]
        titles = {name: title for leaves, _ in sides for name, (title, _) in leaves.items()}
        lines = [
            Line(
                title,
                self.unit,
                *(leaves.get(name, ("", 0.0))[1] * scale for leaves, scale in sides),
            )
            for name, title in titles.items()
        ]
        return tuple(sorted(lines, key=lambda line: -abs(line.delta or 0.0)))

    @cached_property
    def memory(self) -> tuple[Line, ...]:
        """Every component of the worst rank, largest difference first."""
        parts = [side.predicted["memory"]["components"] for side in (self.a, self.b)]
        titles = [{as_written(name): name for name in part} for part in parts]
        lines = []
        for name in titles[0] | titles[1]:
            mine, its = (each.get(name) for each in titles)
            told = f"{mine}; B: {its}" if mine and its and mine != its else mine or its or name
            lines.append(Line(told, "GiB", parts[0].get(mine or "", 0.0), parts[1].get(its or "", 0.0)))
        return tuple(sorted(lines, key=lambda line: -abs(line.delta or 0.0)))

    @cached_property
    def knobs(self) -> dict[str, tuple[Any, Any]]:
        """Knobs whose values differ, in the order of the catalogue."""
        one, other = self.a.predicted["knobs"], self.b.predicted["knobs"]
        return {
            name: (one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)
        }

    @cached_property
    def setting(self) -> dict[str, tuple[Any, Any]]:
        """What differs beside the knobs: model, machine, GPUs, software, workload."""
        found = [side.setting for side in (self.a, self.b)]
        return {
            name: (found[0].get(name), found[1].get(name))
            for name in found[0] | found[1]
            if found[0].get(name) != found[1].get(name)
        }

    @cached_property
    def verdict(self) -> Verdict:
        """Who is quicker; see `Verdict`."""
        mine, its = self.time(self.a), self.time(self.b)
        (low, high), (its_low, its_high) = self.interval(self.a), self.interval(self.b)
        overlap = low <= its_high and its_low <= high
        runs = bool(self.a.measured or self.b.measured)
        shared = not runs and not set(self.setting) & {"model", "cluster", "stack"}
        difference = its - mine
        if abs(difference) <= SAME * max(mine, its):
            return Verdict(None, 0.0, shared, overlap, close=True)
        faster = "a" if difference > 0 else "b"
        by = max(mine, its) / min(mine, its) - 1
        if runs:  # terms are predictions on both sides, which decide nothing about a measurement
            return Verdict(faster, by, shared, overlap, close=overlap)
        deciding = max(self.terms, key=lambda line: (line.delta or 0.0) * difference)
        turns_at = difference / (deciding.delta or difference)
        close = turns_at < TERM_ERROR if shared else overlap
        order = order_held(by) if shared and self.same_work else None
        return Verdict(faster, by, shared, overlap, close, deciding, turns_at, order)

    def to_dict(self) -> dict[str, Any]:
        """The object of `compare --json`."""

        def pairs(found: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
            return {name: {"a": one, "b": other} for name, (one, other) in found.items()}

        return {
            "verdict": self.verdict.to_dict(),
            "same_work": self.same_work,
            "unit": self.unit,
            "numbers": [line.to_dict() for line in self.numbers],
            "terms": [line.to_dict() for line in self.terms],
            "memory": [line.to_dict() for line in self.memory],
            "setting": pairs(self.setting),
            "knobs": pairs(self.knobs),
            "measured": [row.to_dict() for row in self.measured],
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
        }


def _of(side: Side, key: str) -> float | None:
    return side.measured[key] if side.measured else None


def _rate(side: Side, key: str) -> float | None:
    """A predicted rate at the measured throughput: FLOP of a token are the prediction's."""
    if not side.measured:
        return None
    gain = side.measured["tokens_per_second_per_gpu"] / side.predicted["tokens_per_second_per_gpu"]
    return float(side.predicted[key] * gain)


def _peak(side: Side) -> float | None:
    """Largest measured peak. [GiB]"""
    peaks = side.measured["peak_memory_bytes"] if side.measured else []
    return max(peaks) / 2**30 if peaks else None


def _memory(side: Side) -> tuple[float, float]:
    memory = side.predicted["memory"]
    return memory["worst_rank_gib"], memory["device_gib"]


def _measured_rows(a: Side, b: Side) -> Iterator[Row]:
    """Predicted beside measured where one side is a run: the other's prediction if it is of the same work."""
    for run, other in ((b, a), (a, b)):
        if run.measured and not other.measured:
            same = all(run.predicted[key] == other.predicted[key] for key in ("model", "workload", "gpus"))
            yield from compare((other if same else run).predicted, run.measured)
