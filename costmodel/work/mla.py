"""Multi-head latent attention on one rank."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.work.adapters import joined_norm, kept_input
from costmodel.work.attention import document_loops, exchanged, saved_core_output, saved_norm, saved_scores
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import (
    ATTENTION_KERNELS,
    LATENT_DOCUMENT_KERNELS,
    LATENT_ROTARY_KERNELS,
    LATENT_ROTARY_PASSES,
    norm,
    residual,
    residual_tokens,
    rotary,
    rotary_kernels,
    saved_angles,
    split_kernels,
)
from costmodel.work.linear import Linear, same_format, tokens

# Kernels beyond those of grouped-query attention: down projections, latent norms, splits and concatenations.
LATENT_KERNELS = (9.0, 14.0)
# Of these, of the norm of one latent: backward its data and its weight gradient.
LATENT_NORM_KERNELS = (1.0, 2.0)


def core_width(x: SimpleNamespace) -> Amount:
    """Mean of the head dimensions of queries (with rotary part) and values. [1]"""
    return (x.d_nope + x.d_rope + x.d_v) / 2


def core_backward_factor(x: SimpleNamespace) -> Amount:
    """FLOPs of the core's backward pass over those of its forward pass. [1]

    Five products, three as wide as queries and two as values: 2.5 where these are alike. Source: as cudnn-frontend's
    benchmark counts them.
    """
    query = x.d_nope + x.d_rope
    return (3 * query + 2 * x.d_v) / (query + x.d_v)


def head_copies(x: SimpleNamespace) -> Amount:
    """Elements of one head that are read and written to put queries, keys and values together, either way. [1]

    Fused, queries turn in place, and one kernel reads keys and values and writes both and the keys' rotary part. Not
    fused, queries, keys and values are copied each. Source: Megatron-Core 0.16.1, fused_mla_yarn_rope_apply.py;
    multi_latent_attention.py, qkv_up_proj_and_rope_apply.
    """
    fused = 2 * (x.d_nope + x.d_v) + x.d_rope
    return (1 - x.rope_split) * fused + x.rope_split * (4 * x.d_nope + 3 * x.d_rope + 2 * x.d_v)


def second_copy(x: SimpleNamespace) -> Amount:
    """Bytes of an element of the norm's output that the second of two projections keeps in a format of its own. [byte]

    Each quantises its input by itself; in the model's own format both keep one tensor. Source: Megatron-Core 0.16.1,
    multi_latent_attention.py, linear_q_down_proj and linear_kv_down_proj.
    """
    return x.trained * (1 - same_format(x)) * x.saved_bytes


def mla(x: SimpleNamespace, features: Collection[str]) -> BlockWork:
    """Multi-head latent attention. Source: DeepSeek-AI, arXiv:2405.04434; Megatron-Core, MLASelfAttention.

    Down projections are held whole by every rank and see the tokens of sequence parallelism; the latents are
    then gathered, and up projections make queries (d_nope + d_rope), keys and values of each head.
    mla_up_proj recomputes queries, keys and values from the latents. Latents have norms, whose inputs are saved beside
    their outputs, where queries and keys are normalised (Megatron-Core's qk_layernorm, gpt_layer_specs.py); a norm that
    is part of an up projection is computed again with it (multi_latent_attention.py, qkv_up_checkpoint).
    """
    heads, rows, own = x.a / x.tp, tokens(x), residual_tokens(x)
    query = x.d_nope + x.d_rope
    joined = x.qk_norms * joined_norm(x, "qkv")  # latents' norms with up projections
    if "q_lora" in features:
        queries: tuple[Linear, ...] = (
            Linear("q_down", x.q_lora, x.h, own, "none", adapter="qkv"),
            Linear("q_up", heads * query, x.q_lora, rows, "column", adapter="qkv", normed=joined),
        )
        gathered, norms = x.q_lora, 2
    else:
        queries = (Linear("q_up", heads * query, x.h, rows, "column", adapter="qkv"),)
        gathered, norms = x.h, 1
    latents = x.q_lora + x.kv_lora + x.d_rope
    copied = x.activation_bytes * rows * heads * head_copies(x)
    normed = kept_input(x, "qkv") + second_copy(x)
    # What context parallelism copies is not computed again with the up projections.
    copied_heads = exchanged(x) * (is_more_than_one(x.cp_a2a_size) * query + query + x.d_v)
    again = x.recompute_mla_up_proj
    kept_heads = (1 - x.offload_core_attn) * ((1 - again) * (2 * query + x.d_v) + again * copied_heads)
    split = [
        sum(kernels)
        for kernels in zip(split_kernels(x), rotary_kernels(x, LATENT_ROTARY_KERNELS), strict=True)
    ]
    bare = [(1 - x.qk_norms) * norms * kernels for kernels in LATENT_NORM_KERNELS]
    return BlockWork(
        name="mla",
        linears=(
            *queries,
            Linear("kv_down", x.kv_lora + x.d_rope, x.h, own, "none", adapter="qkv"),
            Linear(
                "kv_up", heads * (x.d_nope + x.d_v), x.kv_lora, rows, "column", adapter="qkv", normed=joined
            ),
            Linear("proj", x.h, heads * x.d_v, rows, "row", adapter="proj"),
        ),
        streams=(
            norm(x, x.qk_norms * own * (x.q_lora + x.kv_lora), joined_more=joined),
            residual(x),
            rotary(x, heads * x.d_rope, LATENT_ROTARY_PASSES),
            Stream("heads", copied, copied),
            # Gradients of the norm's output, of the queries' projection and of that of keys and values.
            Stream("joins", 0, 3 * x.activation_bytes * own * x.h),
        ),
        gathered=x.operand_bytes * rows * (gathered + x.kv_lora + x.d_rope),
        reduced=x.activation_bytes * rows * x.h,
        saved=saved_norm(x, x.offload_attn_norm, x.offload_qkv_linear, normed * own * x.h, apart=1)
        | {
            "latents": (1 + x.qk_norms - joined * x.recompute_mla_up_proj)
            * x.activation_bytes
            * own
            * latents,
            # Gathered in front of what is computed again.
            "rotary keys": again * x.sp * x.activation_bytes * rows * x.d_rope,
            "queries, keys, values": kept_heads * x.activation_bytes * rows * heads,
            "rotary angles": (1 - again) * saved_angles(x, x.d_rope),
            "attention output": saved_core_output(x, x.d_v),
            "attention scores": saved_scores(x),
        },
        vectors=x.norm_vectors * (x.h + x.qk_norms * (x.q_lora + x.kv_lora)),
        kernels_forward=ATTENTION_KERNELS[0] + LATENT_KERNELS[0] - bare[0] + 3 * x.unfused + split[0],
        kernels_backward=ATTENTION_KERNELS[1] + LATENT_KERNELS[1] - bare[1] + 4 * x.unfused + split[1],
        loops=document_loops(x, LATENT_DOCUMENT_KERNELS),
    )
