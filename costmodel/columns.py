"""Plans as columns: one array per knob, so that a whole search is one evaluation.

Choice knobs are integer codes (their index in the catalogue's choices), flags 0 or 1, recompute
modules one column each. `costmodel.plan_inputs` turns columns into the input symbols of the group "plan".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.knobs import KNOBS
from costmodel.plan import RECOMPUTE_MODULES, Plan
from costmodel.stage_inputs import LAYOUTS

Array = NDArray[np.float64]
Columns = Mapping[str, Array]

CODED = tuple(name for name, knob in KNOBS.items() if knob.kind == "choice" and name != "precision")
NUMERIC = tuple(name for name, knob in KNOBS.items() if knob.kind in ("int", "float", "bool"))
# A list knob is a column for each of its items: recompute_mlp, offload_core_attn, graph_attn.
ITEM_PREFIX = {"recompute_modules": "recompute", "offload_modules": "offload", "cuda_graph_scope": "graph"}
ITEMS = {
    f"{prefix}_{item}": (knob, item) for knob, prefix in ITEM_PREFIX.items() for item in KNOBS[knob].choices
}
MODULE_COLUMNS = tuple(f"recompute_{module}" for module in RECOMPUTE_MODULES)


def code(name: str, value: str) -> int:
    """Integer code of a choice knob's value, or of a pipeline layout."""
    return LAYOUTS.code(value) if name == "pipeline_layout" else KNOBS[name].choices.index(value)


@cache
def default_columns() -> MappingProxyType[str, float]:
    """Every column at the knob's default."""
    return MappingProxyType({name: float(array[0]) for name, array in plan_columns([Plan()]).items()})


def plan_columns(plans: Sequence[Plan]) -> dict[str, Array]:
    """Columns of some plans, in order. Precision is not a column: one evaluation has one precision."""
    columns = {name: np.array([float(getattr(plan, name)) for plan in plans]) for name in NUMERIC}
    columns |= {
        name: np.array([float(code(name, getattr(plan, name))) for plan in plans])
        for name in (*CODED, "pipeline_layout")
    }
    for column, (knob, item) in ITEMS.items():
        columns[column] = np.array([float(item in _acting(plan, knob)) for plan in plans])
    return columns


def _acting(plan: Plan, knob: str) -> tuple[str, ...]:
    """Items of a list knob that act: recompute modules only with selective recompute."""
    items: tuple[str, ...] = plan.recomputed_modules if knob == "recompute_modules" else getattr(plan, knob)
    return items


def plan_from_columns(columns: Columns, index: int, precision: str) -> Plan:
    """The plan of row `index`; columns that are missing take the default."""
    row = {name: float(column[index if len(column) > 1 else 0]) for name, column in columns.items()}
    values: dict[str, Any] = {name: _READ[name](number) for name, number in row.items() if name in _READ}
    for knob in ITEM_PREFIX:
        values[knob] = []
    for column, (knob, item) in ITEMS.items():
        if row.get(column):
            values[knob].append(item)
    return Plan(**values, precision=precision)


def _readers() -> dict[str, Callable[[float], Any]]:
    """How a number of a column is read, by the knob whose value it is; items of list knobs apart."""
    kinds: dict[str, Callable[[float], Any]] = {"bool": bool, "int": int, "float": float}
    coded = {name: lambda number, of=KNOBS[name].choices: of[int(number)] for name in CODED}
    layout = {"pipeline_layout": lambda number: LAYOUTS.known[int(number)]}
    return {name: kinds[KNOBS[name].kind] for name in NUMERIC} | coded | layout


_READ = _readers()


def collapsed(columns: Columns) -> dict[str, Array]:
    """The columns as floats, those with one value in every row as single numbers."""
    found: dict[str, Array] = {}
    for name, column in columns.items():
        array = np.asarray(column, dtype=np.float64)
        same = array.ndim and array.size and (array == array.flat[0]).all()
        found[name] = np.asarray(array.flat[0]) if same else array
    return found
