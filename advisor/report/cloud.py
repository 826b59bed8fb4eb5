"""Every feasible plan as a point of step time and memory: the Pareto front whole, the rest thinned to a sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.search.scored import Scored

# Points that a page draws beside the front; more make it heavier and show nothing more.
SAMPLE = 2500
# The sample is drawn anew in the same way each time, so that a page made twice is the same page.
SEED = 0
COLUMNS = ("step_time_s", "memory_bytes", "gpus", "plan")


@dataclass
class Cloud:
    """Gathers the feasible plans of a search; called with what was evaluated.

    feasible: how many there are; front: how many no other beats in both [1]. points: those that are drawn, the front
    first and in order of its rate: columns step_time_s, memory_bytes, gpus and plan.
    """

    feasible: int = 0
    front: int = 0
    points: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    def __call__(self, scored: list[Scored]) -> None:
        """Take the front and a sample of everything that fits."""
        rows = [np.flatnonzero(part.fits()) for part in scored]
        self.feasible = sum(len(some) for some in rows)
        if not self.feasible:
            return
        part = np.repeat(np.arange(len(scored)), [len(some) for some in rows])
        row = np.concatenate(rows)
        seconds = np.concatenate([each.step_time[some] for each, some in zip(scored, rows, strict=True)])
        memory = np.concatenate([each.peak_memory[some] for each, some in zip(scored, rows, strict=True)])
        # Plans on fewer GPUs (objective cost) take longer for the same tokens: what counts is the rate of a GPU.
        gpus = np.array([each.gpus for each in scored])[part]
        front = pareto_front(seconds * gpus, memory)
        rest = np.setdiff1d(np.arange(len(row)), front, assume_unique=True)
        if len(rest) > SAMPLE:
            rest = np.sort(np.random.default_rng(SEED).choice(rest, SAMPLE, replace=False))
        self.front = len(front)
        drawn = np.concatenate((front, rest))
        plans = np.empty(len(drawn), dtype=object)
        for number, each in enumerate(scored):
            ours = part[drawn] == number
            plans[ours] = [plan.describe() for plan in each.plans(row[drawn][ours])]
        columns = (seconds[drawn].tolist(), memory[drawn].tolist(), gpus[drawn].tolist(), plans.tolist())
        self.points = dict(zip(COLUMNS, columns, strict=True))


def pareto_front(cost: NDArray[np.float64], memory: NDArray[np.float64]) -> NDArray[np.intp]:
    """Indices of the points that no other beats in both, by rising cost; of equals the first.

    Examples
    --------
    >>> pareto_front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 4.0])).tolist()
    [0, 2]
    """
    order = np.lexsort((memory, cost))
    least = np.minimum.accumulate(memory[order])
    better = np.concatenate(([True], memory[order][1:] < least[:-1]))
    return order[better]
