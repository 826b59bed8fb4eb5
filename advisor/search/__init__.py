"""The best plan of the declared space: evaluate every legal plan, keep what fits, rank, simulate the best.

Exhaustive over `advisor.space` by the closed form; of those within SIMULATION_GAIN of the best, the first pipelines of
the first layouts are simulated where a bound leaves them a chance, and the quickest is the answer; for throughput the
simplest of those that are as quick but for a toss-up (`advisor.search.simplest`). Other ties go to the simpler plan. A
plan that is not simulated could be quicker than the answer where its pipeline runs further ahead of the closed form
than any of those that SIMULATION_GAIN was taken from, or behind PIPELINES_PER_LAYOUT others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from advisor.progress import Tell
from advisor.request import Request
from advisor.search.candidates import Candidate, candidate, compared, memory_step
from advisor.search.contenders import LAYOUT, PIPELINE, Contenders, layouts_in_order
from advisor.search.plainer import exact_twins, without_graphs
from advisor.search.scored import Scored, quickest
from advisor.search.simplest import SIMPLEST_OF, fewer_chunks, simplest_first, toss_up
from advisor.space import build_space, nothing_legal
from advisor.space.grid import Rows, Space
from costmodel.binding import bind
from costmodel.columns import Array
from costmodel.plan_array import PlanArray, evaluate_plans, host_share
from costmodel.prediction import FITS_BELOW, TIGHT_ABOVE
from costmodel.stage_inputs import runs

# Layouts whose pipelines are simulated, for each plan returned and at least.
LAYOUTS_PER_PLAN, FEWEST_LAYOUTS = 2, 20
# A pipeline this much further behind is not simulated: uneven chunks run up to 8.5 % faster than the closed form
# (2,772 pipelines of 11 models), and up to 1.36 times as long.
SIMULATION_GAIN = 0.09
HOW_RANKED = (
    "all are ranked by the closed form, then the pipelines of the best layouts are simulated, and the best of those is "
    f"the plan; for throughput the simplest of layouts within {100 * toss_up().below:.0f} % of the fastest, and a "
    "quarter of the chunks, BF16 or no CUDA graphs where more chunks, fewer bits or graphs gain no more, as of "
    f"published pairs so close {100 * toss_up().share:.0f} % were measured in the order predicted"
)
# The objective "cost" may leave GPUs idle: it also looks at this many halvings.
COST_HALVINGS = 3
# Scores closer than this share are equal.
EQUAL_WITHIN = 1e-6
GIB = 2**30
# Combinations that are another's plan.
REPEATED = "same plan"
SAME = "a knob that does nothing beside the others, such as cp_comm_type with cp 1: counted where it has its default"
LAST = (math.inf, math.inf)


@dataclass(frozen=True)
class Rejection:
    """A reason that dropped plans: rule id, REPEATED, "memory" or "host memory", how many, and one example in words."""

    reason: str
    count: int
    example: str


@dataclass(frozen=True)
class SearchResult:
    """Answer of a search. plans is empty when nothing fits; then least_bad needs the least memory.

    enumerated: combinations of the declared axes; legal: those that break no rule; feasible: those that fit; tight:
    those of them that are ranked only where nothing else fits. rejected: what dropped the combinations that are not
    feasible, each counted once. seconds: time of the search. notes: what was assumed. left_out: of several recipes that
    were asked for those that no plan has, each with the reason.
    """

    request: Request
    plans: tuple[Candidate, ...]
    enumerated: int
    legal: int
    feasible: int
    tight: int
    seconds: float
    rejected: tuple[Rejection, ...]
    least_bad: Candidate | None = None
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    slowest: float = math.inf

    @property
    def best(self) -> Candidate | None:
        """The plan to take, or None when nothing fits."""
        return self.plans[0] if self.plans else None


Look = Callable[[list[Scored]], None]


def search(request: Request, progress: Tell | None = None, look: Look | None = None) -> SearchResult:
    """The best plans for a request, distinct in their parallel sizes.

    progress is called with the share done, from 0 to 1, and what is being done; look with everything that was
    evaluated, which is not kept. Raises ValueError in one line when no plan is legal.
    """
    tell = progress or (lambda share, text: None)
    started = time.perf_counter()
    spaces, scored, refused = _evaluate(request, tell)
    if look is not None:
        look(scored)
    legal = sum(space.legal for space in spaces)
    if not legal:
        raise ValueError(nothing_legal(request))
    feasible = sum(int(part.fits().sum()) for part in scored)
    rejected = _rule_rejections(spaces)
    on_device = sum(int(part.fits_device().sum()) for part in scored)
    if on_device < legal:
        rejected.append(_memory_rejection(scored, legal - on_device))
    if feasible < on_device:
        rejected.append(_host_rejection(request, scored, on_device - feasible))
    share = TIGHT_ABOVE if any(part.fits(TIGHT_ABOVE).any() for part in scored) else FITS_BELOW
    slowest = _slowest(request, scored, share)
    return SearchResult(
        request=request,
        plans=_ranked(request, scored, share, slowest, tell) if feasible else (),
        enumerated=sum(space.enumerated for space in spaces),
        legal=legal,
        feasible=feasible,
        tight=feasible - sum(int(part.fits(TIGHT_ABOVE).sum()) for part in scored),
        seconds=time.perf_counter() - started,
        rejected=tuple(sorted(rejected, key=lambda reason: (-reason.count, reason.reason))),
        least_bad=None if feasible else _least_bad(request, scored),
        notes=request.notes,
        left_out=_left_out(request, spaces, scored, refused) if feasible else {},
        slowest=slowest,
    )


def fits_at_all(request: Request) -> bool:
    """Whether any legal plan of the request fits, without ranking."""
    return any(part.fits().any() for part in _evaluate(request, lambda share, text: None)[1])


def _left_out(
    request: Request, spaces: list[Space], scored: list[Scored], refused: Mapping[str, str]
) -> dict[str, str]:
    """Recipes that were asked for and that no plan has, each with the reason in one sentence without full stop."""
    found: dict[str, str] = {}
    for precision in request.precisions:
        parts = [part for part in scored if part.space.precision == precision]
        if any(part.fits().any() for part in parts):
            continue
        examples = [space.examples for space in spaces if space.precision == precision]
        fatal = [space.fatal for space in spaces if space.precision == precision]
        if precision in refused:
            found[precision] = refused[precision].replace(f"--precision {precision} ", "it ").rstrip(".")
        elif parts:
            found[precision] = "no plan of it fits"
        else:
            told = [
                each.text
                for rules, dead in zip(examples, fatal, strict=True)
                for rule, each in rules.items()
                if rule in dead or not dead
            ]
            if not any(fatal):
                told = told[:1]
            found[precision] = "; ".join(told) or "no plan of it holds to the rules"
    return found


def _evaluate(request: Request, tell: Tell) -> tuple[list[Space], list[Scored], dict[str, str]]:
    """Build and evaluate the space of every precision (and, for cost, of fewer GPUs), and why others cannot be."""
    counts = [request.gpus]
    if request.objective == "cost":
        pinned = math.prod(request.pins.get(name, 1) for name in ("tp", "pp", "cp", "dp"))
        steps = [2**k * pinned for k in range(1, COST_HALVINGS + 1)]
        counts += [request.gpus * pinned // step for step in steps if request.gpus % step == 0]
    model, workload, cluster, stack = request.model, request.workload, request.cluster, request.stack
    spaces: list[Space] = []
    scored: list[Scored] = []
    refused: dict[str, str] = {}
    cases = [(gpus, precision) for gpus in counts for precision in request.precisions]
    for done, (gpus, precision) in enumerate(cases):
        tell(0.8 * done / len(cases), f"{precision} on {gpus} GPUs")
        try:
            device = bind(model, workload, cluster, precision, stack)["gpu_memory"].value
        except ValueError as problem:
            refused[precision] = str(problem)
            continue
        space = build_space(replace(request, gpus=gpus), precision)
        spaces.append(space)
        if space.legal:
            plans = PlanArray(model, workload, cluster, precision, space.grid, stack)
            out, host = evaluate_plans(plans), host_share(plans)
            found = (space.of_plans(out[name]) for name in ("step_time", "peak_memory"))
            scored.append(Scored(space, gpus, *found, device, None if host is None else space.of_plans(host)))
    if not spaces:
        raise ValueError(next(iter(refused.values())))
    return spaces, scored, refused


def _slowest(request: Request, scored: list[Scored], share: float) -> float:
    """Step time up to which plans count: for less memory nobody waits any length of time. [s]"""
    if request.objective != "memory":
        return math.inf
    part, row = quickest(scored, lambda each: each.fits(share))
    return request.slowdown * float(part.step_time[row])


def _ranked(
    request: Request, scored: list[Scored], share: float, slowest: float, tell: Tell
) -> tuple[Candidate, ...]:
    """Best plan of each of the best layouts, pipelines simulated, in the order of the objective.

    share: of the device's memory that they may take: plans so large that the allocator would stall (tight) are ranked
    only where nothing else fits. slowest: as of `SearchResult`.
    """
    wanted = max(LAYOUTS_PER_PLAN * request.top, FEWEST_LAYOUTS)
    rows = _rows_that_matter(request, scored, share, slowest, wanted)
    part = np.repeat(np.arange(len(scored)), [len(fitting) for fitting in rows])
    row = np.concatenate(rows)

    def gathered(value: Callable[[Scored, Rows], Array]) -> Array:
        return np.concatenate([value(each, fitting) for each, fitting in zip(scored, rows, strict=True)])

    def column(name: str) -> Array:
        return gathered(lambda each, fitting: each.space.column(name, fitting))

    seconds = gathered(lambda each, fitting: each.step_time[fitting])
    score = gathered(lambda each, fitting: each.score(request.objective)[fitting])
    # The same memory as `place_of` takes for it; of times those that differ by rounding alone.
    keys = [np.round(np.log(each / each.min()) / EQUAL_WITHIN) for each in (seconds, score)]
    if request.objective == "memory":
        keys[1] = memory_step(score, float(score.min()))
    order = np.lexsort((row, part, gathered(Scored.complexity), *keys))
    first = layouts_in_order([column(name)[order] for name in LAYOUT + PIPELINE], wanted)
    layouts = [order[members].tolist() for members in first]
    numbers = [number for members in layouts for number in members]
    contenders = Contenders(request, [each.space for each in scored], part, row, numbers)
    found = _best_of_layouts(request, layouts, score, contenders, tell)
    fastest = found[0][0]

    def simple(number: int) -> float:
        return float(scored[part[number]].complexity(row[[number]])[0])

    def need(number: int) -> float:
        space = scored[part[number]]
        return float(space.peak_memory[row[number]]) / space.device

    def chunks(number: int) -> float:
        return contenders[number].plan.vpp

    def simulated(number: int) -> float:
        return contenders[number].value(request.objective)

    if request.objective == "throughput":
        chosen, *others = simplest_first(found, simple, need)
        pipelines = next(members for members in layouts if chosen[1] in members)
        most = fastest * (1 + toss_up().below)
        found = [fewer_chunks(chosen, pipelines, most, chunks, simulated), *others]
    best = [candidate(request, scored[part[each]].plan(int(row[each]))) for _, each in found[: request.top]]
    value, first = found[0]
    if request.objective == "throughput":
        for plan in exact_twins(scored, part[first], row[first], lambda each: each.ranked(share, slowest)):
            exact = candidate(request, plan)
            if exact.step_time < most:
                best, value = [exact, *best][: request.top], max(fastest, exact.step_time)
        plain = without_graphs(request, best[0], most)
        if plain is not best[0]:
            best, value = [plain, *best[1:]], max(fastest, plain.step_time)
    best[0] = replace(best[0], behind=value / fastest - 1)
    return tuple(replace(compared(request, best[0], each), rank=rank) for rank, each in enumerate(best, 1))


def _best_of_layouts(
    request: Request, layouts: list[list[int]], score: Array, contenders: Contenders, tell: Tell
) -> list[tuple[float, int]]:
    """Value and number of the best plan of each of the best layouts, pipelines simulated, in order.

    layouts: numbers of the plans of each, in order of their score. A pipeline is not simulated where its bound shows
    that it cannot be among the plans returned.
    """
    aim, least = request.objective, float(score.min())
    best: list[tuple[tuple[float, float], int]] = []
    wanted = max(request.top, SIMPLEST_OF)
    for done, pipelines in enumerate(layouts):
        tell(0.8, f"simulating pipelines, {done} layouts done")
        rival = sorted(best)[wanted - 1][0] if len(best) >= wanted else LAST
        if score[pipelines[0]] * (1 - SIMULATION_GAIN) > rival[0]:
            break
        found = (LAST, pipelines[0])
        for number in pipelines:
            if score[number] * (1 - SIMULATION_GAIN) > found[0][0]:
                break
            contender = contenders[number]
            if contender.least_place(aim, least) <= min(rival, found[0]):
                found = min(found, (contender.place(aim, least), number), key=itemgetter(0))
        best.append(found)
    best.sort(key=itemgetter(0))
    return [(place[0], number) for place, number in best[:wanted] if place < LAST]


def _rows_that_matter(
    request: Request, scored: list[Scored], share: float, slowest: float, wanted: int
) -> list[NDArray[np.intp]]:
    """Rows of each space that fit and can be among the pipelines simulated for the first `wanted` layouts."""
    scores, best = [], {}
    for each in scored:
        score = np.where(each.ranked(share, slowest), each.score(request.objective), np.inf)
        layouts = [each.space.layout(name) for name in LAYOUT]
        starts, _ = runs(layouts)
        lowest = np.minimum.reduceat(score, np.searchsorted(each.space.cells, starts * each.space.options))
        for *layout, value in zip(
            *(column[starts].tolist() for column in layouts), lowest.tolist(), strict=True
        ):
            best[tuple(layout)] = min(value, best.get(tuple(layout), np.inf))
        scores.append(score)
    last = sorted(best.values())[:wanted][-1] / (1 - SIMULATION_GAIN)
    return [np.flatnonzero((score <= last * (1 + EQUAL_WITHIN)) & np.isfinite(score)) for score in scores]


def _least_bad(request: Request, scored: list[Scored]) -> Candidate:
    """The legal plan that needs least of the memory there is, the faster of equals."""
    part = min(scored, key=lambda each: float(each.need().min()))
    row = int(np.lexsort((part.complexity(), part.step_time, part.peak_memory, part.need()))[0])
    return candidate(request, part.plan(row))


def _rule_rejections(spaces: list[Space]) -> list[Rejection]:
    counts: dict[str, int] = {}
    for space in spaces:
        for rule, count in space.rejected.items():
            counts[rule] = counts.get(rule, 0) + count
    examples = {rule: found.line() for space in spaces for rule, found in space.examples.items()}
    found = [Rejection(rule, count, examples[rule]) for rule, count in counts.items()]
    repeated = sum(space.repeated for space in spaces)
    return [*found, Rejection(REPEATED, repeated, SAME)] if repeated else found


def _memory_rejection(scored: list[Scored], count: int) -> Rejection:
    """How many plans do not fit their device, and the fastest of them."""
    part, row = quickest(scored, lambda each: ~each.fits_device())
    example = (
        f"{part.plan(row).describe()} needs {part.peak_memory[row] / GIB:.1f} GiB, "
        f"a plan may use {FITS_BELOW * part.device / GIB:.1f}"
    )
    return Rejection("memory", count, example)


def _host_rejection(request: Request, scored: list[Scored], count: int) -> Rejection:
    """How many plans fit their device but not their node's host memory, and the fastest of them."""
    part, row = quickest(scored, lambda each: each.fits_device() & ~each.fits())
    assert part.host is not None
    assert request.cluster.host_memory is not None
    whole = request.cluster.host_memory / GIB
    example = (
        f"{part.plan(row).describe()} keeps {part.host[row] * whole:,.0f} GiB in the host memory of a node, "
        f"which has {whole:,.0f}"
    )
    return Rejection("host memory", count, example)
