"""Ranking truth: of two published runs of the same work, is the one measured faster predicted faster?

An error common to two plans leaves their order alone; what decides between them is what a search lives by.
Runs are compared in GPU-seconds a token, so that runs of different size can be compared too.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

# A re-measured configuration moves by 1.5 % (median over releases of Megatron-Bridge's summaries): closer pairs
# have no known order.
NOISE = 0.015
# Upper ends of the classes of measured difference.
DIFFERENCES = ((0.03, "1.5-3 %"), (0.10, "3-10 %"), (math.inf, "above 10 %"))
# What two runs on the same system share, strictest first; a pair counts in the first class that it meets.
CLASSES = {
    "plan": "same work, precision and software: only the plan differs",
    "precision": "same work and software, another precision",
    "release": "same work and precision, another software release or source",
    "size": "same model, sequence, precision and software, another number of GPUs or global batch",
}
WORST = 10


@dataclass(frozen=True)
class Timed:
    """A run measured and predicted, in GPU-seconds a token.

    subject: what both runs of any pair share (model, task, sequence, system); size: GPUs and batch; software:
    source and release. plan: whatever tells plans apart; equal plans of equal software are one plan measured twice.
    """

    id: str
    source: str
    subject: Hashable
    size: Hashable
    precision: str
    software: Hashable
    plan: Hashable
    measured: float
    predicted: float


@dataclass(frozen=True)
class Pair:
    """Two runs, the one measured faster first; kind is one of CLASSES."""

    kind: str
    faster: Timed
    slower: Timed

    @property
    def measured_ratio(self) -> float:
        """Time of the slower run over the faster's, measured: above 1."""
        return self.slower.measured / self.faster.measured

    @property
    def predicted_ratio(self) -> float:
        """The same as predicted: above 1 where the order is right."""
        return self.slower.predicted / self.faster.predicted

    @property
    def right(self) -> bool:
        """Whether the faster is predicted faster; a tie is not right."""
        return self.predicted_ratio > 1


def kind_of(one: Timed, other: Timed) -> str | None:
    """The class of a pair, None where the two are not comparable or are one plan measured twice."""
    same_size, same_precision = one.size == other.size, one.precision == other.precision
    if one.subject != other.subject:
        return None
    if one.software != other.software:
        return "release" if same_size and same_precision else None
    if same_size and same_precision:
        return None if one.plan == other.plan else "plan"
    if same_size:
        return "precision"
    return "size" if same_precision else None


def pairs(runs: Iterable[Timed], noise: float = NOISE) -> list[Pair]:
    """Every comparable pair whose measured times differ by more than `noise`.

    Examples
    --------
    >>> fast = Timed("a", "s", "llama", (8, 64), "bf16", "26.02", "TP1", measured=1.0, predicted=1.1)
    >>> slow = Timed("b", "s", "llama", (8, 64), "bf16", "26.02", "TP2", measured=1.2, predicted=1.0)
    >>> [(pair.kind, pair.faster.id, pair.right) for pair in pairs([slow, fast])]
    [('plan', 'a', False)]
    """
    groups: dict[Hashable, list[Timed]] = defaultdict(list)
    for run in runs:
        groups[run.subject].append(run)
    found = []
    for members in groups.values():
        for one, other in combinations(members, 2):
            kind = kind_of(one, other)
            faster, slower = sorted((one, other), key=lambda run: run.measured)
            if kind and slower.measured / faster.measured >= 1 + noise:
                found.append(Pair(kind, faster, slower))
    return found


def difference_of(pair: Pair) -> str:
    """The class of a pair's measured difference."""
    return next(name for top, name in DIFFERENCES if pair.measured_ratio - 1 <= top)


def share_right(found: Sequence[Pair]) -> dict[str, Any]:
    """n, right, tied in prediction, share right, and Kendall's tau: right less wrong pairs over all."""
    right = sum(pair.right for pair in found)
    wrong = sum(pair.predicted_ratio < 1 for pair in found)
    if not found:
        return {"n": 0, "right": 0, "tied": 0, "share": None, "tau": None}
    return {
        "n": len(found),
        "right": right,
        "tied": len(found) - right - wrong,
        "share": right / len(found),
        "tau": (right - wrong) / len(found),
    }


def tau_of_works(found: Sequence[Pair]) -> float | None:
    """Kendall's tau of each work, averaged: a work with many published plans weighs no more than another."""
    works: dict[Hashable, list[Pair]] = defaultdict(list)
    for pair in found:
        run = pair.faster
        works[run.subject, run.size, run.precision, run.software].append(pair)
    taus = [share_right(members)["tau"] for members in works.values()]
    return statistics.fmean(taus) if taus else None


def regret(runs: Iterable[Timed], noise: float = NOISE) -> list[float]:
    """For each work with several plans: how much slower the plan predicted fastest ran than the fastest. [1]

    Works whose plans all lie within `noise` have no order and are left out.
    """
    works: dict[Hashable, list[Timed]] = defaultdict(list)
    for run in runs:
        works[run.subject, run.size, run.precision, run.software].append(run)
    losses = []
    for members in works.values():
        times = [run.measured for run in members]
        if max(times) / min(times) >= 1 + noise:
            chosen = min(members, key=lambda run: run.predicted)
            losses.append(chosen.measured / min(times) - 1)
    return losses


def ranking(runs: Sequence[Timed], noise: float = NOISE) -> dict[str, Any]:
    """`summary.ranking` of `advisor validate --json`.

    n, right, share and tau are those of the strictest class, "plan"; `by` has the others. worst: the pairs of that
    class ranked most wrongly, by how far the predicted ratio is from the measured.
    """
    found = pairs(runs, noise)
    strict = [pair for pair in found if pair.kind == "plan"]
    losses = regret(runs, noise)
    wrong = sorted((pair for pair in strict if not pair.right), key=_gravity, reverse=True)
    return {
        "noise": noise,
        **share_right(strict),
        "tau_of_works": tau_of_works(strict),
        "works": len(losses),
        "mean_regret": statistics.fmean(losses) if losses else None,
        "by": {
            "class": {kind: share_right([pair for pair in found if pair.kind == kind]) for kind in CLASSES},
            "difference": _by(strict, {id(pair): difference_of(pair) for pair in strict}),
            "source": _by(strict, {id(pair): pair.faster.source for pair in strict}),
        },
        "worst": [pair_dict(pair) for pair in distinct(wrong)[:WORST]],
    }


def pair_dict(pair: Pair) -> dict[str, Any]:
    """A pair as the report has it."""
    return {
        "class": pair.kind,
        "faster": pair.faster.id,
        "slower": pair.slower.id,
        "measured_ratio": pair.measured_ratio,
        "predicted_ratio": pair.predicted_ratio,
    }


def distinct(wrong: Sequence[Pair]) -> list[Pair]:
    """The pairs in order, each run at most twice and each source three times: one odd row shall not fill the list."""
    seen: Counter[str] = Counter()
    kept = []
    for pair in wrong:
        runs, source = (pair.faster.id, pair.slower.id), f"source {pair.faster.source}"
        if max(seen[name] for name in runs) < 2 and seen[source] < 3:
            kept.append(pair)
            seen.update((*runs, source))
    return kept


def _gravity(pair: Pair) -> float:
    return math.log(pair.measured_ratio / pair.predicted_ratio)


def _by(found: Sequence[Pair], labels: Mapping[int, str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in found:
        groups[labels[id(pair)]].append(pair)
    return {name: share_right(groups[name]) for name in sorted(groups)}
