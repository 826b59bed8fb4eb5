"""Plan inputs that rank arithmetic gives: blocks of each stage, and groups that straddle domains.

Each distinct combination of sizes is worked out once, however many rows have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import Layout, block_parameters, block_weights, plan_layout
from costmodel.model_spec import ModelSpec
from costmodel.placement import smaller_side, used_domain
from costmodel.symbols import BLOCKS

Array = NDArray[np.float64]
Columns = Mapping[str, Array]
LAYOUT_COLUMNS = (
    "pp",
    "vpp",
    "account_embedding",
    "account_loss",
    "pipeline_layout",
    "first_stage_layers",
    "last_stage_layers",
)
# What `placed` gives, in order.
PLACED = ("domain", "cp_straddle", "dp_straddle", "ep_straddle", "edp_straddle")


class Texts:
    """Numbers for texts, so that a column can hold them; 0 is the empty text."""

    def __init__(self) -> None:
        self.known = [""]

    def code(self, text: str) -> int:
        """The number of a text; a new one is remembered."""
        if text not in self.known:
            self.known.append(text)
        return self.known.index(text)


LAYOUTS = Texts()


def layout_inputs(c: Columns, model: ModelSpec, seq_len: int) -> dict[str, Array]:
    """Blocks of the stages `costmodel.symbols.STAGES`, their layers and MTP heads."""
    combinations, where = distinct([c[name] for name in LAYOUT_COLUMNS])
    records = [_record(model, seq_len, tuple(map(int, numbers))) for numbers in combinations.T]
    return {name: _spread([record[name] for record in records], where) for name in records[0]}


def layout_by_numbers(model: ModelSpec, seq_len: int, numbers: Sequence[int], text: str) -> Layout:
    """The layout of LAYOUT_COLUMNS' numbers, with its text in place of the text's. ValueError where it cannot be."""
    pp, vpp, embedding, loss, _, first, last = numbers
    return plan_layout(
        model,
        pp,
        vpp,
        account_embedding=bool(embedding),
        account_loss=bool(loss),
        text=text,
        first=first,
        last=last,
        seq_len=seq_len,
    )


@lru_cache(maxsize=4096)
def _record(model: ModelSpec, seq_len: int, numbers: tuple[int, ...]) -> Mapping[str, float]:
    """The inputs of one layout; numbers: of LAYOUT_COLUMNS. Precisions and neighbours of a plan have the same ones."""
    text = LAYOUTS.known[numbers[LAYOUT_COLUMNS.index("pipeline_layout")]]
    layout = layout_by_numbers(model, seq_len, numbers, text)
    return stage_record(model, layout, seq_len)


def stage_record(model: ModelSpec, layout: Layout, seq_len: int) -> dict[str, float]:
    """The inputs of one layout: blocks of the stages, their layers, MTP heads."""
    pp = len(layout.chunks)
    weights = block_weights(model, seq_len)
    loads = [_stage_sum(layout, stage, weights) for stage in range(pp)]
    parameters = block_parameters(model)
    between = range(1, pp - 1) or [min(1, pp - 1)]
    stages = {
        "first": 0,
        "second": between[0],
        "fullest": max(between, key=lambda stage: _stage_sum(layout, stage, parameters)),
        "pace": int(np.argmax(loads)),
        "last": pp - 1,
    }
    record = {
        f"{block}_{name}": float(layout.stage_count(stage, block))
        for name, stage in stages.items()
        for block in BLOCKS
    }
    record |= {f"layers_{name}": float(layout.stage_layers(stage)) for name, stage in stages.items()}
    record |= {
        f"mtp_{name}": float(sum(chunk.mtp for chunk in layout.chunks[stage]))
        for name, stage in stages.items()
    }
    record["fullest_stage"] = float(stages["fullest"])
    record["mtp_heads"] = float(sum(chunk.mtp for stage in layout.chunks for chunk in stage))
    return record


def _stage_sum(layout: Layout, stage: int, weights: Mapping[str, float]) -> float:
    """Of what one block of each kind has, over the blocks of a stage."""
    return sum(weights.get(block, 0.0) * layout.stage_count(stage, block) for block in BLOCKS)


def placement_inputs(c: Columns, domain: int) -> dict[str, Array]:
    """GPUs that the job uses of a domain, and for each kind of group the smaller side of a straddling one."""
    world = c["tp"] * c["pp"] * c["cp"] * c["dp"]
    sizes = ("tp", "pp", "cp", "dp", "ep", "etp")
    combinations, where = distinct([*(c[name] for name in sizes), c["nvl_segment"], world])
    found = [placed(domain, *map(int, key)) for key in combinations.T]
    return {name: _spread([one[index] for one in found], where) for index, name in enumerate(PLACED)}


def distinct(columns: Sequence[Array]) -> tuple[Array, NDArray[np.intp]]:
    """Distinct rows of some columns (one a column of the result), and which of them each row is."""
    arrays = np.broadcast_arrays(*columns)
    starts, run = runs(arrays)
    if len(starts) == 1:
        return np.stack([np.ravel(array)[:1] for array in arrays]), run
    code = np.zeros(len(starts), dtype=np.int64)
    short = [np.ravel(array)[starts] for array in arrays]
    for array in short:
        values, number = np.unique(array, return_inverse=True)
        code = code * len(values) + number
    _, first, where = np.unique(code, return_index=True, return_inverse=True)
    return np.stack([array[first] for array in short]), where[run]


def runs(columns: Sequence[Array]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First rows of the runs of equal rows of some columns, and the run of each row."""
    arrays = np.broadcast_arrays(*columns)
    new = np.ones(arrays[0].size, dtype=bool)
    new[1:] = False
    for array in arrays:
        flat = np.ravel(array)
        new[1:] |= flat[1:] != flat[:-1]
    return np.flatnonzero(new), (np.cumsum(new) - 1).reshape(arrays[0].shape)


def _spread(values: list[float], where: NDArray[np.intp]) -> Array:
    """The value of each row; a single number when all are the same."""
    array = np.array(values, dtype=np.float64)
    return array[0] if (array == array[0]).all() else array[where]


def placed(
    domain: int, tp: int, pp: int, cp: int, dp: int, ep: int, etp: int, segment: int, world: int
) -> tuple[int, ...]:
    """The inputs PLACED of one plan of parallel sizes."""
    used = used_domain(domain, world, segment)
    block = tp * cp * dp
    if (used & (used - 1) == 0 and block & (block - 1) == 0) or world <= used:
        return used, 0, 0, 0, 0
    edp = max(block // (ep * etp), 1)
    groups = ((cp, tp), (dp * cp, tp), (ep, etp), (edp, ep * etp))
    return used, *(smaller_side(used, block, pp, ranks, stride) for ranks, stride in groups)
