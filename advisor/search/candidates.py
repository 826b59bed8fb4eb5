"""Plans that a search compares: what each one costs, and what it loses to the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.request import Request
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import CORRECTION, RESOURCES, Prediction
from costmodel.simulated_pipeline import with_schedule
from hardware_db.order import Order, order_held

Amounts = TypeVar("Amounts", float, NDArray[np.float64])

# Memory that differs by a smaller share is the same: the count itself errs by more, and losses are told to as much.
SAME_MEMORY = 1e-3


@dataclass(frozen=True)
class Candidate:
    """One plan with its prediction, the pipeline simulated.

    step_time [s]; closed_form_time [s] is what `evaluate_plans` gave; peak_memory [byte] of the worst rank.
    rank: 1 is the best. lost_by: how much worse than the best by the objective, as a share. lost_to_term:
    what it lost most to, and lost_amount by how much: seconds, or bytes for the objective "memory". order: how often
    the order of published plans held that are predicted as far apart in time; None for the best, and for its equals.
    The best may be slower than others by a toss-up, as the simplest of them: those lose less than nothing. behind: by
    what share it is so, of the fastest.
    """

    plan: Plan
    prediction: Prediction
    closed_form_time: float
    rank: int = 1
    lost_by: float = 0.0
    lost_to_term: str = ""
    lost_amount: float = 0.0
    order: Order | None = None
    behind: float = 0.0

    @property
    def step_time(self) -> float:
        """Of one step, pipeline simulated. [s]"""
        return self.prediction.step_time_s

    @property
    def peak_memory(self) -> float:
        """Of the worst rank. [byte]"""
        return self.prediction.peak_memory_bytes


def candidate(request: Request, plan: Plan, judged: bool = True) -> Candidate:
    """Predict `plan` with the settings that are pinned, pipeline simulated. judged: as `predict` takes it."""
    plan = replace(plan, settings=request.settings)
    closed = predict(request.model, request.workload, request.cluster, plan, request.stack, judged=judged)
    return Candidate(plan, with_schedule(closed), closed.step_time_s)


def objective_value(objective: str, found: Candidate) -> float:
    """`objective_of` a plan with its pipeline simulated."""
    return objective_of(objective, found.step_time, found.peak_memory, found.plan.world)


def objective_of(objective: str, step_time: Amounts, peak_memory: Amounts, gpus: int) -> Amounts:
    """What the search minimises: seconds of a step, GPU-seconds of a step, or bytes of the worst rank."""
    if objective == "memory":
        return peak_memory
    return step_time * gpus if objective == "cost" else step_time


def memory_step(value: Amounts, least: float) -> Amounts:
    """How many times SAME_MEMORY a value is above the least: 0 of all that need the same as the least. [1]"""
    steps: Amounts = np.floor(np.log(value / least) / SAME_MEMORY + 1e-6)
    return steps


def place_of(objective: str, value: float, step_time: float, least: float) -> tuple[float, float]:
    """What plans are ordered by: the objective's value; of those that need the same memory, the step time. [s]

    least: the least value of all, from which memory is counted.
    """
    if objective != "memory":
        return value, 0.0
    return least * math.exp(SAME_MEMORY * memory_step(value, least)), step_time


def compared(request: Request, best: Candidate, other: Candidate) -> Candidate:
    """`other` with what it lost to `best`, by how much and to which term."""
    lost_by = objective_value(request.objective, other) / objective_value(request.objective, best) - 1
    if request.objective == "memory" and abs(lost_by) <= SAME_MEMORY:
        lost_by = 0.0
    if request.objective == "memory":
        differences = _differences(memory_parts(best.prediction), memory_parts(other.prediction))
    else:
        # GPU-seconds where the number of GPUs differs, so that the terms explain the objective.
        scale = other.plan.world / best.plan.world if request.objective == "cost" else 1.0
        differences = _differences(
            resource_seconds(best.prediction),
            {name: seconds * scale for name, seconds in resource_seconds(other.prediction).items()},
        )
    term, amount = max(differences.items(), key=lambda item: item[1])
    if lost_by <= 0:
        term, amount = "", 0.0
    order = order_held(abs(lost_by)) if lost_by and request.objective != "memory" else None
    return replace(other, lost_by=lost_by, lost_to_term=term, lost_amount=amount, order=order)


def resource_seconds(prediction: Prediction) -> dict[str, float]:
    """Seconds of the step by the resource they wait for; leaves of no resource under their own title."""
    owner = {leaf: resource for resource, leaves in RESOURCES.items() for leaf in leaves}
    owner[CORRECTION] = owner["pipeline_bubble"]
    seconds: dict[str, float] = {}
    for leaf in prediction.time.leaves():
        name = owner.get(leaf.name, leaf.title)
        seconds[name] = seconds.get(name, 0.0) + leaf.value
    return seconds


def memory_parts(prediction: Prediction) -> dict[str, float]:
    """Bytes of the worst rank by component."""
    return {part.title: part.value for part in prediction.memory.parts}


def _differences(best: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: other.get(name, 0.0) - best.get(name, 0.0) for name in {**best, **other}}
