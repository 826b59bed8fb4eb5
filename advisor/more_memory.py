"""What more memory would buy: knobs that the search leaves alone, where memory keeps it from better plans."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from advisor.leaner import left_free, optimizer_choices
from advisor.outside import option
from advisor.render import bold, gib, heading, percent, seconds, wrap
from advisor.request import SLOWDOWN, Request, completed
from advisor.rules import Mask
from advisor.search import search
from advisor.search.candidates import Candidate, candidate, compared
from advisor.search.scored import Scored, quickest
from advisor.whatif import GIB, NUMERICS
from costmodel.columns import CODED, Columns, code
from costmodel.knobs import KNOBS
from costmodel.plan_array import PlanArray, evaluate_plans, host_share
from costmodel.prediction import TIGHT_ABOVE

# Share of the step from which a gain is told, and from which memory is said to bind.
WORTH_TELLING = 0.1
# Sizes that the plan of a leaner optimizer keeps of the quickest one by the closed form, while the rest is searched.
LAYOUT = ("tp", "pp", "cp", "dp", "ep", "etp")
# Cells that are evaluated at once for all choices: their results are arrays of that size.
CELLS = 2**20


@dataclass(frozen=True)
class Offer:
    """A quicker plan, and the pins with which a search finds it."""

    pins: Mapping[str, Any]
    candidate: Candidate

    @property
    def to_take(self) -> str:
        """What to type for it."""
        return " ".join(option(name, value) for name, value in self.pins.items())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "to_take": self.to_take,
            "step_time_s": self.candidate.step_time,
            "delta_share": self.candidate.lost_by,
            "worst_rank_gib": self.candidate.peak_memory / GIB,
            "plan": self.candidate.plan.describe(),
        }

    def step(self, beside: str = "") -> str:
        """Its step time beside the best plan's, in words."""
        share = percent(self.candidate.lost_by, 0, signed=True)
        return f"{bold(seconds(self.candidate.step_time))} a step ({share}{beside})"


@dataclass(frozen=True)
class Bought(Offer):
    """A plan that pins make room for by freeing memory, in words."""

    words: str

    @property
    def numerics(self) -> bool:
        """Whether the pins change what is computed."""
        return any(name in NUMERICS for name in self.pins)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return super().to_dict() | {"changes_numerics": self.numerics}

    def line(self) -> str:
        """As the section tells it."""
        return (
            f"{self.step(', with other numerics' * self.numerics)}: {self.to_take} ({self.words}): "
            f"{self.candidate.plan.describe()}, {gib(self.candidate.peak_memory)}"
        )


@dataclass(frozen=True)
class Tight(Offer):
    """The quickest plan that fits, but so tightly that the search ranks it only where nothing else does.

    pins: of it what differs from the best plan.
    """

    def line(self) -> str:
        """As the section tells it."""
        filled = self.candidate.peak_memory / self.candidate.prediction.device_bytes
        return (
            f"{self.step()} in {gib(self.candidate.peak_memory)}, {percent(filled, 0)} of the device, where the "
            f"allocator may stall or the run fail: {self.candidate.plan.describe()}. Measure it: {self.to_take}"
        )


@dataclass(frozen=True)
class MoreMemory:
    """Memory binds: step time of the quickest plan were there room for any, by the closed form, and what frees some.

    tight: a quicker plan that fits, but is not ranked for want of room; None where none is. filled: share of the device
    that the best plan takes, where every plan that fits is tight, else 0; `bought` then leaves room, slower or not.
    binds: whether the quickest plan is worth telling.
    """

    unbound: float
    bought: tuple[Bought, ...]
    tight: Tight | None = None
    filled: float = 0.0
    binds: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "unbound_step_time_s": self.unbound,
            "filled": self.filled or None,
            "tight": self.tight.to_dict() if self.tight else None,
            "bought": [each.to_dict() for each in self.bought],
        }

    def lines(self) -> list[str]:
        """The section of `explain`."""
        binds = f"Memory binds: were there room for any plan, the quickest would take {seconds(self.unbound)} a step."
        lines = [heading("What more memory would buy"), *[wrap(binds, "  ")] * self.binds]
        if self.filled:
            full = (
                f"Every plan that fits takes more than {percent(TIGHT_ABOVE, 0)} of the device, this one "
                f"{percent(self.filled, 0)}: the allocator may stall, which its step time does not count, or the run "
                "fail."
            )
            lines.append(wrap(full, "  "))
        if self.tight:
            lines.append(wrap(self.tight.line(), "  - ", "    "))
        if self.bought:
            does = "leave room to spare" if self.filled else "make room for"
            lines.append(wrap(f"Leaner optimizers, which are not searched, {does}:", "  "))
            lines += [wrap(each.line(), "  - ", "    ") for each in self.bought]
        return lines


def what_memory_buys(request: Request, scored: Sequence[Scored], best: Candidate) -> MoreMemory | None:
    """What makes the step quicker by WORTH_TELLING: less room to spare, leaner optimizers; None where nothing does.

    Nothing is tried where no legal plan of the space would be as much quicker, whatever its memory. Where the best plan
    itself is tight, leaner optimizers are told that leave room, up to SLOWDOWN times as slow.
    """
    if request.objective != "throughput":
        return None
    full = best.prediction.tight
    bar = (SLOWDOWN if full else 1 - WORTH_TELLING) * best.step_time
    unbound = min(float(part.step_time.min()) for part in scored)
    if unbound > bar:
        return None
    found = sorted(_bought(request, scored, best, bar), key=lambda each: each.candidate.step_time)
    tight = _tight(request, scored, best, bar)
    if not found and not tight:
        return None
    filled = best.peak_memory / best.prediction.device_bytes if full else 0.0
    return MoreMemory(unbound, tuple(found), tight, filled, unbound <= (1 - WORTH_TELLING) * best.step_time)


def _tight(request: Request, scored: Sequence[Scored], best: Candidate, bar: float) -> Tight | None:
    """The quickest plan that fits and is not ranked for want of room, by the closed form, if it is below `bar`."""
    if best.prediction.tight:  # then such plans are ranked
        return None

    def unranked(part: Scored) -> Mask:
        return part.fits() & ~part.fits_device(TIGHT_ABOVE) & (part.step_time <= bar)

    if not any(unranked(part).any() for part in scored):
        return None
    part, row = quickest(scored, unranked)
    found = compared(request, best, candidate(request, part.plan(row)))
    chosen, other = best.plan, found.plan
    pins = {
        name: getattr(other, name)
        for name in KNOBS
        if hasattr(other, name) and getattr(other, name) != getattr(chosen, name)
    }
    return Tight(pins, found) if found.step_time <= bar else None


def _bought(request: Request, scored: Sequence[Scored], best: Candidate, bar: float) -> Iterator[Bought]:
    choices = [
        (
            [pins for pins in sizes if left_free(request, pins) and not pins.items() <= request.pins.items()],
            words,
        )
        for sizes, words in optimizer_choices(request)
    ]
    sizes = [pins for some, _ in choices for pins in some]
    quickest = iter(_quickest(request, scored, sizes, bar) if sizes else [])
    for some, words in choices:
        found = [(*next(quickest), pins) for pins in some]
        time, part, row, pins = min(found, key=lambda each: each[0], default=(math.inf, 0, 0, {}))
        if time > bar:
            continue
        plan = scored[part].plan(row)
        layout = {name: getattr(plan, name) for name in LAYOUT if request.model.moe or name != "etp"}
        own = {name: value for name, value in request.pins.items() if name != "precision"}
        asked = replace(
            request, pins=completed({**own, **layout, **pins}), precisions=(plan.precision,), top=1
        )
        try:
            other = search(asked).best
        except ValueError:  # a rule about the leaner optimizer
            continue
        if other is not None and other.step_time <= bar and not other.prediction.tight:
            yield Bought(pins, compared(request, best, other), words)


def _quickest(
    request: Request, scored: Sequence[Scored], sizes: Sequence[Mapping[str, Any]], bar: float
) -> list[tuple[float, int, int]]:
    """Of each choice the quickest plan that then fits, by the closed form: step time [s], space and row.

    Infinite for none. Of plans quicker than `bar` as they are: a leaner optimizer frees memory and makes no step much
    quicker.
    """
    found = [(math.inf, 0, 0)] * len(sizes)
    for number, part in enumerate(scored):
        space, axes = part.space, part.space.alive.ndim
        rows = np.flatnonzero(part.step_time < bar)
        layout, place = np.divmod(space.cells[rows], space.options)
        some = np.unique(layout)
        per_block = max(1, CELLS // (space.options * len(sizes)))
        for start in range(0, len(some), per_block):
            block = some[start : start + per_block]
            grid = {
                name: array[..., block] if array.shape[-1] > 1 else array
                for name, array in space.grid.items()
            }
            here = (layout >= block[0]) & (layout <= block[-1])
            cells = np.searchsorted(block, layout[here]) * space.options + place[here]
            times = _times(request, part, {**grid, **_columns(request, sizes, axes)}, len(sizes))[cells]
            first = np.argmin(times, axis=0)
            best = times[first, np.arange(len(sizes))]
            mine = rows[here][first]
            found = [
                min(known, (float(time), number, int(row)))
                for known, time, row in zip(found, best, mine, strict=True)
            ]
    return found


def _times(request: Request, part: Scored, columns: Columns, choices: int) -> np.ndarray[Any, Any]:
    """Step time of every cell with every choice [s], infinite where it does not fit."""
    model, workload, cluster, stack = request.model, request.workload, request.cluster, request.stack
    plans = PlanArray(model, workload, cluster, part.space.precision, columns, stack)
    out, host = evaluate_plans(plans), host_share(plans)
    fits = out["peak_memory"] <= TIGHT_ABOVE * part.device
    if host is not None:
        fits &= host <= 1
    return np.where(fits, out["step_time"], np.inf).reshape(-1, choices)


def _columns(request: Request, sizes: Sequence[Mapping[str, Any]], axes: int) -> Columns:
    """The knobs of the choices as columns on an axis before the others; what one leaves alone is as asked for."""

    def number(name: str, pins: Mapping[str, Any]) -> float:
        value = pins.get(name, request.pins.get(name, KNOBS[name].default))
        return float(code(name, value) if name in CODED else value)

    names = {name for pins in sizes for name in pins}
    return {name: np.array([number(name, pins) for pins in sizes]).reshape(-1, *[1] * axes) for name in names}
