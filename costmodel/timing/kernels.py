"""Seconds of single kernels: GEMM, fused attention, streaming. Rooflines with shape-aware efficiency.

Constants are fitted from measured tables by `tools/fit_tables.py` (docs/kernel-fits.md).
"""

from __future__ import annotations

from costmodel.amount import Amount, ceiling, maximum, minimum

# Output tile of one thread block of large GEMM kernels, rows and columns.
TILE_ROWS, TILE_COLUMNS = 128, 256
# Queries of one head that a thread block of an attention kernel on Blackwell works on: two tiles of 128.
QUERY_ROWS = 256


def gemm_time(
    rows: Amount,
    columns: Amount,
    inner: Amount,
    *,
    peak: Amount,
    fraction: Amount,
    num_sms: Amount,
    wave_weight: Amount,
    launch: Amount,
    num_bytes: Amount,
    bandwidth: Amount,
    groups: Amount = 1,
    fill: Amount = 0,
    uneven: Amount = 0,
) -> Amount:
    """Seconds of one GEMM (M, N, K), or of `groups` equal ones in one kernel: compute or memory. [s]

    Parameters
    ----------
    rows, columns, inner
        M, N, K. [1]
    peak, fraction
        Dense peak of the format [FLOP/s] and the fraction large GEMMs reach [1].
    num_sms, wave_weight
        Streaming multiprocessors; weight of the tail of the last wave of 128 x 256 tiles (0: stream-K
        hides it). [1]
    launch
        Fixed time. [s]
    num_bytes, bandwidth
        HBM bytes [byte] and the bandwidth a memory-bound GEMM reaches [byte/s].
    groups
        GEMMs that share the waves, as a grouped GEMM of experts. [1]
    fill
        Steps of K in whose time a tile's pipeline fills and its result is written. [1]
    uneven
        1 where M is the mean of groups' rows in `whole` tiles, which differ, so that waves end anywhere. [1]

    Notes
    -----
    t = launch + max(2 M N (K + fill) q / (fraction peak), bytes / bandwidth), q = 1 + weight (ceil(w) / w - 1),
    w = ceil(M / 128) ceil(N / 256) / SMs; of uneven groups M / 128 is whole, and ceil(w) a mean. Fitted for M >= 256
    and N, K >= 512; quantisation of operands is not in it.

    References
    ----------
    NVIDIA, Matrix Multiplication Background User's Guide (wave quantisation); tables of NVIDIA aiconfigurator.
    """
    tiles = (1 - uneven) * ceiling(rows / TILE_ROWS) + uneven * rows / TILE_ROWS
    waves = groups * tiles * ceiling(columns / TILE_COLUMNS) / num_sms
    tail = 1 + wave_weight * (whole(waves, uneven) / waves - 1)
    flops = 2 * groups * rows * columns * (inner + fill)
    return launch + maximum(flops * tail / (fraction * peak), num_bytes / bandwidth)


def whole(count: Amount, uneven: Amount = 0) -> Amount:
    """The next whole number; where `count` is a mean of counts that differ, the mean of theirs. [as count]

    That is half more, for the last of a count is filled by any share, and 1 at least.
    """
    if isinstance(uneven, int) and not uneven:
        return ceiling(count)
    return (1 - uneven) * ceiling(count) + uneven * maximum(1, count + 0.5)


def attention_time(
    flops: Amount,
    seq_len: Amount,
    head_dim: Amount,
    *,
    peak: Amount,
    fraction: Amount,
    half_seq: Amount,
    half_dim: Amount,
    launch: Amount,
    wide: Amount = 0,
    waves: Amount = 1,
    tail: Amount = 0,
) -> Amount:
    """Seconds of a fused attention kernel. [s]

    Parameters
    ----------
    flops
        FLOPs of the pass, the causal half counted. [FLOP]
    seq_len, head_dim
        Tokens in one call; head dimension. [1]
    peak, fraction
        Dense 16-bit peak [FLOP/s] and its fraction for long sequences at head dimension 128 [1].
    half_seq, half_dim
        Sequence length at which the rate is half; head dimension at which the exponentials take as
        long as the matrix products. [1]
    launch
        Fixed time. [s]
    wide
        Exponent with which the rate falls for heads wider than 128, whose tiles no longer fit. [1]
    waves, tail
        Thread blocks over SMs (`query_waves`), and waves in whose time the SMs that are done wait for the last blocks,
        which under a causal mask are not alike. [1]

    Notes
    -----
    rate = peak fraction s / (s + half_seq) x (1 + half_dim / 128) / (1 + half_dim / min(d, 128))
    x (128 / max(d, 128))^wide / (1 + tail / waves). The second factor is the softmax: its exponentials do not shrink
    with the head dimension.

    References
    ----------
    T. Dao, arXiv:2307.08691; J. Shah et al., FlashAttention-3, arXiv:2407.08608, sec. 3.1; tables of
    NVIDIA cudnn-frontend.
    """
    softmax = (1 + half_dim / minimum(head_dim, 128)) / (1 + half_dim / 128)
    shape = (1 + half_seq / seq_len) * softmax * (maximum(head_dim, 128) / 128) ** wide * (1 + tail / waves)
    return launch + flops * shape / (peak * fraction)


def query_waves(queries: Amount, heads: Amount, num_sms: Amount) -> Amount:
    """Thread blocks of an attention kernel over SMs: `QUERY_ROWS` queries of one head each. [1]

    queries: of all sequences in one call. heads: of queries, on this rank. [1]
    """
    return queries * heads / QUERY_ROWS / num_sms


def stream_time(num_bytes: Amount, *, bandwidth: Amount, fraction: Amount) -> Amount:
    """Seconds of memory-bound kernels that move `num_bytes` at a fraction of the bandwidth. [s]

    Launches are counted apart (`costmodel.timing.host`). Source: roofline model, CACM 2009.
    """
    return num_bytes / (bandwidth * fraction)
