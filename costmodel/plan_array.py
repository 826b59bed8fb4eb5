"""Many plans at once, their knobs as columns: their inputs, and what each takes."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.binding import bind, fuses_activation, recipe_formats, repeats_layers
from costmodel.bound import Bound
from costmodel.columns import Array, Columns
from costmodel.compiled import CompiledModel, Function
from costmodel.family import ZERO, compiled_family, family_features
from costmodel.host_memory import fullest_node, offloads
from costmodel.model_spec import ModelSpec
from costmodel.plan_inputs import plan_inputs
from costmodel.workload import Workload
from hardware_db import Cluster

# Cells evaluated at once: the temporaries of a chunk stay in the processor's cache.
CHUNK = 131072
# Chunks evaluated side by side, at most: each more takes some 100 MB. NumPy lets others run while it computes.
MOST_THREADS = 4


@dataclass(frozen=True)
class PlanArray:
    """Plans of one precision recipe, in one setting.

    columns: an array for each knob, which broadcast. The last axis may be long; axes before it hold options that every
    plan of the last axis takes, and what does not depend on them is worked out once for all. stack: family-release,
    None for the cluster's usual one.
    """

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    precision: str
    columns: Columns
    stack: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the columns together: options, then rows."""
        return np.broadcast_shapes(*(np.shape(column) for column in self.columns.values()))

    @property
    def features(self) -> frozenset[str]:
        """What the formulas of these plans need."""
        return family_features(self.model, self.workload, self.columns)

    @property
    def compiled(self) -> CompiledModel:
        """The cost of their family."""
        return compiled_family(self.features)

    def padded_to_longest(self) -> PlanArray:
        """The same plans where sequences are padded to the longest of a batch; see `Workload.padded_to_longest`."""
        return replace(self, workload=self.workload.padded_to_longest())

    def bound(self) -> dict[str, Bound]:
        """Every input that is not of a plan. ValueError when the GPU lacks the precision."""
        return bind(self.model, self.workload, self.cluster, self.precision, self.stack)

    def inputs(self) -> dict[str, Array]:
        """Every input that is of a plan, an array over the plans or one number for all."""
        return plan_inputs(
            self.columns,
            model=self.model,
            workload=self.workload,
            domain=self.cluster.domain_size,
            **recipe_formats(self.precision),
            repeats_layers=repeats_layers(self.model, self.cluster, self.stack),
            fuses_activation=fuses_activation(self.model, self.cluster, self.stack),
        )


def evaluate_plans(plans: PlanArray) -> dict[str, Array]:
    """step_time [s], peak_memory [byte] and model_flops [FLOP] of every plan.

    Results have the columns' axes in reverse: for columns of one axis, a value for each row.
    The caller guarantees that global_batch is a multiple of micro_batch x dp in every plan.
    Raises ValueError when the family's cost is not built or the GPU lacks the precision.
    """
    found = _evaluate(plans, plans.compiled.search)
    if plans.workload.longest < plans.workload.seq_len:
        timed = _evaluate(plans.padded_to_longest(), plans.compiled.search)
        free = np.broadcast_to(~padded_to_seq_len(plans.columns), plans.shape).T
        found |= {name: np.where(free, timed[name], found[name]) for name in ("step_time", "model_flops")}
    return found


def padded_to_seq_len(columns: Columns) -> NDArray[np.bool_]:
    """Rows in which unpacked sequences are padded to seq_len, whatever the longest of the batch.

    Stages, an encoder's among them, and experts make Megatron-Bridge do so (rule padded_full_length), and CUDA graphs
    need it (graph_padded).
    """
    least = {"pp": 1.0, "ep": 1.0, "encoder_pp": 0.0, "cuda_graph": 0.0}
    return np.asarray(sum(columns.get(name, ZERO) > above for name, above in least.items()) > 0)


def host_share(plans: PlanArray) -> Array | None:
    """The least that offloading takes of the fullest node's host memory, over what that node has, of every plan. [1]

    In the order of `evaluate_plans`; None where no plan offloads or the node's memory is not on file.
    """
    whole, per_node = plans.cluster.host_memory, plans.cluster.gpus_per_node
    if whole is None or not offloads(plans.inputs()):
        return None
    compiled = plans.compiled
    found = _evaluate(plans, lambda inputs: {"taken": fullest_node(compiled, inputs, per_node)})
    return found["taken"] / whole


def _evaluate(plans: PlanArray, function: Function) -> dict[str, Array]:
    """What a function of all inputs gives of every plan, a chunk of layouts at a time."""
    scalars = {name: entry.value for name, entry in plans.bound().items()}
    inputs = plans.inputs()
    scalars |= {name: float(value) for name, value in inputs.items() if not np.ndim(value)}
    arrays = {name: value for name, value in inputs.items() if np.ndim(value)}
    *options, rows = plans.shape
    results: dict[str, Array] = {}
    step = max(CHUNK // math.prod(options), 1)

    def fill(start: int) -> None:
        part = slice(start, start + step)
        some = {name: array[..., part] if array.shape[-1] > 1 else array for name, array in arrays.items()}
        for name, values in function(scalars | some).items():
            found = results.setdefault(name, np.empty((rows, *reversed(options))))[part]
            found[...] = np.broadcast_to(values, found.shape[::-1]).T

    starts = range(0, rows, step)
    for first in starts[:1]:  # makes the results
        fill(first)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as threads:
        list(threads.map(fill, starts[1:]))
    return results


def plan_values(plans: PlanArray) -> dict[str, Any]:
    """Every quantity of some plans and every input, by name: an array over the plans, or a number for all of them.

    Step times are `evaluate_plans`'s, of padded sequences where those are timed; what is behind them has seq_len.
    """
    known: dict[str, Any] = {name: entry.value for name, entry in plans.bound().items()}
    known |= {
        name: np.float64(value) if not np.ndim(value) else value for name, value in plans.inputs().items()
    }
    found = known | plans.compiled.full(known)
    if plans.workload.longest < plans.workload.seq_len:
        found["step_time"] = evaluate_plans(plans)["step_time"]
    return found
