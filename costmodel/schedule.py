"""Pipeline schedules in closed form: layers of a stage, bubble, micro-batches in flight.

1F1B and interleaved 1F1B. `costmodel.simulate` replays the same schedules event by event.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, ceiling, is_more_than_one, minimum


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


def layers_of_middle_stage(x: SimpleNamespace) -> Amount:
    """Decoder layers of a stage that has neither embedding nor loss. [1]

    The layers, plus one for the embedding and one for the loss where the plan counts them, spread
    evenly over pp x vpp chunks; rounded up where they do not divide (a balanced uneven layout).
    Source: Megatron-Core, get_num_layers_to_build.
    """
    accounted = x.L + x.account_embedding + x.account_loss
    return ceiling(accounted / (x.pp * x.vpp)) * x.vpp


def layers_of_first_stage(x: SimpleNamespace) -> Amount:
    """Decoder layers of the first stage: one fewer when the embedding counts as a layer. [1]

    All of them with one stage.
    """
    several = is_more_than_one(x.pp)
    return several * (layers_of_middle_stage(x) - x.account_embedding) + (1 - several) * x.L


def layers_of_last_stage(x: SimpleNamespace) -> Amount:
    """Decoder layers of the last stage: one fewer when the loss counts as a layer. [1]"""
    several = is_more_than_one(x.pp)
    return several * (layers_of_middle_stage(x) - x.account_loss) + (1 - several) * x.L


def in_flight_first_stage(x: SimpleNamespace) -> Amount:
    """Micro-batches whose activations the first stage holds at its peak. [1]

    1F1B holds min(m, pp). Interleaved holds min(m vpp, 2 (pp - 1) + (vpp - 1) pp + 1) chunks of
    1 / vpp of the stage. Source: Megatron-Core, schedules.py (warm-up micro-batches plus one);
    equals pp (1 + (pp - 1) / (pp vpp)) of V. Korthikanti et al., arXiv:2205.05198, sec. 4.2.2.
    """
    interleaved = is_more_than_one(x.vpp)
    chunks = 2 * (x.pp - 1) + (x.vpp - 1) * x.pp + 1
    return interleaved * minimum(chunks / x.vpp, x.m) + (1 - interleaved) * minimum(x.pp, x.m)


def in_flight_last_stage(x: SimpleNamespace) -> Amount:
    """Micro-batches whose activations the last stage holds at its peak. [1]

    One with 1F1B; (vpp - 1) pp + 1 chunks interleaved. Source: as for the first stage.
    """
    interleaved = is_more_than_one(x.vpp)
    chunks = (x.vpp - 1) * x.pp + 1
    return interleaved * minimum(chunks / x.vpp, x.m) + (1 - interleaved)
