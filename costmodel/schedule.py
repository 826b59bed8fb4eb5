"""Pipeline schedules in closed form: bubble, micro-batches in flight.

1F1B and interleaved 1F1B. `costmodel.simulate` replays the same schedules event by event.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, minimum


def bubble_over_ideal(pp: Amount, num_microbatches: Amount, vpp: Amount = 1) -> Amount:
    """Idle time of interleaved 1F1B, over the compute time of an ideal pipe. [1]

    Parameters
    ----------
    pp
        p, pipeline stages. [1]
    num_microbatches
        m, micro-batches in one global batch. [1]
    vpp
        v, model chunks on each stage; 1 is plain 1F1B. [1]

    Notes
    -----
    Equal stage times; m a multiple of p when v > 1. Over ideal time, not step time.

    Examples
    --------
    >>> bubble_over_ideal(pp=8, num_microbatches=64, vpp=4)
    0.02734375

    References
    ----------
    D. Narayanan et al., SC 2021, sec. 2.2, arXiv:2104.04473.
    """
    return (pp - 1) / (vpp * num_microbatches)


def in_flight(x: SimpleNamespace, stage: Amount) -> Amount:
    """Micro-batches whose activations a stage (0 is the first) holds at its peak. [1]

    1F1B holds min(m, pp - stage). Interleaved holds min(m vpp, 2 (pp - stage - 1) + (vpp - 1) group + 1)
    chunks of 1 / vpp of the stage, group the micro-batches that pass a virtual stage in a row (pp by default).
    Overlapped expert dispatch warms up one chunk more, but runs forward and backward layer beside layer: what the
    one saves the other frees, so that one layer more is held (`costmodel.memory.activation_bytes`), no chunk. A step
    that drains the pipeline several times has as many fewer in each.
    Source: Megatron-Core, schedules.py (warm-up micro-batches plus one); equals pp (1 + (pp - 1) / (pp vpp)) of
    V. Korthikanti et al., arXiv:2205.05198, sec. 4.2.2, on the first stage.
    """
    interleaved = is_more_than_one(x.vpp)
    chunks = 2 * (x.pp - stage - 1) + (x.vpp - 1) * x.vpp_group + 1
    count = x.m / x.flushes
    return interleaved * minimum(chunks / x.vpp, count) + (1 - interleaved) * minimum(x.pp - stage, count)


def last_chunk_in_flight(x: SimpleNamespace, stage: Amount) -> Amount:
    """Micro-batches whose activations a stage holds of its last chunk, as in 1F1B: deep passes turn first. [1]"""
    return minimum(x.pp - stage, x.m / x.flushes)
