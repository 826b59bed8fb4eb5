"""Plans that a search may simulate: their numbers from one evaluation, pipelines replayed only when it matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.request import Request
from advisor.search.candidates import objective_of, place_of
from advisor.space.grid import Space
from costmodel.columns import Array, Columns, plan_from_columns
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, plan_values
from costmodel.simulated_pipeline import has_pipeline, least_correction, schedule_correction
from costmodel.workload import Workload

# Layouts differ in these; plans of one layout are variants of one answer.
LAYOUT = ("tp", "pp", "cp", "dp", "ep", "etp", "fsdp")
# Within a layout, pipelines differ in these; of how many a layout has simulated.
PIPELINE = ("vpp", "micro_batch", "account_embedding", "account_loss", "pipeline_layout")
PIPELINES_PER_LAYOUT = 8
# Sums in another order differ by less than this share.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Contender:
    """One plan with its numbers by the closed form, by name."""

    model: ModelSpec
    workload: Workload
    plan: Plan
    values: dict[str, float] = field(repr=False)

    def value(self, objective: str) -> float:
        """What the search minimises, the pipeline simulated; as `candidates.objective_value` of the plan.

        [s], [GPU-s] or [byte], by the objective.
        """
        simulated = objective != "memory" and has_pipeline(self)
        return self._value(objective, schedule_correction(self) if simulated else 0.0)

    def least(self, objective: str) -> float:
        """What `value` is not below, in its unit; cheap."""
        bounded = objective != "memory" and has_pipeline(self)
        return self._value(objective, least_correction(self) if bounded else 0.0) * (1 - ROUNDING)

    def place(self, objective: str, least: float) -> tuple[float, float]:
        """`advisor.search.candidates.place_of` the plan, the pipeline simulated."""
        if objective != "memory":
            return place_of(objective, self.value(objective), 0.0, least)
        return place_of(objective, self.value(objective), self.value("throughput"), least)

    def least_place(self, objective: str, least: float) -> tuple[float, float]:
        """What `place` is not below; cheap."""
        if objective != "memory":
            return place_of(objective, self.least(objective), 0.0, least)
        return place_of(objective, self.least(objective), self.least("throughput"), least)

    def _value(self, objective: str, correction: float) -> float:
        step = self.values["step_time"] + correction
        return objective_of(objective, step, self.values["peak_memory"], self.plan.world)


class Contenders:
    """Plans of several spaces by number; each space's numbers come from one evaluation.

    part, row: of every number, the space and its plan there. numbers: those that can be asked for.
    """

    def __init__(
        self,
        request: Request,
        spaces: Sequence[Space],
        part: NDArray[np.intp],
        row: NDArray[np.intp],
        numbers: Sequence[int],
    ) -> None:
        self.request = request
        self._places: dict[int, tuple[_Some, int]] = {}
        for index, space in enumerate(spaces):
            ours = [number for number in numbers if part[number] == index]
            if ours:
                some = _some(request, space, row[ours])
                self._places |= {number: (some, place) for place, number in enumerate(ours)}

    def __getitem__(self, number: int) -> Contender:
        some, place = self._places[number]
        values = {
            name: float(value[place] if np.ndim(value) else value) for name, value in some.values.items()
        }
        plan = plan_from_columns(some.columns, place, some.precision)
        return Contender(self.request.model, self.request.workload, plan, values)


@dataclass(frozen=True)
class _Some:
    """Some plans of a space: their knobs and all of their numbers, as columns."""

    precision: str
    columns: Columns
    values: dict[str, Any]


def _some(request: Request, space: Space, rows: NDArray[np.intp]) -> _Some:
    columns = space.some(rows)
    plans = PlanArray(
        request.model, request.workload, request.cluster, space.precision, columns, request.stack
    )
    return _Some(space.precision, columns, plan_values(plans))


def layouts_in_order(columns: list[Array], wanted: int) -> list[list[int]]:
    """For each of the first `wanted` layouts, the first row of each of its first pipelines.

    columns: LAYOUT and PIPELINE of rows in order of the objective. One stage has one pipeline: simulating
    changes nothing there.
    """
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, number = np.unique(column, return_inverse=True)
        code = code * len(values) + number
    _, first = np.unique(code, return_index=True)
    found: dict[tuple[float, ...], list[int]] = {}
    for index in np.sort(first):
        layout = tuple(float(column[index]) for column in columns[: len(LAYOUT)])
        if layout not in found and len(found) == wanted:
            continue
        pipelines = found.setdefault(layout, [])
        most = PIPELINES_PER_LAYOUT if layout[LAYOUT.index("pp")] > 1 else 1
        if len(pipelines) < most:
            pipelines.append(int(index))
    return list(found.values())
