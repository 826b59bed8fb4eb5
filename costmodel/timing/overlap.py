"""Overlap as exposed time: what of a communication the compute beside it cannot hide."""

from __future__ import annotations

from costmodel.amount import Amount, maximum, minimum


def exposed(communication: Amount, compute: Amount) -> Amount:
    """Communication left over when it runs beside `compute`. [s]

    max(0, communication - compute): exact for two streams that start together.
    """
    return maximum(0, communication - compute)


def pipelined_exposed(communication: Amount, compute: Amount, chunks: Amount) -> Amount:
    """Exposed time of a collective cut into chunks that alternate with the chunks of its GEMM. [s]

    The first (or last) chunk has nothing to hide behind; the rest is hidden as far as the GEMM lasts.
    chunks = 1 is no overlap. Source: Transformer Engine user buffers; S. Wang et al., ASPLOS 2023.
    """
    rest = communication * (1 - 1 / chunks)
    return communication / chunks + maximum(0, rest - compute * (1 - 1 / chunks))


def contention(communication: Amount, compute: Amount, slowdown: Amount) -> Amount:
    """Compute time lost while communication runs beside it: SMs and memory bandwidth are shared. [s]

    slowdown x the overlapped time. Source: measured between 0.05 and 0.3 on A100 to B200 (fitted).
    """
    return slowdown * minimum(communication, compute)
