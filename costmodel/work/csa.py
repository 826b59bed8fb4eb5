"""Compressed sparse attention on one rank: a window, summaries of the rest, and an indexer that picks among them."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, minimum
from costmodel.work.adapters import kept_input
from costmodel.work.attention import saved_core_output, saved_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import ATTENTION_KERNELS, norm, residual, residual_tokens, rotary
from costmodel.work.linear import Linear, tokens

# Kernels beyond those of grouped-query attention: latents, compressors, indexer, top-k, hyper-connections.
SPARSE_KERNELS = (24.0, 34.0)
# Projections of the hidden state to the one key-value head: its own, and those of the compressors, two on light layers
# and one on heavy, their mean. Source: transformers modeling_deepseek_v4.
KEY_PROJECTIONS = 1 + (2 + 1) / 2


def attended_entries(x: SimpleNamespace) -> Amount:
    """Tokens and summaries that a query meets, mean of light and heavy layers. [1]

    The window, and on light layers the picked summaries (at most half of all, for causality), on heavy ones all
    that came before. Source: transformers modeling_deepseek_v4.
    """
    window = minimum(x.csa_window, x.document / 2)
    light = minimum(x.index_topk, x.document / x.csa_light / 2)
    heavy = x.document / x.csa_heavy / 2
    return window + (light + heavy) / 2


def csa_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of scores and values over the attended entries, and of the indexer's scores. [FLOP]

    4 T entries a d / tp, and on half of the layers 2 T (document / light / 2) index_heads index_dim.
    """
    core = 4 * tokens(x) * attended_entries(x) * x.a * x.d / x.tp
    index = 2 * residual_tokens(x) * x.document / x.csa_light / 2 * x.index_heads * x.index_dim / 2
    return core + index


def csa(x: SimpleNamespace) -> BlockWork:
    """Compressed sparse attention. Source: transformers DeepseekV4Config; Megatron-Bridge deepseek_v4_bridge.

    Queries through a latent, one key-value head that every rank holds, grouped low-rank output. Hyper-connections
    read and write all residual streams around both blocks of a layer; their traffic is counted here.
    """
    heads, rows, own = x.a / x.tp, tokens(x), residual_tokens(x)
    e = x.activation_bytes
    streams = 4 * (x.residual_streams - 1) * e * own * x.h
    index = x.index_heads * x.index_dim / 2
    return BlockWork(
        name="csa",
        linears=(
            Linear("q_down", x.q_lora, x.h, own, "none", adapter="qkv"),
            Linear("q_up", heads * x.d, x.q_lora, rows, "column", adapter="qkv"),
            Linear("kv", KEY_PROJECTIONS * x.d, x.h, own, "none", adapter="qkv"),
            Linear("index_queries", index, x.q_lora, own, "none", quantised=False),
            Linear("index_keys", (x.index_dim + x.index_heads) / 2, x.h, own, "none", quantised=False),
            Linear("out_down", x.out_lora, heads * x.d, rows, "row", adapter="proj"),
            Linear("out_up", x.h, x.out_groups * x.out_lora, own, "none", adapter="proj"),
        ),
        streams=(
            norm(x, own * (x.q_lora + x.d)),
            residual(x),
            rotary(x, heads * x.d_rope),
            Stream("hyper", streams, 1.5 * streams),
            # Gradients of the norm's output, of three projections.
            Stream("joins", 0, 2 * 3 * e * own * x.h),
        ),
        gathered=x.operand_bytes * rows * (x.q_lora + x.d),
        reduced=e * rows * x.out_groups * x.out_lora,
        saved=saved_norm(
            x, x.offload_attn_norm, x.offload_qkv_linear, kept_input(x, "qkv") * own * x.h, apart=1
        )
        | {
            "residual streams": 2 * (x.residual_streams - 1) * e * own * x.h,
            "latents": 2 * e * own * (x.q_lora + KEY_PROJECTIONS * x.d),
            "queries": (1 - x.recompute_mla_up_proj) * (1 - x.offload_core_attn) * e * rows * heads * x.d,
            "attention output": saved_core_output(x, x.d),
            "output latent": kept_input(x, "proj") * own * x.out_groups * x.out_lora,
        },
        vectors=x.norm_vectors * x.h + x.q_lora + x.d + heads,
        kernels_forward=ATTENTION_KERNELS[0] + SPARSE_KERNELS[0],
        kernels_backward=ATTENTION_KERNELS[1] + SPARSE_KERNELS[1],
    )
