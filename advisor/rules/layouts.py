"""What is wrong with the pipeline layout of each row, as Megatron-Core checks it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import BALANCED, expand
from costmodel.model_spec import ModelSpec
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
