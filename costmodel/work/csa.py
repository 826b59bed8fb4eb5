"""Compressed sparse attention on one rank: a window, summaries of the rest, and an indexer that picks among them."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, minimum
from costmodel.work.adapters import kept_input
from costmodel.work.attention import saved_core_output, saved_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import ATTENTION_KERNELS, norm, residual, residual_tokens, rotary
from costmodel.work.linear import Linear, tokens

# Kernels beyond those of grouped-query attention: latents, compressors, indexer, top-k, hyper-connections.
SPARSE_KERNELS = (24.0, 34.0)
# Projections of the hidden state to the one key-value head: its own, and the compressor's, of what is summed up and of
# its weights: two overlapping series on light layers, one on heavy, their mean. Those of the indexer's own compressor,
# which has two series. Source: transformers modeling_deepseek_v4; Megatron-Bridge, training/utils/flop_utils.py.
KEY_PROJECTIONS = 1 + (2 * 2 + 2) / 2
INDEX_PROJECTIONS = 2 * 2


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


def mixing_weights(h: Amount, streams: Amount) -> Amount:
    """Parameters of the hyper-connections around both blocks of a layer. [1]

    From all n streams to one weight of each into the block, one out of it, and n^2 among them, with offsets; a scale
    of each of the three. Source: transformers modeling_deepseek_v4, DeepseekV4HyperConnection.
    """
    return 2 * is_more_than_one(streams) * (streams * (streams + 2) * (streams * h + 1) + 3)


def hyper_connections(x: SimpleNamespace) -> Stream:
    """Traffic of n residual streams around both blocks of a layer, beyond that of one residual addition each. [byte]

    Forward the projection to the mixing weights reads n hidden states, what enters a block is their weighted sum
    (n + 1), and mixing reads them again with the block's output and writes them (2 n + 1): 4 n + 2. Backward mixing
    reads gradients, streams and output and writes two gradients (3 n + 2), the sum reads a gradient and the streams
    and writes theirs (2 n + 1), the projection reads and writes them (2 n), and the three gradients are added up
    (6 n): 13 n + 3. As if each of the three were one kernel: no wheel shows yet how Megatron-Core fuses them on
    Blackwell (use_fused_mhc). Source: transformers modeling_deepseek_v4, DeepseekV4HyperConnection.
    """
    n = x.residual_streams
    states = 2 * is_more_than_one(n) * x.activation_bytes * residual_tokens(x) * x.h
    return Stream("hyper", states * (4 * n + 2 - 3), states * (13 * n + 3 - 3))


def csa(x: SimpleNamespace) -> BlockWork:
    """Compressed sparse attention. Source: transformers modeling_deepseek_v4; Megatron-Bridge deepseek_v4_bridge.

    Queries through a latent, with a norm of each head behind it, one key-value head that every rank holds. The output
    goes through a projection of each group of heads, a plain parameter that no recipe quantises, and one of them all.
    The hyper-connections around both blocks of a layer are counted here: mixing keeps every stream, unless that is
    computed again from a block's output (module mhc), and the output.
    """
    heads, rows, own = x.a / x.tp, tokens(x), residual_tokens(x)
    e = x.activation_bytes
    index = x.index_heads * x.index_dim / 2
    index_keys = (INDEX_PROJECTIONS * x.index_dim + x.index_heads) / 2
    streams = 2 * is_more_than_one(x.residual_streams)
    mixed = streams * (1 + (1 - x.recompute_mhc) * x.residual_streams)
    return BlockWork(
        name="csa",
        linears=(
            Linear("q_down", x.q_lora, x.h, own, "none", adapter="qkv"),
            Linear("q_up", heads * x.d, x.q_lora, rows, "column", adapter="qkv"),
            Linear("kv", KEY_PROJECTIONS * x.d, x.h, own, "none", adapter="qkv"),
            Linear("index_queries", index, x.q_lora, own, "none", quantised=False),
            Linear("index_keys", index_keys, x.h, own, "none", quantised=False),
            Linear("out_down", x.out_lora, heads * x.d, rows, "row", adapter="proj", quantised=False),
            Linear("out_up", x.h, x.out_groups * x.out_lora, own, "none", adapter="proj"),
        ),
        streams=(
            norm(x, own * (x.q_lora + x.d)),
            Stream("query_norm", 2 * e * rows * heads * x.d, 3 * e * rows * heads * x.d),
            residual(x),
            rotary(x, heads * x.d_rope),
            hyper_connections(x),
            # Gradients of the norm's output, of three projections.
            Stream("joins", 0, 2 * 3 * e * own * x.h),
        ),
        gathered=x.operand_bytes * rows * (x.q_lora + x.d),
        reduced=e * rows * x.out_groups * x.out_lora,
        saved=saved_norm(
            x, x.offload_attn_norm, x.offload_qkv_linear, kept_input(x, "qkv") * own * x.h, apart=1
        )
        | {
            "residual streams": mixed * e * own * x.h,
            "latents": 2 * e * own * (x.q_lora + KEY_PROJECTIONS * x.d),
            # Before their norm, and behind it.
            "queries": (1 - x.recompute_mla_up_proj) * (2 - x.offload_core_attn) * e * rows * heads * x.d,
            "attention output": saved_core_output(x, x.d),
            "output latent": kept_input(x, "proj") * own * x.out_groups * x.out_lora,
        },
        vectors=x.norm_vectors * x.h + x.q_lora + x.d + heads + mixing_weights(x.h, x.residual_streams),
        kernels_forward=ATTENTION_KERNELS[0] + SPARSE_KERNELS[0],
        kernels_backward=ATTENTION_KERNELS[1] + SPARSE_KERNELS[1],
    )
