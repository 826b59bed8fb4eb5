"""The pipeline layout of each row: what is wrong with it, as Megatron-Core checks it, and layers of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import BALANCED, expand, plan_layout
from costmodel.model_spec import ModelSpec
from costmodel.shared_choices import parted
from costmodel.stage_inputs import LAYOUTS, distinct


def layout_problems(model: ModelSpec, words: Mapping[str, Any]) -> NDArray[np.str_]:
    """One line for each row, empty where the layout fits or there is none."""
    columns = [np.asarray(words[name]) for name in ("pipeline_layout", "pp", "vpp")]
    fitting = [number for number, text in enumerate(LAYOUTS.known) if text in ("", BALANCED)]
    if np.isin(columns[0], fitting).all():
        return np.array("")
    combinations, where = distinct(columns)
    found = [
        layout_problem(model, LAYOUTS.known[int(code)], int(pp), int(vpp)) for code, pp, vpp in combinations.T
    ]
    return np.array(found)[where]


def layout_layers(model: ModelSpec, words: Mapping[str, Any]) -> NDArray[np.float64]:
    """Layers of the fullest stage of each row that has a layout, see `fullest_stage`; 0 without one. [1]"""
    columns = [np.asarray(words[name]) for name in ("pipeline_layout", "pp", "vpp")]
    if not columns[0].any() or not np.any(words["recompute_num_layers"]):
        return np.array(0.0)
    combinations, where = distinct(columns)
    seq_len = int(words["seq_len"])
    found = [
        fullest_stage(model, LAYOUTS.known[int(code)], int(pp), int(vpp), seq_len)
        for code, pp, vpp in combinations.T
    ]
    return np.array(found, dtype=float)[where]


@lru_cache(maxsize=4096)
def fullest_stage(model: ModelSpec, text: str, pp: int, vpp: int, seq_len: int) -> int:
    """Layers of the fullest chunk that a layout makes, times vpp: so many of a stage can be recomputed. [1]

    0 without a layout, and all layers where it is none: that has a rule of its own.
    """
    if not text:
        return 0
    if layout_problem(model, text, pp, vpp) or pp * vpp > model.num_layers + 1:
        return model.num_layers
    layout = plan_layout(model, pp, vpp, text=text, seq_len=seq_len)
    return vpp * max(chunk.layers for chunks in layout.chunks for chunk in chunks)


@lru_cache(maxsize=4096)
def layout_problem(model: ModelSpec, text: str, pp: int, vpp: int) -> str:
    """What is wrong with one layout text, or nothing. Source: pipeline_parallel_layer_layout.py."""
    if text in ("", BALANCED):
        return ""
    try:
        stages = expand(text)
    except ValueError as error:
        return str(error).partition(". ")[0]
    letters = "".join(stages)
    if len(stages) != pp * vpp:
        return f"pipeline_layout has {len(stages)} virtual stages, pp x vpp = {pp} x {vpp} = {pp * vpp}"
    if letters.count("E") != 1 or not letters.startswith("E"):
        return "pipeline_layout must start with the embedding E, and have one"
    if letters.count("L") != 1 or not letters.endswith("L"):
        return "pipeline_layout must end with the loss L, and have one"
    layers, heads = letters.count("t"), letters.count("m")
    if layers != model.num_layers:
        return f"pipeline_layout places {layers} decoder layers, {model.name} has {model.num_layers}"
    # A run without MTP is a usual variant of a model that has heads.
    if heads not in (0, model.mtp_layers):
        return f"pipeline_layout places {heads} MTP heads, {model.name} has {model.mtp_layers}"
    if parted(model, [stage.count("t") for stage in stages]):
        return "pipeline_layout begins a virtual stage with a layer that shares the tokens picked in one before it"
    return _mtp_problem(stages, pp, vpp)


def _mtp_problem(stages: list[str], pp: int, vpp: int) -> str:
    holders = [index for index, stage in enumerate(stages) if "m" in stage]
    if not holders:
        return ""
    text = "".join(stages)
    if text.index("m") < text.rindex("t"):
        return "pipeline_layout has an MTP head m before the last decoder layer"
    if len(holders) > 1:
        return f"pipeline_layout spreads MTP heads m over {len(holders)} virtual stages, and they stay on one"
    if holders[0] // pp != vpp - 1 or (pp > 1 and holders[0] % pp == 0):
        return "pipeline_layout must place MTP heads m on the last chunk of a stage other than the first"
    return ""
