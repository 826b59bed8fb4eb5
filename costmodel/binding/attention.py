"""Constants of fused attention kernels as inputs: by pass, of the stack's kernel and the model's heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.binding.tables import leaf, leaf_if_known, limited, power_factor
from costmodel.bound import Bound
from costmodel.stack import Stack
from hardware_db import Cluster


@dataclass(frozen=True)
class Nearest:
    """What a kernel without a table of its own takes from the nearest that has one.

    forward, backward: its rate over that kernel's; half_dim: of its softmax, None where as that kernel's. [1]
    """

    table: str
    forward: float
    backward: float
    half_dim: float | None = None


# Kernels without tables of their own. FlashAttention-2 is 1.3 to 2.5 times as fast as FlashAttention in Triton
# (T. Dao, arXiv:2307.08691, sec. 4.1, from memory). Forward and backward together llm-foundry 0.4.0's kernel had 0.4 of
# its rate on heads of 128 and 0.6 on heads of 64 on an H200 (this project, 2026-11-27; Triton 3.6, with Ampere's
# instructions, as Triton had then; with Hopper's 0.5 and 0.7): it does not grow with the head. Here it is 0.55 of it on
# heads of 128. That the backward pass is farther behind than the forward pass is an inference from llm-foundry's runs
# on long sequences: without recompute they were told too quick, with full recompute too slow. Their level is fitted
# (attention_rate), this ratio is not. That cuDNN 8 has the rate of FlashAttention-2 on Hopper, 0.5 to 0.6 of cuDNN 9's,
# is an inference from NeMo's containers of 2024. FlexAttention has 0.90 of FlashAttention-2's rate forward and 0.85
# backward (PyTorch's blog of 2024-08-07, from memory).
NEAREST_TABLE = {
    "flash1": Nearest("flash2", forward=0.78, backward=0.5, half_dim=0.0),
    "flex": Nearest("flash2", forward=0.9, backward=0.85),
    "cudnn8": Nearest("cudnn", forward=0.55, backward=0.55),
}


def attention_inputs(
    tables: Mapping[str, Any], cluster: Cluster, dtype: str, stack: Stack, mla: bool
) -> dict[str, Bound]:
    """The table of the stack's own kernel, or the nearest, where the GPU has it, else that of the format: cuDNN's."""
    kernels = tables.get("attention", {})
    nearest = NEAREST_TABLE.get(stack.attention, Nearest(stack.attention, 1.0, 1.0))
    if nearest.table == "cudnn" and cluster.gpu.generation == "ampere":
        nearest = Nearest("cudnn", 1.0, 1.0)  # whose table is of FlashAttention-2's rate itself
    table = nearest.table if nearest.table in kernels else dtype
    bound: dict[str, Bound] = {}
    for name in ("forward", "backward"):
        measured = kernels.get(table, {}).get(name, {})
        own = (name,) if "half_dim" in measured else ()
        window = "half_window" if "half_window" in measured else "half_seq"
        wide = "wide_mla" if mla and "wide_mla" in measured else "wide"
        fraction = leaf(tables, cluster, "attention", table, name, "fraction")
        half_dim = leaf(tables, cluster, "attention", table, *own, "half_dim")
        if nearest.half_dim is not None:
            half_dim = Bound(
                nearest.half_dim, f"{stack.attention} has no table: its rate does not grow with the head"
            )
        share = nearest.forward if name == "forward" else nearest.backward
        if share != 1:
            source = f"{fraction.source}; x {share:g} for {stack.attention}, which has no table"
            fraction = replace(fraction, value=fraction.value * share, source=source)
        bound |= {
            f"attention_{name}_fraction": limited(fraction, _attention_power(table, cluster), cluster),
            f"attention_{name}_half": leaf(tables, cluster, "attention", table, name, "half_seq"),
            f"attention_{name}_half_window": leaf(tables, cluster, "attention", table, name, window),
            f"attention_{name}_half_dim": half_dim,
            f"attention_{name}_wide": leaf_if_known(tables, cluster, "attention", table, name, wide),
            f"attention_{name}_tail": leaf_if_known(tables, cluster, "attention", table, name, "tail"),
        }
    return bound


def fp8_attention_gains(
    tables: Mapping[str, Any], cluster: Cluster, precision: str, mla: bool, stack: Stack
) -> dict[str, Bound]:
    """What FP8 gains the attention core, by pass: of the precision's format and the heads' shape. [1]

    Kernels of another shape stand in where a GPU has none of these; 1 without any table, and where the knob does
    nothing (rule fp8_attention_precision, and plain_mxfp8_attention of costmodel/stacks.toml).
    """
    unread = not precision.startswith(("fp8", "mxfp8")) or precision == "fp8-sc"
    if unread or (precision == "mxfp8" and stack.plain_mxfp8_attention):
        idle = Bound(1.0, f"attention stays in 16 bits with {precision} on {stack.name}")
        return {f"attention_{name}_fp8_gain": idle for name in ("forward", "backward")}
    measured = tables.get("attention", {})
    dtype = "mxfp8" if precision == "mxfp8" and "mxfp8" in measured else "fp8"
    by_heads = measured.get(dtype, {})
    heads = "mla" if mla and "mla" in by_heads else "plain"
    none = Bound(1.0, f"no table of FP8 attention on {cluster.gpu.name}: as in 16 bits")
    return {
        f"attention_{name}_fp8_gain": leaf(tables, cluster, "attention", dtype, heads, name)
        if name in by_heads.get(heads, {})
        else none
        for name in ("forward", "backward")
    }


def _attention_power(table: str, cluster: Cluster) -> float:
    """Rate of an attention kernel under a lower power limit. [1]

    FlashAttention-2 is written for Ampere's instructions and leaves the tensor units of later GPUs idle most of the
    time (35 % of an H100's rate), so that a limit which slows products does not reach it.
    Source: J. Shah et al., arXiv:2407.08608, sec. 1.
    """
    idle = table == "flash2" and cluster.gpu.generation != "ampere"
    return 1.0 if idle else power_factor(cluster)
