"""How often the interval holds for runs that it does not rest on, and the constants that make it hold.

Every run is asked for its interval with the runs of its own group (its model, or its source) out of the
table; 90 % of them should lie inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.evidence.quantile import LEVEL, Numbers, local_quantile
from costmodel.evidence.runs import REACH, Table, Z
from hardware_db.evidence import Evidence

GROUPS: dict[str, Callable[[Evidence], str]] = {
    "model": lambda run: run.model,
    "source": lambda run: run.source,
    "run": lambda run: run.id,
}
# Runs nearer than this are also left out, to see how errors grow with distance.
LEAST_GROWTH = 0.1  # what a new machine may be off by cannot be learnt from the runs there are
MOST_GROWTH = 0.3
TOLERANCE = 0.02  # of coverage
CLEARANCES = (0.0, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Held:
    """Runs as queries whose groups are left out: error to be covered, local quantile, reach, and what the constants
    leave, of each."""

    errors: Numbers
    local: Numbers
    reach: Numbers
    constants: Numbers

    def width(self, scale: float, growth: float) -> Numbers:
        """Half of the interval of each. [log]"""
        return np.sqrt((scale * self.local) ** 2 + (growth * self.reach) ** 2 + self.constants**2)

    def coverage(self, scale: float, growth: float) -> NDArray[np.bool_]:
        """Whether each lies inside its interval."""
        return self.errors <= self.width(scale, growth)


def held(table: Table, group: str, clearance: float = 0.0) -> Held:
    """Every run with its group left out, and all runs nearer than `clearance`. NaN where nothing is left.

    Errors are what is left of them around the interval's middle.
    """
    labels = np.array([GROUPS[group](run) for run in table.runs], dtype=object)
    models = table.words["model"]
    found = np.full((4, len(table)), np.nan)
    for index, run in enumerate(table.runs):
        distances = table.distances(run)
        distances = np.where((labels == labels[index]) | (distances < clearance), np.inf, distances)
        if not np.isfinite(distances).any():
            continue
        known = bool((np.isfinite(distances) & (models == run.model)).any())
        scores = table.scores(known)
        near = np.sort(distances)[:REACH]
        found[:, index] = (
            abs(table.errors(known)[index] - table.shared(distances, known)),
            local_quantile(distances, scores, table.weights),
            near[np.isfinite(near)].mean(),
            Z * run.parameter_spread,
        )
    return Held(*found)


def with_shared(runs: Sequence[Evidence]) -> Table:
    """A table of runs, each with the error that the runs near it share, itself or its model left out."""
    table = Table(tuple(runs))
    models = table.words["model"]
    found = []
    for index, run in enumerate(runs):
        distances = table.distances(run)
        alone = distances.copy()
        alone[index] = np.inf
        others = np.where(models == run.model, np.inf, distances)
        found.append(
            replace(
                run,
                near_error=table.shared(alone, known_model=True),
                near_held_error=table.shared(others, known_model=False),
            )
        )
    return Table(tuple(found))


def learn(table: Table) -> dict[str, float]:
    """scale and growth of the interval, by which nine of ten runs lie inside, near the evidence and far from it.

    scale: so that they do with the run, its model or its source left out. growth: the least at which they still do
    when all runs nearer than each clearance are left out too.
    """
    near = [_finite(held(table, group)) for group in GROUPS]
    far = [_finite(held(table, "model", clearance)) for clearance in CLEARANCES]
    scale, growth = 1.0, LEAST_GROWTH
    for growth in np.arange(LEAST_GROWTH, MOST_GROWTH + 1e-9, 0.02):
        scale = min(
            np.arange(0.5, 2.0001, 0.02),
            key=lambda scale: sum((_share(case, scale, growth) - LEVEL) ** 2 for case in near),
        )
        if min(_share(case, scale, growth) for case in far) >= LEVEL - TOLERANCE:
            break
    return {"scale": round(float(scale), 3), "growth": round(float(growth), 3)}


def _finite(cases: Held) -> Held:
    """Those for which anything is left in the table."""
    left = np.isfinite(cases.errors)
    return Held(cases.errors[left], cases.local[left], cases.reach[left], cases.constants[left])


def _share(cases: Held, scale: float, growth: float) -> float:
    return float(cases.coverage(scale, growth).mean()) if len(cases.errors) else LEVEL


def coverage_by(table: Table, group: str, labels: Sequence[str]) -> dict[str, tuple[int, float, float]]:
    """Label -> runs, share of them inside their interval and mean half-width, with their group left out."""
    cases = held(table, group)
    inside = cases.coverage(table.spread["scale"], table.spread["growth"])
    width = cases.width(table.spread["scale"], table.spread["growth"])
    members: dict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        if np.isfinite(cases.errors[index]):
            members["all"].append(index)
            members[label].append(index)
    return {
        label: (len(own), float(inside[own].mean()), float(width[own].mean()))
        for label, own in sorted(members.items(), key=lambda item: -len(item[1]))
    }
