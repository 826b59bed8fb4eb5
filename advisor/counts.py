"""Other numbers of GPUs: fewer that are quicker than a number with few divisors, and how many a deadline takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from advisor.request import Request
from advisor.search import search
from advisor.search.candidates import Candidate
from advisor.sections import training_cost
from advisor.sizes import MOST_GPUS
from advisor.usual_sizes import default_global_batch

# A rounder number leaves at most this share of the GPUs idle.
IDLE = 1 / 8
# Below this gain fewer GPUs are not worth a line: two runs of one plan differ by as much.
QUICKER = 1.01
# Numbers tried for a deadline are multiples of the largest power of two below these shares of the number needed.
SHARES = (1 / 16, 1 / 4, 1)
MOST_SEARCHES = 8
# Of the first power of two on which something fits these shares are tried too, the least first: half of it is too few.
LESS = (5 / 8, 3 / 4)
# GPUs are raised so much where none of a round suffices, and fewer GPUs are taken to be at most so much quicker each;
# an answer so near to the deadline is not lowered.
FURTHER, CLOSE = 1.2, 1.05


@dataclass(frozen=True)
class Count:
    """The best plan on a number of GPUs, and the tokens a second of all of them together."""

    best: Candidate

    @property
    def gpus(self) -> int:
        """GPUs of the plan. [1]"""
        return self.best.plan.world

    @property
    def rate(self) -> float:
        """Tokens a second, padding not counted. [1/s]"""
        return self.best.prediction.tokens_per_second_per_gpu * self.gpus

    def to_dict(self, tokens: float | None = None) -> dict[str, Any]:
        """Plain values for `--json`."""
        found = self.best.prediction
        return {
            "gpus": self.gpus,
            "knobs": self.best.plan.to_dict(),
            "global_batch": found.workload.global_batch,
            "step_time_s": found.step_time_s,
            "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
            "cost": training_cost(found, tokens) if tokens else None,
        }


def rounder(gpus: int) -> int:
    """The nearest smaller number with more powers of two, at most an eighth less; 0 where there is none. [1]"""
    step = _power_below(gpus * IDLE)
    return gpus - gpus % step if gpus % step else 0


def fewer_gpus(request: Request, best: Candidate | None) -> Count | None:
    """The best plan on a rounder number of GPUs, where all of them do more work than the plan of the request's own.

    best: of the request, None where nothing fits. Another objective than throughput is another question.
    """
    gpus = rounder(request.gpus)
    if not gpus or request.objective != "throughput":
        return None
    found = on(request, gpus)
    return found if found and (best is None or found.rate > QUICKER * Count(best).rate) else None


def in_time(request: Request, best: Candidate | None, days: float) -> Count | None:
    """The fewest GPUs tried that train the request's tokens in as many days; None where none up to the limit do.

    best: of the request, None where nothing fits on its GPUs: the fewest that hold the model are the least then. Its
    own GPUs are tried first: never more than they where they keep to it.
    """
    assert request.tokens is not None
    needed = request.tokens / (days * 86400)
    own = Count(best) if best else least(request)
    if own is None or (best is None and own.rate >= needed):
        return own
    tries = _Tries(request, needed, {own.gpus: own})
    _by_rate(tries, own)
    _by_halves(tries)
    _by_rounding(tries)
    return tries.kept


@dataclass(frozen=True)
class _Tries:
    """Plans on other numbers of GPUs, each searched once, a bounded number of them. needed: tokens a second. [1/s]"""

    request: Request
    needed: float
    found: dict[int, Count | None]

    @property
    def left(self) -> bool:
        return len(self.found) <= MOST_SEARCHES  # the first is the one that was given

    @property
    def kept(self) -> Count | None:
        """The fewest GPUs found that are quick enough."""
        enough = [found for found in self.found.values() if found and found.rate >= self.needed]
        return min(enough, key=lambda found: found.gpus, default=None)

    def enough(self, gpus: int) -> Count | None:
        """The plan on so many GPUs where it is quick enough; None also where no search is left."""
        if gpus not in self.found and self.left:
            self.found[gpus] = on(self.request, gpus)
        found = self.found.get(gpus)
        return found if found and found.rate >= self.needed else None


def _by_rate(tries: _Tries, own: Count) -> None:
    """Try the numbers that the rate of one GPU asks for, as long as they are fewer; more while none suffices."""
    each = own.rate / own.gpus  # of one GPU, by the last answer
    while tries.left and (gpus := tries.needed / each) <= MOST_GPUS:
        kept = tries.kept
        counts = _round_up(gpus, tries.request.cluster.gpus_per_node)
        fewer = (count for count in counts if kept is None or count < kept.gpus)
        found = next(filter(None, map(tries.enough, fewer)), None)
        if found is None and kept is None:
            each /= FURTHER
        elif found is None or found.rate < CLOSE * tries.needed:
            return
        else:
            each = found.rate / found.gpus


def _by_halves(tries: _Tries) -> None:
    """Try between the most GPUs that do not suffice, as where too few hold no plan, and the fewest that do."""
    node = tries.request.cluster.gpus_per_node
    while tries.left and (kept := tries.kept) and kept.rate >= CLOSE * tries.needed:
        too_few = int(kept.gpus * tries.needed / kept.rate / FURTHER)
        low = max(1, too_few, *(gpus for gpus in tries.found if gpus < kept.gpus))
        if kept.gpus - low <= kept.gpus * SHARES[0]:
            return
        middle = math.sqrt(low * kept.gpus)
        step = max(_power_below((kept.gpus - low) / 2), node if middle > node else 1)
        gpus = math.ceil(middle / step) * step
        if gpus >= kept.gpus:
            return
        tries.enough(gpus)


def _by_rounding(tries: _Tries) -> None:
    """Try fewer, rounder GPUs, of which `fewer_gpus` would say on the answer's own page that they do more work."""
    while (kept := tries.kept) and (gpus := rounder(kept.gpus)) and gpus not in tries.found:
        tries.found[gpus] = on(tries.request, gpus)


def least(request: Request) -> Count | None:
    """The fewest GPUs tried on which something fits, with the best plan there; None where nothing does."""
    low = _power_below(request.gpus)
    doubled = (low << number for number in range(MOST_SEARCHES) if low << number <= MOST_GPUS)
    found = next((count for count in map(partial(on, request), doubled) if count), None)
    if found is None or found.gpus == low:
        return found
    node = request.cluster.gpus_per_node
    for share in LESS:
        gpus = found.gpus * share
        within = on(request, int(gpus)) if gpus % min(node, _power_below(gpus)) == 0 else None
        if within is not None:
            return within
    return found


def _round_up(gpus: float, node: int) -> Iterator[int]:
    """Numbers from `gpus` on that plans divide well, the nearest first; beyond a node of whole nodes."""
    least = node if gpus > node else 1
    steps = [math.ceil(_power_below(gpus * share) / least) * least for share in SHARES]
    counts = {math.ceil(gpus / step) * step for step in steps}
    yield from sorted(count for count in counts if count <= MOST_GPUS)


def _power_below(limit: float) -> int:
    return 1 << max(0, math.floor(math.log2(limit))) if limit >= 1 else 1


def on(request: Request, gpus: int) -> Count | None:
    """The best plan of the same question on another number of GPUs, None where there is none.

    A batch that follows the GPUs follows them there too.
    """
    workload = request.workload
    kind = (workload.seq_len, workload.task, request.model.moe is not None)
    if workload.global_batch == default_global_batch(request.gpus, *kind):
        workload = replace(workload, global_batch=default_global_batch(gpus, *kind))
    pins = {name: value for name, value in request.pins.items() if name != "dp"}
    objective = "throughput" if request.objective == "cost" else request.objective
    try:
        asked = replace(request, gpus=gpus, workload=workload, pins=pins, objective=objective, top=1)
        found = search(asked).best
    except ValueError:
        return None
    return Count(found) if found else None
