"""The blocks of one pipeline stage one by one: kind, what attention sees, and whether all of it is computed again."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.layout import blocks_of, layout_of
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan

FULL, WINDOW, CHUNK = "full", "window", "chunk"


@dataclass(frozen=True)
class Placed:
    """One block of a stage. sees: of an attention block: everything, a window or a chunk; again: full recompute."""

    block: str
    sees: str
    again: bool
    mtp: bool = False


@dataclass(frozen=True)
class PlacedChunk:
    """A model chunk of a stage, block by block; `costmodel.layout.Chunk` counts them by kind.

    inputs: layers under full recompute, which keep their input; mtp: heads [1]. first, last: of all chunks of the plan;
    ends: the decoder's last layer stands here, which need not be the last chunk.
    """

    blocks: tuple[Placed, ...]
    inputs: int
    mtp: int
    first: bool
    last: bool
    ends: bool


def placed_chunks(plan: Plan, model: ModelSpec, stage: int, seq_len: int) -> tuple[PlacedChunk, ...]:
    """The chunks of one stage.

    Full recompute takes the first layers of every chunk, and none inside MTP heads. Source: Megatron-Core 0.16.1,
    transformer_block.py (method block) and multi_token_prediction.py.
    """
    layout = layout_of(plan, model, seq_len)
    kinds, inside = model.layer_kinds(), model.mtp_layer_kinds()
    found, start = [], 0
    for virtual in range(plan.pp * plan.vpp):
        one = layout.chunks[virtual % plan.pp][virtual // plan.pp]
        if virtual % plan.pp == stage:
            again = _computed_again(plan, one.layers)
            blocks = [
                Placed(name, _sees(model, start + index, name), index < again)
                for index in range(one.layers)
                for name in blocks_of(model, kinds[start + index])
            ]
            blocks += [
                Placed(name, _sees(model, model.num_layers - 1, name), False, mtp=True)
                for kind in inside * one.mtp
                for name in blocks_of(model, kind)
            ]
            last = virtual == plan.pp * plan.vpp - 1
            ends = start < model.num_layers == start + one.layers
            found.append(PlacedChunk(tuple(blocks), again, one.mtp, virtual == 0, last, ends))
        start += one.layers
    return tuple(found)


def _computed_again(plan: Plan, layers: int) -> int:
    """Layers of a chunk under full recompute; a number is for the whole stage, shared by its chunks. [1]"""
    if plan.recompute != "full":
        return 0
    return min(plan.recompute_num_layers // plan.vpp, layers) if plan.recompute_num_layers else layers


def _sees(model: ModelSpec, index: int, block: str) -> str:
    """What attention of a layer sees; every n-th sees everything. Source: Megatron-Core, window_attn_skip_freq."""
    window, number = model.sliding_window, index + 1
    if model.windows_apart:
        return WINDOW if block == "window_attention" else FULL
    if window is not None:
        return WINDOW if window.covers(index) else FULL
    if model.attention_chunk:
        interval = model.nope_layer_interval
        return FULL if interval and number % interval == 0 else CHUNK
    return FULL
