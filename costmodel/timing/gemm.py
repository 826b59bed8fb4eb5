"""Seconds of one matrix product (GEMM): a roofline whose rate depends on the shape.

Time is a fixed launch part plus the larger of compute and memory time. Two shape effects are kept
because the measured tables show them: output tiles fill the processors in waves, the last of which
is partly empty, and every tile pays a prologue and an epilogue worth some extra inner elements.
"""

from __future__ import annotations

from costmodel.amount import Amount, ceiling, maximum

# Output tile of one thread block. [1] Source: the 128 x 256 tile of cuBLAS and CUTLASS for large
# GEMMs on Ampere to Blackwell; measured tables of 10 GPUs are fitted with it (docs/kernel-fits.md).
TILE_ROWS = 128
TILE_COLUMNS = 256


def gemm_flops_in_waves(
    m: Amount, n: Amount, k: Amount, *, num_sms: Amount, wave_weight: Amount, k_half: Amount = 0
) -> Amount:
    """FLOPs that a GEMM keeps the device busy for, idle processors and prologue included. [FLOP]

    Parameters
    ----------
    m, n, k
        The product of an (m, k) and a (k, n) matrix. [1]
    num_sms
        Processors (SMs, CUs) that each compute one tile at a time. [1]
    wave_weight
        0: the last wave costs what it computes (stream-K, small tiles); 1: it costs a full wave. [1]
    k_half
        Inner elements that prologue and epilogue of a tile are worth: at k = k_half a GEMM reaches
        half of its rate. [1]

    Notes
    -----
    2 (k + k_half) [(1 - wave_weight) m n + wave_weight ceil(tiles / SMs) SMs x 128 x 256] with
    tiles = ceil(m / 128) ceil(n / 256). Not less than 2 m n k and never falls when a dimension grows.
    The published fit (2 m n k times 1 + w (ceil(waves) / waves - 1)) is the same for m, n in whole tiles.

    Examples
    --------
    >>> gemm_flops_in_waves(128, 256, 1024, num_sms=1, wave_weight=0.5) == 2 * 128 * 256 * 1024
    True

    References
    ----------
    NVIDIA, Matrix Multiplication Background User's Guide, wave and tile quantization.
    """
    tiles = ceiling(m / TILE_ROWS) * ceiling(n / TILE_COLUMNS)
    full_waves = ceiling(tiles / num_sms) * (num_sms * TILE_ROWS * TILE_COLUMNS)
    return 2 * (k + k_half) * (m * n * (1 - wave_weight) + full_waves * wave_weight)


def gemm_time(
    m: Amount,
    n: Amount,
    k: Amount,
    *,
    peak: Amount,
    e_max: Amount,
    num_sms: Amount,
    wave_weight: Amount,
    launch_latency: Amount,
    operand_bytes: Amount,
    bandwidth: Amount,
    k_half: Amount = 0,
) -> Amount:
    """Time of one GEMM on its own. [s]

    Parameters
    ----------
    m, n, k
        The product of an (m, k) and a (k, n) matrix; m, n >= 1, k >= 1. [1]
    peak
        Dense peak of the number format on the data sheet. [FLOP/s]
    e_max
        Fraction of `peak` that large GEMMs reach; 0 < e_max <= 1. [1]
    num_sms, wave_weight, k_half
        See `gemm_flops_in_waves`. [1]
    launch_latency
        Fixed time of one GEMM, t0. [s]
    operand_bytes
        HBM bytes of both operands and the output. [byte]
    bandwidth
        HBM bandwidth that a memory-bound GEMM reaches. [byte/s]

    Notes
    -----
    t0 + max(FLOPs in waves / (e_max peak), bytes / bandwidth). Fitted for m >= 256 and n, k >= 512;
    smaller shapes are memory- or launch-bound and stay within a factor of two. Quantisation of the
    operands is not part of it: FP8, MXFP8 and NVFP4 constants are those of the pure product.
    A constant e_max is the short-burst rate; a power-capped device runs at e_max x sustained_ratio.

    Examples
    --------
    >>> t = gemm_time(8192, 8192, 8192, peak=1e15, e_max=0.75, num_sms=128, wave_weight=0.0,
    ...               launch_latency=3e-6, operand_bytes=4e8, bandwidth=3e12)
    >>> round(t * 1e3, 3)
    1.469

    References
    ----------
    S. Williams et al., Roofline, CACM 2009; NVIDIA aiconfigurator GEMM tables (docs/kernel-fits.md).
    """
    flops = gemm_flops_in_waves(m, n, k, num_sms=num_sms, wave_weight=wave_weight, k_half=k_half)
    return launch_latency + maximum(flops / (e_max * peak), operand_bytes / bandwidth)
