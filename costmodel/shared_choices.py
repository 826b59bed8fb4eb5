"""Layers that share the tokens which an indexer picked for one of them: they stand on one virtual pipeline stage.

Source: Megatron-Core 0.19.2, experimental_attention_variant_module_specs.py, _validate_dsa_index_share_pipeline_split.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from costmodel.model_spec import ModelSpec


def inseparable(model: ModelSpec) -> tuple[int, ...]:
    """Layers of each group that no stage may part, first to last: a layer that picks and those behind it. [1]"""
    if model.indexer is None:
        return (1,) * model.num_layers
    begins = [index for index in range(model.num_layers) if model.indexer.picks(index)]
    return tuple(end - begin for begin, end in pairwise([*begins, model.num_layers]))


def parted(model: ModelSpec, sizes: Sequence[int]) -> bool:
    """Whether some virtual stage, of `sizes` layers each, begins with a layer that shares a choice made before it."""
    if model.indexer is None:
        return False
    begins = np.cumsum([0, *sizes])[:-1]
    return not all(model.indexer.picks(int(begin)) for begin, size in zip(begins, sizes, strict=True) if size)
