"""Questions beside the best plan: why not this one, and what would make the model fit."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.leaner import left_free, optimizer_choices
from advisor.options import value_text
from advisor.outside import Tried, option, tried_beside, tried_in, why_untried
from advisor.render import gib, gpus_text, percent, seconds
from advisor.request import Request, completed
from advisor.search import GIB, SearchResult, fits_at_all, search
from advisor.search.candidates import Candidate, compared, memory_parts
from advisor.search.simplest import toss_up
from advisor.space import build_space
from costmodel.knobs import KNOBS
from costmodel.prediction import FITS_BELOW
from costmodel.stack import default_stack, load_stack

# What captures a whole step of dropless experts, as recipes of NeMo 26.06 set it.
WHOLE_STEP: dict[str, Any] = {
    "cuda_graph": True,
    "cuda_graph_scope": ("full_iteration",),
    "expert_mlp_fusion": True,
    "moe_expert_rank_capacity_factor": 1.5,
    "moe_paged_stash": True,
    # A check waits for the host: see the rule graph_whole_nan.
    "check_for_nan_in_grad": False,
}
LAYOUT = ("tp", "pp", "cp", "dp", "ep")
# Share of the step from which a gain outside the search is told.
WORTH_TELLING = 0.02
# A smaller share than this is told as no difference: it prints as 0.0 %.
EVEN_WITHIN = 0.0005
BETTER = {"throughput": "faster", "cost": "cheaper", "memory": "leaner"}
# Largest growth of the cluster, and shortest sequences, that are tried to make a model fit.
MOST_GPUS_FACTOR = 64
SHORTEST = 512
# Largest global batch that is tried beside more GPUs.
MOST_SEQUENCES = 2**22


@dataclass(frozen=True)
class WhyNot:
    """The best plan with some knobs pinned, against the best without.

    candidate is None when no such plan holds; reason then says which rule forbids it or what does not fit.
    With a candidate, reason says by how much it loses (lost_by of the candidate) and to what. Where it wins,
    not_taken says why the search did not take it, and to_take what to type for it; reason holds both too.
    """

    pins: Mapping[str, Any]
    candidate: Candidate | None
    reason: str
    not_taken: str = ""
    to_take: str = ""


def why_not(
    request: Request,
    pins: Mapping[str, Any],
    best: Candidate,
    tried: Tried | None = None,
    slowest: float = math.inf,
) -> WhyNot:
    """Best plan under `pins` (on top of the request's own), compared with `best`.

    tried: what the search that gave `best` tried; None builds its spaces anew. slowest: step time up to which plans
    counted there. [s]
    """
    words = ", ".join(f"{name}={_text(value)}" for name, value in pins.items())
    try:
        recipes = (pins["precision"],) if "precision" in pins else request.precisions
        asked = replace(request, pins=completed({**request.pins, **pins}), precisions=recipes, top=1)
        found = search(asked)
    except ValueError as refused:
        return WhyNot(pins, None, str(refused))
    if found.best is None:
        assert found.least_bad is not None
        return WhyNot(pins, None, f"{words} does not fit: {shortfall(found.least_bad)}")
    other = compared(request, best, found.best)
    if other.plan == best.plan:
        return WhyNot(pins, other, f"{words} is what the best plan has")
    if abs(other.lost_by) < EVEN_WITHIN:
        return WhyNot(pins, other, _as_good(words, pins, best, other))
    if other.lost_by < 0:
        if tried is None:
            tried = tried_in(build_space(request, precision) for precision in request.precisions)
        return _better(request, pins, words, best, other, tried, slowest)
    amount = _amount(request.objective, other.lost_amount)
    reason = (
        f"{words} is {100 * other.lost_by:.1f} % worse at best ({other.plan.describe()}), "
        f"most of it {other.lost_to_term}{amount}"
    )
    return WhyNot(pins, other, reason)


def _as_good(words: str, pins: Mapping[str, Any], best: Candidate, other: Candidate) -> str:
    """That the pins cost nothing, or that they change nothing at all: the same plan with them takes the same."""
    free = {name: getattr(best.plan, name) for name in pins if name in KNOBS}
    settings = {name for name in pins if name not in KNOBS}
    same = replace(other.plan, **free, settings=best.plan.settings) == best.plan and all(
        value in best.plan.settings or value[0] in settings for value in other.plan.settings
    )
    if same and other.step_time == best.step_time and other.peak_memory == best.peak_memory:
        return f"{words} changes neither time nor memory as the model counts them ({other.plan.describe()})"
    return f"{words} is as good ({other.plan.describe()})"


def _better(
    request: Request,
    pins: Mapping[str, Any],
    words: str,
    best: Candidate,
    other: Candidate,
    tried: Tried,
    slowest: float,
) -> WhyNot:
    """What a plan gains that the search did not take, why it did not, and how to take it."""
    objective = request.objective
    amounts = [
        gib(each.peak_memory) if objective == "memory" else seconds(each.step_time) for each in (other, best)
    ]
    if objective == "cost":
        amounts = [
            f"{text} on {gpus_text(each.plan.world)}"
            for text, each in zip(amounts, (other, best), strict=True)
        ]
    why = why_untried(request, tried_beside(request, tried, other.plan), pins)
    if not why and other.prediction.tight and not best.prediction.tight:
        why = "its memory is so full that the allocator stalls: such plans count only where nothing else fits"
    elif not why and other.step_time > slowest:
        allowed = f"--slowdown {request.slowdown:g} allows {seconds(slowest)}"
        why = f"it takes {seconds(other.step_time)} a step, and {allowed}"
    elif not why and objective == "throughput" and -other.lost_by < toss_up().below:
        close, share = percent(toss_up().below, 0), percent(toss_up().share, 0)
        why = f"of layouts within {close} it takes the simplest ({share} of pairs so close ran in that order)"
    elif not why:
        why = "it tries these values, but not together or not in the pipelines that it simulates"
    take = " ".join(option(name, value) for name, value in pins.items())
    replaced = [
        f"--pin {shlex.quote(f'{name}={_text(request.pins[name])}')}" for name in pins if name in request.pins
    ]
    instead = f" instead of {' '.join(replaced)}" if replaced else ""
    reason = (
        f"{words} is {-100 * other.lost_by:.1f} % {BETTER[objective]}, {amounts[0]} against {amounts[1]} "
        f"({other.plan.describe()}). The search does not take it: {why}. To have it: {take}{instead}"
    )
    return WhyNot(pins, other, reason, why, take)


def whole_step_graph(request: Request, best: Candidate) -> WhyNot | None:
    """The best plan's layout with one CUDA graph of the whole step, where releases can run it and it gains; else None.

    Not searched: it bounds what the experts of a rank may take, which the plans asked for do not, and its checks for
    NaN are off, as one graph cannot wait for the host.
    """
    sizes = {name: getattr(best.plan, name) for name in LAYOUT}
    pins = {
        name: value for name, value in {**request.pins, **sizes}.items() if name != "precision"
    } | WHOLE_STEP
    if (
        request.objective == "memory"
        or request.model.moe is None
        or best.plan.moe_dispatcher != "hybridep"
        or best.plan.moe_capacity_factor > 0
        or not load_stack(request.stack or default_stack()).whole_step
        or any(request.pins.get(name, value) != value for name, value in WHOLE_STEP.items())
    ):
        return None
    try:
        found = search(replace(request, pins=pins, precisions=(best.plan.precision,), top=1)).best
    except ValueError:
        return None
    if found is None or found.step_time > (1 - WORTH_TELLING) * best.step_time:
        return None
    saved = 1 - found.step_time / best.step_time
    pinned = " ".join(f"--pin {name}={_text(value)}" for name, value in WHOLE_STEP.items())
    bound = WHOLE_STEP["moe_expert_rank_capacity_factor"]
    reason = (
        f"in this layout it takes {found.step_time:.4g} s, {100 * saved:.0f} % less ({found.plan.describe()}), and "
        f"recipes of this release run so. It bounds what the experts of a rank take at {bound:g} times the mean, so "
        f"it is not searched, and it runs without checks of gradients for NaN. To have it: {pinned}"
    )
    not_taken = "it bounds what the experts of a rank take"
    return WhyNot(
        {"cuda_graph_scope": "full_iteration"}, compared(request, best, found), reason, not_taken, pinned
    )


def shortfall(least_bad: Candidate) -> str:
    """What the plan that needs least memory needs of the device and of its host, and the largest component."""
    prediction = least_bad.prediction
    needs = []
    if not prediction.fits:
        allowed = FITS_BELOW * prediction.device_bytes
        name, size = max(memory_parts(prediction).items(), key=lambda item: item[1])
        needs.append(
            f"{least_bad.peak_memory / GIB:.1f} GiB, a plan may use {allowed / GIB:.1f}; "
            f"the largest part is {name} with {size / GIB:.1f} GiB"
        )
    if (whole := prediction.cluster.host_memory) is not None and not prediction.fits_host:
        taken = prediction.node_host_bytes[0]
        needs.append(f"{taken / GIB:,.0f} GiB of a node's host memory, which has {whole / GIB:,.0f}")
    return f"{least_bad.plan.describe()} needs least, {', and '.join(needs)}"


def missing(least_bad: Candidate) -> str:
    """By how much it misses, in a few words: of a GPU's memory, of a node's host memory."""
    prediction = least_bad.prediction
    over = least_bad.peak_memory - FITS_BELOW * prediction.device_bytes
    words = [] if prediction.fits else [f"{gib(over)} a GPU"]
    if (whole := prediction.cluster.host_memory) is not None and not prediction.fits_host:
        words.append(f"{gib(prediction.node_host_bytes[0] - whole)} of host memory a node")
    return " and ".join(words)


def what_would_fit(result: SearchResult) -> tuple[str, ...]:
    """Changes of the request after which some plan fits, each one evaluated, not guessed."""
    request = result.request
    ways = list(_leaner(request))
    for pin, value in request.pins.items():
        if pin != "precision" and _fits(
            replace(request, pins={k: v for k, v in request.pins.items() if k != pin})
        ):
            ways.append(f"without --pin {pin}={_text(value)}")
    if more := _more_gpus(request):
        ways.append(more)
    ways += _adapters(request)
    if even := _length_that_divides(request):
        return (even, *ways)
    shorter = request.workload.seq_len // 2
    # A sequence holds at least a mean document.
    while shorter >= max(SHORTEST, request.workload.mean_length) and shorter % 2 == 0:
        if _fits(replace(request, workload=replace(request.workload, seq_len=shorter))):
            ways.append(f"--seq-len {shorter}")
            break
        shorter //= 2
    return tuple(ways)


def _adapters(request: Request) -> list[str]:
    """LoRA where it fits: of fine-tuning, and of what may be meant as that, on no more than one box."""
    task = request.workload.task
    if task == "lora" or (task == "pretrain" and request.gpus > request.cluster.gpus_per_node):
        return []
    if not _fits(replace(request, workload=replace(request.workload, task="lora"))):
        return []
    return ["--task lora" + (", if it is to be fine-tuned" if task == "pretrain" else "")]


def _more_gpus(request: Request) -> str:
    """A larger cluster that fits, with the batch that it would have, or else one that grows; "" for none.

    The smallest of twice as many GPUs again and again and of powers of two times pinned sizes' odd part, or one of the
    numbers 5, 6 and 7 times a power of two between it and the one before, which did not fit.
    """
    pins = {k: v for k, v in request.pins.items() if k != "dp"}
    most = MOST_GPUS_FACTOR * request.gpus
    unit = math.prod(pins.get(name, 1) for name in ("tp", "pp", "cp"))
    odd = unit // (unit & -unit)
    powers = range(most.bit_length())
    few = {request.gpus << power for power in powers} | {odd << power for power in powers}
    more = {times * odd << power >> 2 for times in (5, 6, 7) for power in powers}

    def first(numbers: set[int], above: int, below: int) -> tuple[int, int, str]:
        """The first of them that fits, the number tried in front of it, and its options; `below` where none does."""
        for gpus in sorted(number for number in numbers if above < number < below and number % unit == 0):
            if found := _way_on(request, gpus, pins):
                return gpus, above, found
            above = gpus
        return below, above, ""

    fits, before, way = first(few, request.gpus, most + 1)
    return (first(more, before, fits)[2] or way) if way else ""


def _way_on(request: Request, gpus: int, pins: Mapping[str, Any]) -> str:
    """Options that ask the same of so many GPUs, where some plan fits; "" where none does."""
    plain = request.batch_on(gpus)
    grown = min(request.workload.global_batch * gpus // request.gpus, MOST_SEQUENCES)
    for batch in dict.fromkeys((plain, grown)):
        workload = replace(request.workload, global_batch=batch)
        if _fits(replace(request, gpus=gpus, workload=workload, pins=pins)):
            return f"--gpus {gpus}" + ("" if batch == plain else f" --global-batch {batch}")
    return ""


def _length_that_divides(request: Request) -> str:
    """The nearest sequence length that fits as it divides over more ranks than the one given; "" where none does."""
    given = request.workload.seq_len
    units = itertools.takewhile(
        lambda unit: unit <= 2 * request.gpus, (2**power for power in itertools.count(1))
    )
    for length in dict.fromkeys(unit * round(given / unit) for unit in units):
        workload = replace(request.workload, seq_len=length) if length not in (0, given) else None
        best = _best(replace(request, workload=workload, top=1)) if workload else None
        # A plan that the length given could have, too, fits as the sequence is shorter, which others tell.
        if best and given % (best.plan.cp * max(2 if best.plan.cp > 1 else 1, best.plan.tp)):
            odd = given // (given & -given)
            factors = (
                f"{given:,} is odd"
                if odd == given
                else f"{given:,} is {given // odd} x {odd:,}, which is odd"
            )
            return (
                f"--seq-len {length}, which divides over more GPUs: {factors}, while cp splits multiples of 2 x cp "
                f"tokens, and tp with sequence parallelism those of tp x cp: {best.plan.describe()}, "
                f"{best.step_time:.4g} s a step"
            )
    return ""


def _leaner(request: Request) -> Iterator[str]:
    """Knobs outside the search that save memory, each with the best step it allows; of shares the fastest."""
    layers = request.model.num_layers
    layers_of = [{"offload_layers": max(1, layers * part // 4)} for part in (1, 2, 3)]
    for sizes, words in (*optimizer_choices(request), (layers_of, "layers' activations in host memory")):
        if fitting := _fitting(request, sizes):
            _, _, best, pins = min(fitting, key=lambda each: each[:2])
            pinned = " ".join(f"--pin {name}={_text(value)}" for name, value in pins.items())
            yield f"{pinned} ({words}): {best.plan.describe()}, {best.step_time:.4g} s a step"


def _fitting(
    request: Request, sizes: list[dict[str, Any]]
) -> list[tuple[float, int, Candidate, dict[str, Any]]]:
    """Step time, place, best plan and pins of those that the request's own pins leave free and that fit."""
    free = [pins for pins in sizes if left_free(request, pins)]
    tried = [(pins, _best(replace(request, pins={**request.pins, **pins}, top=1))) for pins in free]
    return [(best.step_time, number, best, pins) for number, (pins, best) in enumerate(tried) if best]


def _best(request: Request) -> Candidate | None:
    try:
        return search(request).best if fits_at_all(request) else None
    except ValueError:
        return None


def _fits(request: Request) -> bool:
    try:
        return fits_at_all(request)
    except ValueError:
        return False


def _amount(objective: str, amount: float) -> str:
    if not amount:
        return ""
    return f" (+{amount / GIB:.1f} GiB)" if objective == "memory" else f" (+{1000 * amount:.0f} ms a step)"


def _text(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else value_text(value)
