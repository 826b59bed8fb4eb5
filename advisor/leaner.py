"""Knobs of the optimizer that the search leaves alone and that free memory, as pins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.request import Request
from costmodel.stack import default_stack, load_stack

# What the precision-aware optimizer keeps in 16 bits.
REMAINDER: dict[str, Any] = {"precision_aware_optimizer": True}
MOMENTS: dict[str, Any] = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
SHARES = (25, 50, 75, 100)

Choice = tuple[list[dict[str, Any]], str]


def optimizer_choices(request: Request) -> tuple[Choice, ...]:
    """Ways to a leaner optimizer, each as sizes of it, of which the fastest counts, and in words."""
    # Megatron-LM's arguments refuse offloading without the precision-aware optimizer.
    aware = REMAINDER if load_stack(request.stack or default_stack()).megatron_core else {}
    return (
        ([REMAINDER], "16-bit remainder of the master weights"),
        ([REMAINDER | MOMENTS], "16-bit remainder and moments"),
        ([{"optimizer_offload": share} | aware for share in SHARES], "percent of its state in host memory"),
    )


def left_free(request: Request, pins: Mapping[str, Any]) -> bool:
    """Whether the request's own pins say nothing else."""
    return all(request.pins.get(name, value) == value for name, value in pins.items())
