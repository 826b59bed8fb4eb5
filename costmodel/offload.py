"""Activations that wait in host memory: bytes, and the time that moving them leaves exposed."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, maximum
from costmodel.layer import BlockTimes, block_work
from costmodel.timing import overlap

MODULE_FLAGS = (
    "offload_attn_norm",
    "offload_qkv_linear",
    "offload_core_attn",
    "offload_attn_proj",
    "offload_mlp_norm",
    "offload_expert_fc1",
    "offload_moe_act",
    "offload_fused_group_mlp",
)


def offloaded_bytes(x: SimpleNamespace, times: BlockTimes, features: Collection[str]) -> Amount:
    """Activations of one block and micro-batch that go to the host. [byte]

    Whole layers (cpu_offloading_num_layers), or the named modules of every layer (fine-grained offloading): the
    difference to what is kept without. Source: Megatron-Core, fine_grained_activation_offload.py.
    """
    everything = SimpleNamespace(**{**vars(x), **dict.fromkeys(MODULE_FLAGS, 0)})
    whole = block_work(everything, times.work.name, features).saved_bytes()
    kept = times.work.saved_bytes()
    return (whole - kept) + x.offload_share * kept


def offload_exposed(
    x: SimpleNamespace, moved: Amount, weights: Amount, forward: Amount, backward: Amount
) -> Amount:
    """Time of one micro-batch on a stage that waits for the host link, forward and backward. [s]

    moved: activations, out in the forward and back in the backward pass; weights of offloaded layers come in
    for both passes. Each direction hides under its pass. Source: Transformer Engine, cpu_offload.py.
    """
    incoming = x.offload_weights * x.offload_share * x.weight_bytes * weights / x.host_link
    out = moved / x.host_link
    forth = overlap.exposed(maximum(out, incoming), forward)
    back = overlap.exposed(out + incoming, backward)
    return forth + back
