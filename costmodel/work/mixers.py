"""Recurrent mixers on one rank: Mamba-2 and the gated delta net."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.adapters import joined_norm, kept_input, kept_norm
from costmodel.work.attention import saved_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import norm, residual, split_kernels
from costmodel.work.linear import Linear, tokens

# Tokens of one chunk of the scan. Sources: Megatron-Core 0.16.1, mamba_mixer.py (128); flash-linear-attention, gated
# delta rule (64).
MAMBA_CHUNK, DELTA_CHUNK = 128, 64
# Bytes of FP32 kept for each token and value head of a gated delta net: the decay, its softplus and what that was of,
# and a statistic of the norm. Source: Megatron-Core 0.16.1, gated_delta_net.py, forward; dry run.
DECAY_BYTES = 4 * 4
# State that the scan's kernels take in one product, and what a wider one costs more; see `wide_state`.
WIDEST_STATE, WIDE_STATE_COST = 128, 0.5
# Kernels of the convolution, scan and gated norm, forward and backward. Sources: mamba_ssm, ssd_combined.py;
# Megatron-Core 0.16.1, gated_delta_net.py, counted by hand.
SCAN_KERNELS = {"mamba": (16.0, 26.0), "delta": (28.0, 40.0)}


def scanned_groups(x: SimpleNamespace) -> Amount:
    """Groups of Mamba's B and C that a scan reads for each of a rank's tokens: context ranks share one by repeats. [1]

    Source: Megatron-Core 0.16.1, mamba_context_parallel.py, pre_conv_ssm.
    """
    return maximum(x.mamba_groups / x.tp, x.cp)


def repeated_columns(x: SimpleNamespace) -> Amount:
    """Columns of B and C that a Mamba mixer's convolution and scan read beside those that it projects. [1]"""
    return 2 * x.mamba_state * (scanned_groups(x) - maximum(x.mamba_groups / x.tp, 1))


def mamba_scan_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of the Mamba-2 scan of one block and micro-batch on one rank, chunk by chunk. [FLOP]

    A token meets half its chunk within (C B^T of each group, then times x of each head) and the state of
    state x dim a head twice: 2 T (c/2 groups n + c/2 heads p + 2 heads p n).
    Source: T. Dao, A. Gu, arXiv:2405.21060, sec. 6.
    """
    heads = x.mamba_heads / x.tp
    inside = MAMBA_CHUNK / 2 * (scanned_groups(x) * x.mamba_state + heads * x.mamba_dim)
    return 2 * tokens(x) * (inside + 2 * heads * x.mamba_dim * x.mamba_state)


def wide_state(x: SimpleNamespace) -> Amount:
    """Time of a Mamba-2 scan over that of one with as many FLOPs and a state of 128 at most. [1]

    mamba_ssm's kernels take a state up to 128 in one product and loop over a wider one. How much slower that is was
    chosen by the errors of left-out models and releases: without it Nemotron-H 56B (256) comes out 4 % fast while
    Nemotron 3 Nano (128) comes out 6 % slow on H100. Source: mamba-ssm 2.2.4 and 2.3.2, ops/triton/ssd_chunk_scan.py,
    ssd_chunk_state.py and ssd_combined.py (BLOCK_SIZE_DSTATE <= 128).
    """
    return 1 + WIDE_STATE_COST * minimum(1, maximum(0, x.mamba_state - WIDEST_STATE))


def delta_scan_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of the gated delta rule of one block and micro-batch on one rank, chunk by chunk. [FLOP]

    Within a chunk of c tokens: K K^T and its inverse, Q K^T, and their products with values and keys; between
    chunks the dk x dv state is read and updated. Source: S. Yang et al., arXiv:2412.06464, sec. 3.
    """
    heads = x.delta_value_heads / x.tp
    inside = DELTA_CHUNK * (2 * x.delta_key_dim + 1.5 * x.delta_value_dim)
    return 2 * tokens(x) * heads * (inside + 3 * x.delta_key_dim * x.delta_value_dim)


def mamba(x: SimpleNamespace) -> BlockWork:
    """Mamba-2 mixer: input projection, short convolution, scan, gated norm, output projection.

    Source: T. Dao, A. Gu, arXiv:2405.21060; Megatron-Core, mamba_mixer.py.
    """
    inner = x.mamba_heads * x.mamba_dim / x.tp
    shared = 2 * maximum(x.mamba_groups / x.tp, 1) * x.mamba_state
    wide = 2 * inner + shared + x.mamba_heads / x.tp
    return _mixer(x, "mamba", wide, inner + shared, inner, 3 * x.mamba_heads, repeated_columns(x))


def delta(x: SimpleNamespace) -> BlockWork:
    """Gated delta net mixer: projections to q, k, v, gate and two scalars a head, convolution, delta rule.

    Source: S. Yang et al., arXiv:2412.06464; transformers Qwen3NextGatedDeltaNet.
    """
    value = x.delta_value_heads * x.delta_value_dim / x.tp
    key = x.delta_key_heads * x.delta_key_dim / x.tp
    wide = 2 * key + 2 * value + 2 * x.delta_value_heads / x.tp
    return _mixer(x, "delta", wide, 2 * key + value, value, 2 * x.delta_value_heads)


def _mixer(
    x: SimpleNamespace,
    name: str,
    wide: Amount,
    convolved: Amount,
    inner: Amount,
    per_head: Amount,
    repeated: Amount = 0,
) -> BlockWork:
    """A mixer that projects to `wide` columns, convolves some and `repeated` ones, scans, and projects `inner` back.

    Mamba's fused kernel convolves again in the backward pass. Source: mamba_ssm, ssd_combined.py,
    MambaSplitConv1dScanCombinedFn.
    """
    rows, e = tokens(x), x.activation_bytes
    split = split_kernels(x)
    met, read = wide + repeated, convolved + repeated
    return BlockWork(
        name=name,
        linears=(
            Linear("in_proj", wide, x.h, rows, "column", adapter="mlp", normed=joined_norm(x, "mlp")),
            Linear("out_proj", x.h, inner, rows, "row", adapter="mlp"),
        ),
        streams=(
            norm(x, joined=joined_norm(x, "mlp")),
            residual(x),
            _copies(x, name, met, read, inner),
            Stream("convolution", 2 * e * rows * read, 4 * e * rows * read),
            Stream("scan", e * rows * (2 * read + 4 * inner), 2 * e * rows * (2 * read + 4 * inner)),
            Stream("gated_norm", 3 * e * rows * inner, 5 * e * rows * inner, "norm"),
        ),
        gathered=x.operand_bytes * rows * x.h,
        reduced=e * rows * x.h,
        saved=saved_norm(x, x.offload_attn_norm, x.offload_qkv_linear, kept_norm(x, "mlp"))
        | (_saved_delta(x, rows, met, read, inner) if name == "delta" else _saved_mamba(x, rows, met, inner))
        | {"out_proj input": kept_input(x, "mlp") * rows * inner},
        vectors=x.norm_vectors * x.h
        + x.conv * convolved
        + per_head / x.tp
        + _own_vectors(x, name, convolved, inner),
        kernels_forward=SCAN_KERNELS[name][0] + split[0],
        kernels_backward=SCAN_KERNELS[name][1] + split[1],
    )


def _copies(x: SimpleNamespace, name: str, wide: Amount, convolved: Amount, inner: Amount) -> Stream:
    """What a mixer copies into another order around its convolution and scan.

    Mamba: sequences one after the other, the projection's output before and the scan's after, where a micro-batch has
    several. Gated delta: tokens innermost for the convolution and back (not where `strided_delta`); normalised queries
    and keys, repeated for each value head; values, gate; backward the same and the parts of the projection joined.
    Source: Megatron-Core 0.16.1, mamba_mixer.py, _ssm_training; 0.16.1 and 0.18.2, gated_delta_net.py, forward.
    """
    size = x.activation_bytes * tokens(x)
    if name == "mamba":
        both = 2 * size * (wide + inner) * is_more_than_one(x.b)
        return Stream("copies", both, both)
    keys, several = convolved - inner, is_more_than_one(x.b)
    repeated = copies_keys(x) * (keys + 2 * x.delta_value_heads * x.delta_key_dim / x.tp)
    turned = (1 - x.strided_delta) * 2 * convolved
    forward = (4 + 2 * several) * inner + turned + 4 * keys + repeated
    backward = 2 * convolved + turned + 3 * keys + repeated + (2 + 2 * several) * wide
    return Stream("copies", size * forward, size * backward)


def copies_keys(x: SimpleNamespace) -> Amount:
    """1 where a gated delta net copies normalised queries and keys, which its norm keeps too. [1]

    Several value heads share one of theirs, which is repeated; or both are normalised at once, as parts of one tensor.
    Source: Megatron-Core 0.16.1 (repeat_interleave), 0.18.2 and 0.19.2 (query_key), gated_delta_net.
    """
    return maximum(is_more_than_one(x.delta_value_heads / maximum(x.delta_key_heads, 1)), x.strided_delta)


def _saved_mamba(x: SimpleNamespace, rows: Amount, wide: Amount, inner: Amount) -> dict[str, Amount]:
    """The fused scan keeps the projected input and its output before the gate, the norm behind it its input. [byte]

    Source: mamba_ssm, ssd_combined.py; Megatron-Core 0.16.1, mamba_mixer.py; dry run.
    """
    e = x.activation_bytes
    return {"projected": e * rows * wide, "scan output": 2 * e * rows * inner}


def _saved_delta(
    x: SimpleNamespace, rows: Amount, wide: Amount, convolved: Amount, inner: Amount
) -> dict[str, Amount]:
    """Input of the convolution; normalised keys and queries, both again where they are copied, a statistic of each
    before; values; a matrix of a chunk's width a head; output, its norm and the gate, whose product is one
    compiled kernel; decay and beta. [byte]

    The projection itself is split into copies, where a view of it is not convolved (`strided_delta`), which keeps it
    whole. Source: Megatron-Core 0.16.1 and 0.18.2, gated_delta_net.py;
    flash-linear-attention, gated_delta_rule/chunk.py; dry run.
    """
    e = x.activation_bytes
    heads, strided = x.delta_value_heads / x.tp, x.strided_delta
    # Compiled, decay and beta keep what they are of, and FP32 for the decay and the norm's statistic.
    decay = (1 - strided) * (DECAY_BYTES + e) + strided * (DECAY_BYTES / 2 + 2 * e)
    both = convolved - inner + copies_keys(x) * 2 * heads * x.delta_key_dim
    return {
        "convolution input": e * rows * ((1 - strided) * convolved + strided * wide),
        "queries, keys, values": e * rows * (both + inner),
        "scan": e * rows * (DELTA_CHUNK * heads + inner),
        "norm and gate": 2 * e * rows * inner,
        "decay": rows * (decay * heads + 4 * 2 * x.delta_key_heads / x.tp),
    }


def _own_vectors(x: SimpleNamespace, name: str, convolved: Amount, inner: Amount) -> Amount:
    """Mamba: convolution bias and the norm of `inner`; delta: the norm of one value head. [1]"""
    return convolved + inner if name == "mamba" else x.delta_value_dim
