"""The quickest plan that a search found with some choice: FSDP, or another size than the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from advisor.search import SearchResult
from advisor.search.candidates import Candidate, candidate
from advisor.search.contenders import LAYOUT
from advisor.search.scored import Scored
from costmodel.columns import Array
from costmodel.plan import Plan
from costmodel.prediction import FITS_BELOW, TIGHT_ABOVE
from costmodel.stage_inputs import runs

# Of the knobs LAYOUT, as arrays: which layouts count.
Which = Callable[[Mapping[str, Array]], Any]


class BestWith:
    """The layouts of a search, each with its quickest plan by the closed form. [s]

    Asked by their knobs LAYOUT; plans that the search ranks, in the pipelines that it simulated, count as well, so
    that no answer is slower than one of them.
    """

    def __init__(self, result: SearchResult, scored: Sequence[Scored]) -> None:
        self.request = result.request
        self.ranked = result.plans
        share = TIGHT_ABOVE if result.feasible > result.tight else FITS_BELOW
        self._parts = [_quickest(each, each.ranked(share, result.slowest)) for each in scored]
        self._scored = scored

    def plan(self, which: Which) -> Candidate | None:
        """The quickest plan of the layouts that count, its pipeline simulated; None where none was found."""
        found = [each for each in self.ranked if which(_layout_of(each.plan))]
        if plan := self._by_closed_form(which):
            found.append(candidate(self.request, plan, judged=False))
        return min(found, key=lambda each: each.step_time, default=None)

    def _by_closed_form(self, which: Which) -> Plan | None:
        best, where = np.inf, None
        for part, (layouts, rows, seconds) in enumerate(self._parts):
            times = np.where(which(layouts), seconds, np.inf)
            if times.size and times.min() < best:
                first = int(times.argmin())
                best, where = times[first], (part, int(rows[first]))
        return self._scored[where[0]].plan(where[1]) if where else None


def _quickest(scored: Scored, counts: Array) -> tuple[dict[str, Array], Array, Array]:
    """Knobs of each layout of a space, number and step time of its quickest plan that counts. [s]"""
    space, seconds = scored.space, np.where(counts, scored.step_time, np.inf)
    columns = {name: space.layout(name) for name in LAYOUT}
    starts, _ = runs(list(columns.values()))
    first = np.searchsorted(space.cells, starts * space.options)
    rows = np.array(
        [
            begin + seconds[begin:end].argmin()
            for begin, end in zip(first, [*first[1:], len(seconds)], strict=True)
        ]
    )
    return {name: column[starts] for name, column in columns.items()}, rows, seconds[rows]


def _layout_of(plan: Plan) -> dict[str, Array]:
    return {name: np.array(getattr(plan, name)) for name in LAYOUT}
