"""Values of Megatron-Core's fields as a configuration may hold them, or one line on what they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executor.megatron_training import SHARDING

WHOLE = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
NUMBERS = ("moe_expert_capacity_factor",)
WORDS = {"data_parallel_sharding_strategy": SHARDING}
# Fields that hold several values, or a word for them.
LISTS = (
    "hierarchical_context_parallel_sizes",
    "pipeline_model_parallel_layout",
    "cuda_graph_scope",
    "cuda_graph_modules",
)


def with_kinds(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with numbers that stand in quotes as numbers. ValueError in one line for another kind of value.

    A size that is None is left out, as the frameworks take 1 for it.
    """
    found = dict(fields)
    for name in (*WHOLE, *NUMBERS):
        if name in found:
            found[name] = _number(name, found[name])
    for name, words in WORDS.items():
        if name in found and found[name] not in words:
            raise ValueError(f"{name} {found[name]!r:.60} is not one of {', '.join(words)}.")
    for name in LISTS:
        value = found.get(name)
        if value is not None and not isinstance(value, str | list | tuple):
            raise ValueError(
                f"{name} {value!r:.60} is neither a word nor a list. Correct it in the configuration."
            )
    layout = found.get("pipeline_model_parallel_layout")
    if isinstance(layout, list) and not all(isinstance(stage, str | list) for stage in layout):
        raise ValueError(
            f"pipeline_model_parallel_layout {layout!r:.60} is no list of stages, each a list of words. "
            "Correct it in the configuration."
        )
    return {name: value for name, value in found.items() if value is not None or name not in WHOLE[:2]}


def _number(name: str, value: Any) -> Any:
    kinds = int if name in WHOLE else int | float
    if isinstance(value, str):
        try:
            return int(value) if name in WHOLE else float(value)
        except ValueError:
            pass
    elif value is None or (isinstance(value, kinds) and not isinstance(value, bool)):
        return value
    what = "whole number" if name in WHOLE else "number"
    raise ValueError(f"{name} {value!r:.60} is not a {what}. Correct it in the configuration.")
