"""A space of plans as a grid: layouts along one axis, options that every layout may take along axes of their own.

NumPy broadcasts over the axes, so that a rule or a cost is worked out once for what it depends on: what follows from
the layout alone once a layout, however many ways of recomputing activations it is combined with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.request import Request
from advisor.rules import Mask, PlanWords, Rule, Violation, error_masks, violation
from advisor.rules.facts import facts
from advisor.space.options import SPLIT_KNOBS, Columns, Row
from costmodel.columns import ITEMS, Array, collapsed

# Columns that are arrays however many layouts there are.
SIZES = ("tp", "pp", "cp", "dp", "ep", "etp", "nvl_segment")
LAYOUT_AXES = (*SIZES, "micro_batch", "vpp", "of_pp", *SPLIT_KNOBS)
# Tables of these are options of every layout; the last ones to be crossed, for others multiply layouts.
OPTIONS = {"tp_comm_overlap", "fp8_param_gather", "cuda_graph", "overlap_moe_comm", "recompute"}
Rows = slice | NDArray[np.intp]
ALL = slice(None)


@dataclass
class Space:
    """The legal plans of one precision.

    grid: one array per knob, which broadcast: layouts along the last axis, each table of options on an axis before
    those of earlier tables. alive: the legal cells. Plans are numbered layout by layout, and of one layout with the
    later tables' options fastest. enumerated: combinations of the declared axes that use all GPUs, each of which is
    legal, repeated (a knob does nothing beside the others) or rejected: rule id -> combinations that it was the first
    to drop, also those that were never built. fatal: rules that every plan broke that was there, or, where no rule
    forbids all, those that one of the last plans broke and no other; examples: what a rule says about one.
    """

    precision: str
    grid: Columns
    alive: Mask
    enumerated: int = 0
    repeated: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    fatal: set[str] = field(default_factory=set)
    examples: dict[str, Violation] = field(default_factory=dict)

    @property
    def options(self) -> int:
        """Cells of one layout, legal or not. [1]"""
        return int(np.prod(self.alive.shape[:-1]))

    @cached_property
    def cells(self) -> NDArray[np.intp]:
        """The cell of each plan, counted in the order of plans. For a space that is built."""
        return np.flatnonzero(np.ascontiguousarray(self.alive.T))

    @property
    def legal(self) -> int:
        """Number of legal plans. [1]"""
        return len(self.cells)

    @cached_property
    def columns(self) -> Columns:
        """One array per knob, over the legal plans; what all plans share has one element. For a space that is built."""
        return {
            name: self.column(name) if name in LAYOUT_AXES or array.size > 1 else array.reshape(1)
            for name, array in self.grid.items()
        }

    def some(self, rows: Rows) -> Columns:
        """Every knob's value in the legal plans of some numbers."""
        return {name: self.column(name, rows) for name in self.grid}

    def column(self, name: str, rows: Rows = ALL) -> Array:
        """One knob's value in every legal plan, or in those of some numbers."""
        array, cells = self.grid[name], self.cells[rows]
        if array.ndim == 1:
            return np.broadcast_to(array, self.alive.shape[-1])[cells // self.options]
        place = np.unravel_index(cells, self.alive.T.shape)
        return np.broadcast_to(array, self.alive.shape)[place[::-1]]

    def of_plans(self, values: Array) -> Array:
        """Of values for every cell, as `costmodel.plan_array.evaluate_plans` orders them, those of the plans."""
        return values.reshape(-1)[self.cells]

    def layout(self, name: str) -> Array:
        """One knob's value in every layout, of a knob that layouts differ in."""
        return np.broadcast_to(self.grid[name], self.alive.shape[-1])

    def cross(self, table: list[Row]) -> None:
        """Combine every plan with every row of a table: knobs of `OPTIONS` on an axis of their own."""
        self.enumerated *= len(table)
        self.repeated *= len(table)
        self.rejected = {rule: count * len(table) for rule, count in self.rejected.items()}
        if not OPTIONS.intersection(table[0]):
            assert self.alive.ndim == 1, "what multiplies layouts comes before their options"
            self.grid = cross(self.grid, table)
            self.alive = np.repeat(self.alive, len(table))
            return
        axis = (len(table),) + (1,) * self.alive.ndim
        for name in table[0]:
            self.grid[name] = np.array([row[name] for row in table]).reshape(axis)
        self.alive = np.broadcast_to(self.alive, (len(table), *self.alive.shape))

    def keep(self, mask: Mask) -> None:
        """Drop the cells where `mask` is false; layouts without options go altogether."""
        self.alive = self.alive & mask
        if self.alive.ndim == 1:
            self.drop_empty_layouts()

    def keep_useful(self, mask: Mask) -> None:
        """Drop the cells where `mask` is false because others are the same plan."""
        there = int(np.count_nonzero(self.alive))
        self.keep(mask)
        self.repeated += there - int(np.count_nonzero(self.alive))

    def drop_empty_layouts(self) -> None:
        """Keep the layouts of which some plan is legal."""
        some = self.alive.any(axis=tuple(range(self.alive.ndim - 1)))
        keep(self.grid, some)
        self.alive = self.alive[..., some]


def cross(columns: Columns, table: list[Row]) -> Columns:
    """Every layout with every row of the table."""
    rows, options = len(columns["tp"]), len(table)
    crossed = {
        name: np.repeat(array, options) if name in LAYOUT_AXES or len(array) > 1 else array
        for name, array in columns.items()
    }
    for name in table[0]:
        crossed[name] = np.tile(np.array([row[name] for row in table]), rows)
    return crossed


def keep(columns: Columns, mask: Mask) -> None:
    """Drop the layouts where `mask` is false."""
    if mask.all():
        return
    kept = np.flatnonzero(mask)
    for name, array in columns.items():
        if name in LAYOUT_AXES or array.shape[-1] > 1:
            columns[name] = array.take(kept, axis=-1)


def drop_illegal(space: Space, request: Request, rules: list[Rule]) -> list[Rule]:
    """Drop and count the plans that break a rule whose knobs are all decided; returns the other rules."""
    decided = set(space.grid) | {"precision"}
    decided |= {knob for column, (knob, _) in ITEMS.items() if column in decided}
    ready = [rule for rule in rules if decided.issuperset(rule.knobs)]
    waiting = [rule for rule in rules if not decided.issuperset(rule.knobs)]
    model, workload, cluster = request.model, request.workload, request.cluster
    columns = collapsed(space.grid)
    words = facts(model, workload, cluster, space.precision, columns, request.gpus, request.settings)
    masks = error_masks(words, ready)
    faults = np.zeros(space.alive.shape, dtype=np.int16)
    for broken in masks.values():
        faults += broken
    only = faults == 1
    left = left_before = space.alive
    there = np.count_nonzero(space.alive)
    for rule in (each for each in ready if each.id in masks):
        mask = space.alive & masks[rule.id]
        if count := int(np.count_nonzero(mask)):
            # The clearest example is a plan with this fault alone.
            alone = mask & only
            cell = _first(alone if alone.any() else mask)
            if first := int(np.count_nonzero(left & mask)):
                space.rejected[rule.id] = first
                left = left & ~mask
            space.fatal |= {rule.id} if count == there else set()
            row = PlanWords({name: _at(word, cell) for name, word in words.items()})
            space.examples[rule.id] = violation(rule, row)
    space.keep(faults == 0)
    if there and not space.alive.any() and not space.fatal:
        # No rule forbids all: what forbids plans that hold to every other rule left the last ones out.
        alone = [name for name, broken in masks.items() if (left_before & broken & only).any()]
        space.fatal |= set(alone)
    return waiting


def _first(mask: Mask) -> tuple[int, ...]:
    """The first cell of a mask in the order of plans."""
    layout = int(np.argmax(mask.any(axis=tuple(range(mask.ndim - 1)))))
    options = mask[..., layout].T
    place = np.unravel_index(int(np.argmax(options)), options.shape)
    return (*(int(index) for index in reversed(place)), layout)


def _at(word: Any, cell: Sequence[int]) -> Any:
    """A word's value in one cell."""
    array = np.asarray(word)
    places = zip(cell[len(cell) - array.ndim :], array.shape, strict=True)
    return array[tuple(place if size > 1 else 0 for place, size in places)] if array.ndim else word
