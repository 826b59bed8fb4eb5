"""Model FLOPs of a step: what the model needs, whatever the plan. MFU is counted in them."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.symbols import HEADED_BLOCKS, of_block
from costmodel.work import attention, mixers
from costmodel.work.csa import INDEX_PROJECTIONS, KEY_PROJECTIONS, csa_flops_forward
from costmodel.work.dsa import index_flops_forward, index_weights, picked_tokens
from costmodel.work.mla import core_width


def weights_of_block(x: SimpleNamespace, block: str, features: Collection[str]) -> Amount:
    """Weights of one block's linear layers that a token meets. [1] Source: costmodel.parameters."""
    if block in HEADED_BLOCKS:
        own = of_block(x, block)
        gate = own.output_gate * (own.head_gate + (1 - own.head_gate) * own.d_v)
        # One projection makes keys and values, whatever a framework computes.
        tied = own.tied_values * own.d_v if "tied_values" in features else 0
        keys = own.k * (own.d + own.d_v - tied)
        return own.h * (own.a * (own.d + gate) + keys) + own.a * own.d_v * own.h
    if block == "mla":
        query = x.d_nope + x.d_rope
        into = x.q_lora * (x.h + x.a * query) if "q_lora" in features else x.h * x.a * query
        keys = x.h * (x.kv_lora + x.d_rope) + x.kv_lora * x.a * (x.d_nope + x.d_v)
        return into + keys + x.a * x.d_v * x.h
    if block == "dsa":
        latents = x.q_lora + x.kv_lora + x.d_rope
        ups = x.q_lora * (x.d_nope + x.d_rope) + x.kv_lora * (x.d_nope + x.d_v)
        indexer = index_weights(x.h, x.q_lora, x.index_heads, x.index_dim) / x.index_interval
        return x.h * latents + x.a * (ups + x.d_v * x.h) + indexer
    if block == "csa":
        queries = x.q_lora * (x.h + x.a * x.d) + x.h * x.d * KEY_PROJECTIONS
        keys = INDEX_PROJECTIONS * x.index_dim + x.index_heads
        index = (x.q_lora * x.index_heads * x.index_dim + x.h * keys) / 2
        return queries + index + x.a * x.d * x.out_lora + x.out_groups * x.out_lora * x.h
    if block == "mlp":
        return (2 + x.gates) * x.h * x.f
    if block == "experts":
        latent = 2 * x.h * x.he if "latent" in features else 0
        shared = (2 + x.gates) * x.h * x.fs if "shared" in features else 0
        return x.h * x.E + x.topk * (2 + x.gates) * x.he * x.fe + shared + latent
    if block == "mamba":
        inner = x.mamba_heads * x.mamba_dim
        return x.h * (2 * inner + 2 * x.mamba_groups * x.mamba_state + x.mamba_heads) + inner * x.h
    key, value = x.delta_key_heads * x.delta_key_dim, x.delta_value_heads * x.delta_value_dim
    return x.h * (2 * key + 2 * value + 2 * x.delta_value_heads) + value * x.h


def core_flops_of_block(x: SimpleNamespace, block: str) -> Amount:
    """FLOPs of one block's attention core or scan, forward, for each token. [FLOP]"""
    one = SimpleNamespace(
        **{**vars(of_block(x, block)), "tp": 1, "cp": 1, "b": 1 / x.s}
    )  # one token on one rank
    if block in (*HEADED_BLOCKS, "mla"):
        width = core_width(x) if block == "mla" else attention.core_width(one)
        return attention.core_flops_forward(one, width)
    if block == "csa":
        return csa_flops_forward(one)
    if block == "dsa":
        width = (x.d_nope + x.d_rope + x.d_v) / 2
        return 4 * picked_tokens(one) * x.a * width + index_flops_forward(one)
    if block == "mamba":
        return mixers.mamba_scan_flops_forward(one)
    return mixers.delta_scan_flops_forward(one) if block == "delta" else 0


def model_flops(x: SimpleNamespace, blocks: Collection[str], features: Collection[str]) -> Amount:
    """FLOPs of one step over all GPUs without recompute, causal attention counted by half. [FLOP]

    6 FLOPs a weight and token (2 forward, 4 backward; 4 in all where weights are frozen), logits and MTP heads
    included, and 3 x the attention core or scan (backward as twice forward, as published MFU counts it).
    Independent of the plan but for vocabulary padding, of which it takes none. Padding tokens do not count.
    Source: arXiv:2104.04473, appendix; causal half as Megatron-Bridge reports.
    """
    weights = x.V * x.h * (1 + x.mtp_total) + 2 * x.h * x.h * x.mtp_total
    core: Amount = 0
    for block in blocks:
        count = getattr(x, f"{block}_total")
        weights += count * weights_of_block(x, block, features)
        core += count * core_flops_of_block(x, block)
    return x.fill * x.b * x.m * x.dp * x.s * ((4 + 2 * x.trained) * weights + 3 * core)
