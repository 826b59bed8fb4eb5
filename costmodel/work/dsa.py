"""Sparse latent attention on one rank: MLA over the tokens that an indexer picks (DeepSeek-V3.2, GLM-5)."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, minimum
from costmodel.work.adapters import kept_input
from costmodel.work.attention import saved_core_output, saved_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import (
    ATTENTION_KERNELS,
    LATENT_ROTARY_KERNELS,
    LATENT_ROTARY_PASSES,
    norm,
    residual,
    residual_tokens,
    rotary,
    rotary_kernels,
)
from costmodel.work.linear import Linear, tokens
from costmodel.work.mla import LATENT_KERNELS, LATENT_NORM_KERNELS, second_copy

# Kernels beyond those of latent attention, by our count: rotations of the indexer's queries and keys, their norm,
# weights, scores and choice; products with the up projections of keys and values, and copies of both.
INDEX_KERNELS = (16.0, 24.0)


def picked_tokens(x: SimpleNamespace) -> Amount:
    """Tokens that a query attends to, mean over the places in a document, causal. [1]"""
    most = minimum(x.index_topk, x.document)
    return most - most**2 / (2 * x.document)


def index_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of the indexer's scores of all earlier tokens, which every tensor rank makes. [FLOP]

    Source: Megatron-Core 0.19.2, dsa.py, DSAIndexer (projections of mode "duplicated").
    """
    return tokens(x) * x.document * x.index_heads * x.index_dim / x.index_interval


def sparse_width(x: SimpleNamespace) -> Amount:
    """Mean width of queries and values of the core, which stay latents: (kv_lora + d_rope + kv_lora) / 2. [1]"""
    return x.kv_lora + x.d_rope / 2


def dsa_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of scores and values over the picked tokens as latents, and of the indexer's scores. [FLOP]"""
    return 4 * tokens(x) * picked_tokens(x) * x.a / x.tp * sparse_width(x) + index_flops_forward(x)


def dsa_backward_factor(x: SimpleNamespace) -> Amount:
    """FLOPs of the core's backward pass over those of its forward pass. [1]

    Five products over the picked tokens, three as wide as queries and two as latents. The indexer learns from those
    tokens alone: attention's scores of them once more, its own, and the gradients of its queries and keys. Source:
    Megatron-Core 0.19.2, dsa_cudnn_kernels.py, _compute_sparse_indexer_loss_and_grads; Megatron-Bridge 0.6.2,
    glm5_bridge.py (dsa_indexer_use_sparse_loss).
    """
    query, heads = x.kv_lora + x.d_rope, x.a / x.tp
    core = heads * (3 * query + 2 * x.kv_lora)
    indexer = heads * query + 3 * x.index_heads * x.index_dim / x.index_interval
    return 2 * tokens(x) * picked_tokens(x) * (core + indexer) / dsa_flops_forward(x)


def index_weights(h: Amount, q_lora: Amount, heads: Amount, head_dim: Amount) -> Amount:
    """Weights of an indexer: its queries from their latent, one key, and a weight for each head. [1]"""
    return q_lora * heads * head_dim + h * (head_dim + heads)


def dsa(x: SimpleNamespace) -> BlockWork:
    """Sparse latent attention. Source: DeepSeek-V3.2; Megatron-Core 0.19.2, dsa.py and absorbed_mla.py.

    Queries are multiplied by the keys' up projection and meet the latents themselves, of which each is a key and a
    value; the result goes through the values' up projection. Both products are one for each head, in 16 bits, and
    their results are copied: queries beside their rotary part. The indexer is trained, by its own loss, and held whole
    by every tensor rank.
    """
    # Megatron-Core has no fused rotary embedding here: transformer_config.py refuses apply_rope_fusion.
    split = SimpleNamespace(**vars(x) | {"rope_split": 1})
    turned = rotary_kernels(split, LATENT_ROTARY_KERNELS)
    heads, rows, own = x.a / x.tp, tokens(x), residual_tokens(x)
    e, latent = x.activation_bytes, x.kv_lora + x.d_rope
    share = 1 / x.index_interval
    copied = e * rows * heads * (2 * x.kv_lora + 2 * latent + 2 * x.d_v)
    kept = (1 - x.recompute_mla_up_proj) * (1 - x.offload_core_attn)
    bare = [(1 - x.qk_norms) * 2 * kernels for kernels in LATENT_NORM_KERNELS]
    # Scores in FP32 are written and read once to be sorted.
    scores = 8 * rows * x.document * share
    return BlockWork(
        name="dsa",
        linears=(
            Linear("q_down", x.q_lora, x.h, own, "none", adapter="qkv"),
            Linear("q_up", heads * (x.d_nope + x.d_rope), x.q_lora, rows, "column", adapter="qkv"),
            Linear("kv_down", latent, x.h, own, "none", adapter="qkv"),
            Linear("kv_up", heads * (x.d_nope + x.d_v), x.kv_lora, rows, "column", quantised=False),
            Linear("index_queries", share * x.index_heads * x.index_dim, x.q_lora, rows, "none"),
            Linear("index_keys", share * (x.index_dim + x.index_heads), x.h, rows, "none"),
            Linear("proj", x.h, heads * x.d_v, rows, "row", adapter="proj"),
        ),
        streams=(
            norm(x, x.qk_norms * own * (x.q_lora + x.kv_lora)),
            residual(x),
            rotary(split, heads * x.d_rope + share * x.index_heads * x.d_rope, LATENT_ROTARY_PASSES),
            Stream("absorbed", copied, copied),
            Stream("scores", scores, 0),
            # Gradients of the norm's output, of the queries' projection and of that of keys and values.
            Stream("joins", 0, 3 * e * own * x.h),
        ),
        gathered=x.operand_bytes * rows * (x.q_lora + latent + x.h * share),
        reduced=e * rows * x.h,
        saved=saved_norm(
            x,
            x.offload_attn_norm,
            x.offload_qkv_linear,
            (kept_input(x, "qkv") + second_copy(x)) * own * x.h,
            apart=1,
        )
        | {
            "latents": (1 + x.qk_norms) * e * own * (x.q_lora + latent),
            "queries": kept * e * rows * heads * latent,
            "attention output": saved_core_output(x, x.kv_lora),
            "projection input": kept_input(x, "proj") * rows * heads * x.d_v,
            "indexer": share * (e * rows * (x.index_heads + 1) * x.index_dim + 4 * rows * x.index_topk),
        },
        vectors=x.norm_vectors * (x.h + x.qk_norms * (x.q_lora + x.kv_lora)) + 2 * share * x.index_dim,
        kernels_forward=ATTENTION_KERNELS[0] + LATENT_KERNELS[0] + INDEX_KERNELS[0] + turned[0] - bare[0],
        kernels_backward=ATTENTION_KERNELS[1] + LATENT_KERNELS[1] + INDEX_KERNELS[1] + turned[1] - bare[1],
    )
