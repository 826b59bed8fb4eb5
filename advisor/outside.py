"""What the search does not try: the catalogue less the values of its spaces, and what of that would gain."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.options import value_text
from advisor.rules import error_masks, rules_of, violations
from advisor.rules.facts import facts
from advisor.search.candidates import Candidate, candidate, compared, objective_of
from advisor.space import fixed_beside
from advisor.whatif import DOUBTED, HELPS_ABOVE, MACHINE_LACKS, NUMERICS, unpriced
from advisor.whatif.neighbours import Neighbour, neighbours, values_beside
from costmodel.columns import CODED, ITEM_PREFIX, ITEMS, plan_columns
from costmodel.family import family_features
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, evaluate_plans, host_share
from costmodel.prediction import FITS_BELOW, TIGHT_ABOVE
from costmodel.stage_inputs import LAYOUTS

if TYPE_CHECKING:
    from advisor.request import Request
    from advisor.space.grid import Space

# Values of each knob that plans of a search have.
Tried = Mapping[str, frozenset[Any]]
# So many values of a knob are told, and so many knobs that gain.
MOST_TOLD = 8
# Relative difference below which two sums of the same terms are equal.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Gain:
    """A value that the search did not try, and what it gains on the best plan: share by the objective, below 0.

    follows: other knobs that change with it, by name.
    """

    knob: str
    value: Any
    share: float
    follows: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numerics(self) -> bool:
        """Whether it changes what is computed."""
        return self.knob in NUMERICS

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {
            "knob": self.knob,
            "value": value,
            "delta_share": self.share,
            "changes_numerics": self.numerics,
            "to_take": " ".join(option(name, told) for name, told in self._together().items()),
        }

    def words(self) -> str:
        """`nccl_ub=on with nvls=on and expandable_segments=off (-1.7 %)`."""
        first, *others = [f"{name}={value_text(value)}" for name, value in self._together().items()]
        beside = f" with {' and '.join(others)}" if others else ""
        return f"{first}{beside} ({100 * self.share:+.1f} %)"

    def _together(self) -> dict[str, Any]:
        return {self.knob: self.value, **self.follows}


def option(knob: str, value: Any) -> str:
    """What to type for a value: a pin, of a recipe --precision, which a pin of another would contradict."""
    if knob == "precision":
        return f"--precision {value}"
    return f"--pin {shlex.quote(f'{knob}={value_text(value)}')}"


def tried_in(spaces: Iterable[Space]) -> dict[str, frozenset[Any]]:
    """Values of each knob in the plans of some spaces."""
    found: dict[str, set[Any]] = {"precision": set()}
    for space in spaces:
        found["precision"].add(space.precision)
        for name, array in space.grid.items():
            if name not in ITEMS:
                found.setdefault(name, set()).update(_value(name, number) for number in np.unique(array))
        for knob in ITEM_PREFIX:
            items = {item: space.grid[column] for column, (of, item) in ITEMS.items() if of == knob}
            rows = np.unique(
                np.stack([array.ravel() for array in np.broadcast_arrays(*items.values())]), axis=1
            )
            found.setdefault(knob, set()).update(
                tuple(item for item, on in zip(items, row, strict=True) if on) for row in rows.T
            )
    return {name: frozenset(values) for name, values in found.items()}


def tried_beside(request: Request, tried: Tried, plan: Plan) -> Tried:
    """What was tried on the layout of a plan: of knobs that follow from it, the one value there."""
    fixed = fixed_beside(request, plan).items()
    return {**tried, **{name: frozenset({_plain(name, value)}) for name, value in fixed}}


def _value(name: str, number: float) -> Any:
    if name in CODED:
        return KNOBS[name].choices[int(number)]
    if name == "pipeline_layout":
        return LAYOUTS.known[int(number)]
    return {"bool": bool, "int": int}.get(KNOBS[name].kind, float)(number)


def untried(tried: Tried, values: Mapping[str, Any]) -> list[str]:
    """Knobs of `values` that no plan tried has so. What is no knob changes no prediction."""
    return [
        name for name, value in values.items() if name in KNOBS and _plain(name, value) not in tried[name]
    ]


def _plain(name: str, value: Any) -> Any:
    """A value as `tried_in` has it: items in the order of the catalogue."""
    if name in ITEM_PREFIX:
        return tuple(item for item in KNOBS[name].choices if item in value)
    return value


def why_untried(request: Request, tried: Tried, values: Mapping[str, Any]) -> str:
    """Why the search has no such plan, in sentences; "" where each of the values was tried."""
    told = []
    for name in untried(tried, values):
        if name in request.pins:
            told.append(f"--pin {name}={value_text(request.pins[name])} keeps it from that")
        elif name == "precision":
            told.append(f"it tries {', '.join(request.precisions)}, other recipes only when they are named")
        else:
            hurts = (
                f"what it hurts: {KNOBS[name].hurts}"
                if KNOBS[name].kind == "bool" and values[name] and KNOBS[name].hurts
                else ""
            )
            price = unpriced(name, values[name]) or hurts
            told.append(f"of {name} it tries {_told(tried[name])}" + (f" ({price})" if price else ""))
    return "; ".join(told)


def _told(values: Iterable[Any]) -> str:
    ordered = sorted(values)
    words = ", ".join(value_text(value) if value != "" else "even" for value in ordered[:MOST_TOLD])
    return words + " and others" * (len(ordered) > MOST_TOLD)


def gains_outside(
    request: Request, best: Candidate, tried: Tried, slowest: float = np.inf
) -> tuple[Gain, ...]:
    """The best untried value beside the best plan of every knob that gains by one, largest gain first.

    Of plans that hold to the rules, fit and take up to `slowest` seconds a step; `advisor whatif` tells of the others
    too. The closed form, which takes many at once, names the value of each knob and the knobs; those are predicted
    whole, for what one gains may be mostly in the simulated schedule.
    """
    beside = list(_neighbours(request, best, tried))
    closed = sorted(_scored(request, best, beside, slowest), key=lambda pair: pair[0])
    chosen: dict[str, Neighbour] = {}
    for _, each in closed:
        chosen.setdefault(each.knob, each)
    gains = [
        Gain(
            each.knob,
            each.after,
            compared(request, best, candidate(request, each.plan, judged=False)).lost_by,
            each.follows,
        )
        for each in chosen.values()
    ]
    helping = sorted((gain for gain in gains if gain.share < -HELPS_ABOVE), key=lambda gain: gain.share)
    return tuple(apart(helping)[:MOST_TOLD])


def apart(gains: list[Gain]) -> list[Gain]:
    """Gains without those that another holds, for the two do not add up: the one that changes less is told.

    Where the one that changes more helps beyond it, that one is.
    """
    left = list(gains)
    for whole in gains:
        for part in gains:
            if part in left and whole in left and whole.follows.get(part.knob) == part.value:
                left.remove(part if whole.share < part.share - HELPS_ABOVE else whole)
    return left


def outside_lines(gains: Iterable[Gain]) -> Iterator[str]:
    """What of the knobs that are not searched gains on the plan, in one line for people, or none."""
    words: dict[bool, list[str]] = {False: [], True: []}
    for gain in gains:
        words[gain.numerics].append(gain.words())
    parts = [", ".join(words[False])] * bool(words[False])
    parts += [f"with other numerics {', '.join(words[True])}"] * bool(words[True])
    if parts:
        yield f"not searched, and better on this plan when pinned: {'; '.join(parts)}"


def _neighbours(request: Request, best: Candidate, tried: Tried) -> Iterator[Neighbour]:
    """Plans beside the best one that the search did not try, by one knob that nobody pinned.

    What needs formulas of another family (offload, Muon, layers in BF16) costs time, or changes what is learned: it is
    tried for less memory alone, for compiling them takes longer than the answer.
    """

    def family(plan: Plan) -> frozenset[str]:
        return family_features(request.model, request.workload, plan_columns([plan]))

    there = tried_beside(request, tried, best.plan)
    any_family, own = request.objective == "memory", family(best.plan)
    for name, knob in KNOBS.items():
        if name in request.pins:
            continue
        if not any(untried(there, {name: value}) for value in values_beside(best.prediction, knob)):
            continue
        for each in neighbours(best.prediction, name):
            kept = not request.pins.keys() & each.follows.keys()
            if (
                kept
                and not each.problem
                and not unpriced(name, each.after)
                and untried(there, {name: each.after})
                and (any_family or family(each.plan) == own)
            ):
                yield each


def _scored(
    request: Request, best: Candidate, beside: list[Neighbour], slowest: float
) -> Iterator[tuple[float, Neighbour]]:
    """Those that hold to the rules, fit, and gain by the closed form, with the objective of each."""
    base = _scores(request, [Neighbour("", None, None, best.plan)])[0]
    own = violations(request.model, request.workload, request.cluster, best.plan, stack=request.stack)
    known = {each.id for each in own} & MACHINE_LACKS
    for precision in dict.fromkeys(each.plan.precision for each in beside):
        some = [each for each in beside if each.plan.precision == precision]
        columns = plan_columns([each.plan for each in some])
        words = facts(
            request.model,
            request.workload,
            request.cluster,
            precision,
            columns,
            request.gpus,
            request.settings,
        )
        broken = np.zeros(len(some), dtype=bool)
        rules = rules_of(request.stack)
        doubts = [rule.broken(words) for rule in rules if rule.id in DOUBTED and rule.id not in known]
        for mask in (*error_masks(words, rules).values(), *doubts):
            broken |= mask
        legal = [each for each, fault in zip(some, broken, strict=True) if not fault]
        scores = _scores(request, legal, best.prediction.tight, slowest)
        gaining = zip(scores, legal, strict=True)
        yield from (pair for pair in gaining if pair[0] < (1 - ROUNDING) * base)


def _scores(
    request: Request, some: list[Neighbour], tight: bool = True, slowest: float = np.inf
) -> list[float]:
    """The objective of plans of one precision, by the closed form; infinite where a plan does not fit.

    tight: whether plans count that fill the memory so far that the allocator stalls. slowest: step time up to which
    they count. [s]
    """
    if not some:
        return []
    model, workload, cluster, stack = request.model, request.workload, request.cluster, request.stack
    plans = [each.plan for each in some]
    array = PlanArray(model, workload, cluster, plans[0].precision, plan_columns(plans), stack)
    try:
        out, host = evaluate_plans(array), host_share(array)
        device = array.bound()["gpu_memory"].value
    except ValueError:  # the GPU lacks the recipe
        return [np.inf] * len(plans)
    fits = (out["step_time"] <= slowest) & (
        out["peak_memory"] <= (FITS_BELOW if tight else TIGHT_ABOVE) * device
    )
    if host is not None:
        fits &= host <= 1
    score = objective_of(request.objective, out["step_time"], out["peak_memory"], plans[0].world)
    return np.where(fits, score, np.inf).tolist()
