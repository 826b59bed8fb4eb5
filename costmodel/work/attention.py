"""Attention blocks on one rank: grouped-query attention, with windows, chunks, gates and sinks."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.adapters import joined_norm, kept_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import (
    ATTENTION_KERNELS,
    COMPOSED_NORM_SAVED,
    DOCUMENT_KERNELS,
    composes_norm,
    head_copies,
    input_gradient_sum,
    norm,
    packing,
    residual,
    residual_tokens,
    rotary,
    rotary_kernels,
    rotary_loops,
    saved_angles,
    split_kernels,
)
from costmodel.work.linear import Linear, heads_are_shared, kv_heads_per_rank, same_format, tokens
from costmodel.work.recompute import kept_products

# Launches that put one of the 2 cp chunks of a packed document in order around an all-to-all of context parallelism: a
# range of indices between bounds on the device, nine kernels in front of the attention core and five behind it, and two
# bounds that the host reads, a copy and a wait each. Forward of queries, keys and values, then of the output; backward
# of its gradient, then of theirs. Counted as PyTorch 2.13 issues them: Transformer Engine 2.13 and 2.15,
# context_parallel.py, reorder_seq_chunks_after_a2a_before_attn_thd, reorder_seq_chunks_before_a2a_after_attn_thd.
# A kernel there records no gradient and takes half of the host's time for one in a loop that does: 3.3 us of 6.3 us in
# Megatron-Core's loop over documents (rotary embedding), both on one processor, PyTorch 2.13.
WITHOUT_GRADIENTS = 0.5
REORDER_BEFORE, REORDER_AFTER = 9 * WITHOUT_GRADIENTS + 2 * 2, 5 * WITHOUT_GRADIENTS + 2 * 2
EXCHANGE_LAUNCHES = (3 * REORDER_BEFORE + REORDER_AFTER, REORDER_BEFORE + 3 * REORDER_AFTER)


# Queries, keys and values.
QKV_PRODUCTS = 3
# Cycles of one multiprocessor for each token and head in which cuDNN's backward pass adds up the gradient of a learned
# sink: 1.5 ns on an H100's 132, whatever window and length; all add to one number a head. Source: measured there
# (2026-11-27, cuDNN 9.19, Transformer Engine 2.12), 8 to 64 heads, 1 to 4 sequences of 1,024 to 8,192 tokens.
SINK_CYCLES = 360.0

# Bytes of HBM for each number of the attention output that is scaled for its sink, forward and backward: in FP32 and
# back to 16 bits; gradients of the output and of the scale, the latter a product that is summed over the head.
# Counted from flex_attention.py of nemo-automodel 0.7.0, whose scale is FP32, as PyTorch's autograd runs it.
SCALED_SINK = (12, 34)


def document_loops(x: SimpleNamespace, kernels: tuple[float, float]) -> tuple[Amount, Amount]:
    """Launches in loops over packed documents, forward and backward: rotary embedding, chunks that are exchanged. [1]

    kernels: of rotary embedding, see `rotary_loops`.
    """
    rotary, exchange = rotary_loops(x, kernels), exchange_loops(x)
    return rotary[0] + exchange[0], rotary[1] + exchange[1]


def exchange_loops(x: SimpleNamespace) -> tuple[Amount, Amount]:
    """Launches in loops over packed documents' chunks around an all-to-all of context parallelism, both passes. [1]

    Recompute of the core exchanges again.
    """
    chunks = x.reads_documents * is_more_than_one(x.cp_a2a_size) * x.b * 2 * x.cp_a2a_size * x.documents
    exchange, back = (chunks * launches for launches in EXCHANGE_LAUNCHES)
    again = (1 - x.recompute_layers) * x.recompute_attention
    return exchange, back + again * exchange


def attended_keys(x: SimpleNamespace) -> Amount:
    """Keys that a query meets on average over the layers and the sequence, causal. [1]

    Full attention: half the document. A window of w tokens: w - w^2 / (2 document), at most half the
    document. Chunks of c tokens: c / 2. Documents packed together do not see each other.
    Sources: I. Beltagy et al., arXiv:2004.05150 (windows); Llama 4 model card (chunks).
    """
    full = x.document / 2
    width = minimum(x.window, x.document)
    windowed = width - width**2 / (2 * maximum(x.document, 1))
    chunked = minimum(x.chunk, x.document) / 2
    rest = 1 - x.window_share - x.chunk_share
    return rest * full + x.window_share * windowed + x.chunk_share * chunked


# Backward pass of the fused core over its forward pass where queries are as wide as values: five products for two.
# Source: see `core_flops_forward`.
CORE_BACKWARD = 2.5


def core_width(x: SimpleNamespace) -> Amount:
    """Mean head dimension of queries and values, for `core_flops_forward`. [1]"""
    return (x.d + x.d_v) / 2


def core_backward_factor(x: SimpleNamespace) -> Amount:
    """FLOPs of the fused backward core over its forward, where queries may be wider than values. [1]

    Recomputed scores, dQ and dK have the query's width, dP and dV the value's. Source: as `core_flops_forward`.
    """
    return (3 * x.d + 2 * x.d_v) / (x.d + x.d_v)


def last_rank_work(x: SimpleNamespace) -> Amount:
    """Attention work of the context-parallel rank that has most of it, over the mean rank's. [1]

    Of r contiguous chunks the last sees itself by half and all r - 1 others, r - 1/2 where the mean is r / 2: so
    2 - 1 / r, whether keys and values go round or all are gathered. Ranks that exchange heads see the whole sequence.
    1 where chunks are dealt out evenly (no `unbalanced_rings`: see costmodel/stacks.toml), whose ranks wait for nobody.
    """
    return 1 + x.unbalanced_rings * (1 - x.cp_a2a_size / x.cp)


def core_flops_forward(x: SimpleNamespace, width: Amount) -> Amount:
    """FLOPs of Q K^T and P V of one block and micro-batch on one rank, masked work left out. [FLOP]

    4 T keys a width / tp, width the mean of the query's and the value's head dimension. Context parallel
    splits the causal work evenly (load-balanced chunks). Backward takes 2.5 times this in a fused kernel
    (recomputed scores, dQ, dK, dV, dP). Sources: T. Dao, FlashAttention-2, arXiv:2307.08691; Megatron-Core dry
    run, 0.5 x 4 s^2 h / TP.
    """
    return 4 * tokens(x) * attended_keys(x) * x.a * width / x.tp


def sink_gradient(x: SimpleNamespace) -> Stream:
    """Gradient of each head's learned sink, in the kernel that multiplies output and gradient; see `SINK_CYCLES`."""
    busy = x.sinks * x.megatron_core * SINK_CYCLES * tokens(x) * x.a / x.tp
    return Stream("sinks", 0, 0, busy=(0, busy), cycles=("", "timed_cycles"))


def sink_scaling(x: SimpleNamespace) -> Stream:
    """Output times the sigmoid of its log-sum-exp less the sink, where the core has none; see `SCALED_SINK`."""
    forward, backward = (
        x.sinks * x.scales_sinks * size * tokens(x) * x.a * x.d_v / x.tp for size in SCALED_SINK
    )
    return Stream("sink_scale", forward, backward)


# Bytes a score that PyTorch's own softmax in FP32 moves beyond a fused kernel's, forward and backward, those it keeps,
# and its kernels more: cast (6), mask filled in (8), softmax (8), cast back (6); backward cast (6), softmax (12), mask
# (8), cast (6). Counted as PyTorch 2.13 issues them: Megatron-Core 0.19.2, fusions/fused_softmax.py,
# forward_torch_softmax.
WIDE_SCORES, WIDE_SCORES_SAVED, WIDE_SCORES_KERNELS = (24, 26), 4, (5.0, 3.0)


# Bytes a score that its cap moves forward and backward, those that it keeps, and its kernels: a quotient, the tanh and
# a product of 16-bit scores (4 each); backward the same, and the tanh reads what it put out (6), which is kept.
CAPPED_SCORES, CAPPED_SCORES_SAVED, CAPPED_SCORES_KERNELS = (12, 14), 2, 3.0


def score_elements(x: SimpleNamespace) -> Amount:
    """Elements of the attention score matrices of one block and micro-batch on one rank. [1]

    b a s^2 / (tp cp), written to memory only by unfused attention. Source: V. Korthikanti et al.,
    arXiv:2205.05198, sec. 4.1.
    """
    return x.b * x.a * x.s**2 / (x.tp * x.cp)


def unfused_score_bytes_forward(x: SimpleNamespace) -> Amount:
    """HBM bytes that unfused attention moves for its scores, forward. [byte]

    Scaled masked softmax reads and writes them (2 x 2 B), dropout reads, writes and stores a mask
    (2 + 2 + 1 B). The GEMMs' own traffic is counted there. Source: Megatron-LM's fused softmax kernel;
    arXiv:2205.05198, sec. 4.1.
    """
    own = WIDE_SCORES[0] * x.scores_wide + CAPPED_SCORES[0] * x.capped_scores
    return ((2 + 2 * x.dropout) * x.activation_bytes + x.dropout + own) * score_elements(x)


def unfused_score_bytes_backward(x: SimpleNamespace) -> Amount:
    """HBM bytes that unfused attention moves for its scores, backward. [byte]

    Softmax backward reads gradient and output, writes gradient (6 B); dropout reads gradient and
    mask, writes (5 B). Source: as forward.
    """
    own = WIDE_SCORES[1] * x.scores_wide + CAPPED_SCORES[1] * x.capped_scores
    return ((3 + 2 * x.dropout) * x.activation_bytes + x.dropout + own) * score_elements(x)


def unfused_core_flops(x: SimpleNamespace, width: Amount) -> Amount:
    """FLOPs of unfused attention forward: the whole square is computed. [FLOP]

    Source: arXiv:2104.04473, appendix (4 b s^2 h per layer); backward takes twice this.
    """
    return 4 * score_elements(x) * width


def saved_scores(x: SimpleNamespace) -> Amount:
    """Softmax output, dropout mask and dropout output of unfused attention. [byte]

    In 16 bits 5 a s^2 b / tp with dropout, 2 without; 4 more where scores are in FP32; zero when the attention core is
    computed again.
    Source: arXiv:2205.05198, sec. 4.1.
    """
    kept = (1 + x.dropout) * x.activation_bytes + x.dropout
    kept += WIDE_SCORES_SAVED * x.scores_wide + CAPPED_SCORES_SAVED * x.capped_scores
    return x.unfused * (1 - x.recompute_attention) * kept * score_elements(x)


def saved_norm(
    x: SimpleNamespace,
    offload_input: Amount,
    offload_output: Amount,
    output: Amount,
    *,
    inside: Amount = 0,
    apart: int = 0,
) -> dict[str, Amount]:
    """Input of a block's norm (the residual stream, kept always), its output, and the dropout mask. [byte]

    output: what the linear layers behind it keep as their input [byte]; none of it when everything but products is
    computed again, or what the norm stands `inside` of. Recompute of norms alone frees it
    where the norm is a module of its own (`apart`: in front of MLA and of experts): elsewhere Transformer Engine's
    linear layer holds the norm, and Megatron-Core recomputes nothing. What waits in host memory is left out.
    A composed norm keeps its input in FP32 and what it has scaled too.
    Source: Megatron-Core 0.16.1, transformer_layer.py, recompute_input_layernorm, and gpt_layer_specs.py.
    """
    return {
        "norm input": (1 - offload_input) * x.activation_bytes * residual_tokens(x) * x.h,
        "norm output": (1 - apart * x.recompute_norm)
        * (1 - inside)
        * (1 - x.recompute_ops)
        * (1 - offload_output)
        * output,
        "norm parts": composes_norm(x)
        * (1 - inside)
        * (1 - x.recompute_ops)
        * COMPOSED_NORM_SAVED
        * residual_tokens(x)
        * x.h,
        "dropout mask": x.dropout * residual_tokens(x) * x.h,
    }


def exchanged(x: SimpleNamespace) -> Amount:
    """1 where context parallelism copies queries, keys and values: rings join keys and values in a buffer of their own,
    all-to-alls make new tensors; an all-gather keeps this rank's as they were, and so does recompute of the core. [1]

    Source: Transformer Engine 2.8, dot_product_attention/context_parallel.py.
    """
    return is_more_than_one(x.cp) * (1 - x.cp_all_gather) * (1 - x.recompute_attention)


def second_output(x: SimpleNamespace) -> Amount:
    """1 where context parallelism keeps the kernel's output beside what becomes of it: before the all-to-all back, or
    as halves that an all-gather's queries are worked off in. [1] Source: as `exchanged`.
    """
    return is_more_than_one(x.cp) * maximum(x.cp_all_gather, x.cp_a2a) * (1 - x.recompute_attention)


def saved_core_output(x: SimpleNamespace, width: Amount) -> Amount:
    """Output of the attention core with its log-sum-exp, and the projection's input. [byte]

    The fused backward pass reads the 16-bit output; a trained projection with delayed scaling keeps its own copy in
    8 bits, with other recipes it quantises the output anew (save_original_input). A gate keeps a copy too, and so
    does the scaling for a sink. width: head dimension of the values. Source: Megatron-Core, attention.py and
    multi_latent_attention.py.
    """
    quantised = x.trained * x.quantised_copy * (1 - x.recompute_ops) * (1 - same_format(x))
    copy = (
        quantised * x.saved_bytes
        + (x.output_gate + second_output(x) + x.sinks * x.scales_sinks) * x.activation_bytes
    )
    output = (x.activation_bytes + copy) * tokens(x) * x.a * width / x.tp
    return (1 - x.offload_attn_proj) * output + 4 * tokens(x) * x.a / x.tp


def output_gate(x: SimpleNamespace) -> Stream:
    """Attention output times its gate: both read, the product written; backward both read with the product's gradient,
    and both gradients written."""
    size = x.output_gate * x.activation_bytes * tokens(x) * x.a / x.tp
    return Stream("gate", size * (2 * x.d_v + x.gate_width), size * (3 * x.d_v + 2 * x.gate_width))


def value_scale(x: SimpleNamespace) -> Stream:
    """Values that a constant multiplies, and their gradient, read and written; forward not where `head_copies` has it:
    the product is the copy.

    Source: Megatron-Bridge 0.6.2, mimo_v2_flash/modeling_mimo_v2_flash.py, MiMoV2FlashTEDotProductAttention.
    """
    values = x.values_scaled * x.activation_bytes * tokens(x) * kv_heads_per_rank(x) * x.d_v
    return Stream("value_scale", 2 * values * (1 - x.megatron_core * x.rotary), 2 * values)


def attention(x: SimpleNamespace, name: str = "attention") -> BlockWork:
    """Grouped-query attention. Source: Megatron-Core, SelfAttention; J. Ainslie et al., arXiv:2305.13245.

    name: of the block, one of `costmodel.symbols.HEADED_BLOCKS`. Saved: the QKV output, which the value view keeps
    alive whole unless values are scaled, and the rotated queries and keys (nothing is copied without rotary
    embedding): the 2.25 bytes beyond the hand count in Megatron-Core's dry run. Copies that context parallelism makes
    stand for both, unless norms of heads keep the QKV output as their input.
    Per-op recompute (ops) keeps the layer's input, every other product (queries and values here, the gate's half of
    FC1's output in the MLP) and the attention core's output. Source: torchtitan, activation_checkpoint.py.
    """
    heads, kv = x.a / x.tp, kv_heads_per_rank(x)
    rows = tokens(x)
    queries, keys, values = heads * x.d, kv * x.d, kv * x.d_v
    columns = x.a * (x.d + x.gate_width) + x.k * (x.d + x.d_v)  # of all ranks
    qkv = columns / x.tp
    shared = heads_are_shared(x)
    copied, new = exchanged(x), maximum(x.rotary, is_more_than_one(x.cp_a2a_size))  # new: queries no view
    scaled = (1 - copied) * x.values_scaled  # values that are none
    # Layouts of several groups copy gates and queries, others have views. Norms of heads keep the copied queries and a
    # statistic a head; the core keeps them where nothing rotates them.
    grouped = is_more_than_one(kv) * is_more_than_one(heads / kv)
    gate_view = minimum(1, x.gate_width) * (1 - grouped)
    apart = copied * maximum(new, grouped) + scaled * new
    whole = maximum(1 - apart * (1 - x.qk_norms), gate_view)
    # Views of what was gathered keep all of it alive.
    kept_whole = (1 - shared) * qkv + shared * columns
    everything = (
        whole * kept_whole + copied * (maximum(new, grouped) * queries + keys + values) + scaled * values
    )
    everything += (1 - copied) * x.rotary * (queries + keys) + grouped * heads * x.gate_width
    plain = (1 - copied) * (1 - x.rotary) * (1 - x.qk_norms)
    everything += x.qk_norms * 2 * (heads + kv) + (x.qk_norms + plain) * grouped * queries
    kept = (1 - x.recompute_ops) * everything + kept_products(x) * (queries + values)
    split = [sum(kernels) for kernels in zip(split_kernels(x), rotary_kernels(x), strict=True)]
    return BlockWork(
        name=name,
        linears=(
            Linear(
                "qkv",
                qkv,
                x.h,
                rows,
                "column",
                adapter="qkv",
                normed=joined_norm(x, "qkv"),
                products=QKV_PRODUCTS,
            ),
            Linear("proj", x.h, heads * x.d_v, rows, "row", adapter="proj"),
        ),
        streams=(
            norm(
                x,
                x.qk_norms * rows * (x.a + x.k) * x.d / x.tp,
                joined_norm(x, "qkv"),
            ),
            residual(x),
            rotary(x, (x.a + x.k) * x.d / x.tp),
            head_copies(x, queries, keys, values, grouped),
            sink_gradient(x),
            sink_scaling(x),
            output_gate(x),
            value_scale(x),
            packing(x, (x.a + x.k) * (x.d + x.d_v) / x.tp),
            input_gradient_sum(x, QKV_PRODUCTS),
        ),
        gathered=x.operand_bytes * rows * x.h,
        reduced=x.activation_bytes * rows * x.h,
        joined=shared * x.activation_bytes * rows * columns,
        saved=saved_norm(x, x.offload_attn_norm, x.offload_qkv_linear, kept_norm(x, "qkv"))
        | {
            "queries, keys, values": (1 - x.offload_core_attn) * x.activation_bytes * rows * kept,
            "rotary angles": (1 - x.recompute_ops) * saved_angles(x, x.d),
            "attention output": saved_core_output(x, x.d_v),
            "attention scores": saved_scores(x),
        },
        vectors=x.qkv_biases * qkv
        + x.biases * x.h
        + x.norm_vectors * x.h
        + 2 * x.qk_norms * x.d
        + x.sinks * heads,
        kernels_forward=ATTENTION_KERNELS[0]
        + (3 + WIDE_SCORES_KERNELS[0] * x.scores_wide + CAPPED_SCORES_KERNELS * x.capped_scores) * x.unfused
        + split[0],
        kernels_backward=ATTENTION_KERNELS[1]
        + (4 + WIDE_SCORES_KERNELS[1] * x.scores_wide + CAPPED_SCORES_KERNELS * x.capped_scores) * x.unfused
        + x.values_scaled
        + split[1],
        loops=document_loops(x, DOCUMENT_KERNELS),
    )
