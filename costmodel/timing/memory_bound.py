"""Seconds of kernels that only move bytes: element-wise, norms, casts, the optimizer, host copies."""

from __future__ import annotations

from costmodel.amount import Amount, maximum


def stream_time(num_bytes: Amount, *, bandwidth: Amount, fraction: Amount, latency: Amount = 0) -> Amount:
    """Time to move bytes once through memory (or over a host link). [s]

    Parameters
    ----------
    num_bytes
        Bytes read plus bytes written; the caller counts both. [byte]
    bandwidth
        Bandwidth on the data sheet. [byte/s]
    fraction
        Part of it that this kind of kernel reaches, 0 < fraction <= 1: plain stream copy, fused
        norm, generic element-wise, norm backward; see [memory] of the calibrated tables. [1]
    latency
        Shortest time of one kernel; nothing runs faster however few bytes it moves. [s]

    Notes
    -----
    max(latency, bytes / (fraction bandwidth)). The fractions are of arrays well above the L2 cache
    (> 100 MB); smaller ones can be faster than this when their data are still in the cache.

    Examples
    --------
    >>> stream_time(4e9, bandwidth=4e12, fraction=0.5)
    0.002

    References
    ----------
    J. McCalpin, STREAM; NVIDIA cuDNN frontend norm benchmarks; Azure AI benchmarking guide.
    """
    return maximum(latency, num_bytes / (bandwidth * fraction))
