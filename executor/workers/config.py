"""Megatron-Core's configuration objects from plain values: where names become types of torch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
import torch.nn.functional as functional

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.uint8,
}


def activation(name: str) -> Any:
    """Megatron-Core's function for an activation of ours; fast_gelu, which it compiles, as one kernel of PyTorch."""
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu

    tanh_gelu = functools.partial(functional.gelu, approximate="tanh")
    known = {"fast_gelu": tanh_gelu, "quick_gelu": quick_gelu, "squared_relu": squared_relu}
    return known.get(name) or getattr(functional, name)


def make(kind: Any, fields: dict[str, Any], notes: list[str]) -> Any:
    """An object of a configuration class; fields that this release does not have are left out with a note."""
    known = {field.name for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in known:
            notes.append(f"{name} is not a field of this Megatron-Core's {kind.__name__}: left out")
        elif name.endswith("_dtype") and name != "moe_router_dtype":
            values[name] = DTYPES[value]
        elif name == "activation_func":
            values[name] = activation(value)
        elif name == "attention_backend":
            from megatron.core.transformer.enums import AttnBackend

            values[name] = AttnBackend[value]
        elif name == "window_size" and value is not None:
            values[name] = tuple(value)
        else:
            values[name] = value
    return kind(**values)
