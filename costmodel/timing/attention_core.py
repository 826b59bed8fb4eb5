"""Seconds of the fused attention core (FlashAttention, cuDNN): Q K^T, softmax, P V and their gradients."""

from __future__ import annotations

from costmodel.amount import Amount, minimum

# Head dimension the calibrated rates are measured at. [1]
REFERENCE_HEAD_DIM = 128


def head_dim_factor(head_dim: Amount, head_dim_half: Amount) -> Amount:
    """Rate of attention at a head dimension over the rate at 128. [1]

    Parameters
    ----------
    head_dim
        d, between 32 and 256. [1]
    head_dim_half
        Head dimension of half the asymptotic rate: softmax work per score does not shrink with d. [1]

    Notes
    -----
    min(1, d (128 + h) / (128 (d + h))): 0.75 at d = 64 and 0.9 at 96 with h = 64. No gain above 128:
    measured 0.85 (cuDNN) to 1.03 (FlashAttention-3) at 256 on H100.

    Examples
    --------
    >>> head_dim_factor(64, 64)
    0.75

    References
    ----------
    J. Shah et al., FlashAttention-3, arXiv:2407.08608, figures 5 and 6.
    """
    scale = (REFERENCE_HEAD_DIM + head_dim_half) / REFERENCE_HEAD_DIM
    return minimum(1, head_dim * scale / (head_dim + head_dim_half))


def attention_time(
    flops: Amount,
    seq_len: Amount,
    *,
    peak: Amount,
    e_max: Amount,
    s_half: Amount,
    head_dim_factor: Amount = 1,
    latency: Amount = 0,
) -> Amount:
    """Time of one fused attention kernel, forward or backward. [s]

    Parameters
    ----------
    flops
        FLOPs with the causal half counted: forward 4 b s^2 a d / 2, backward 2.5 times that. Not the
        convention that counts the full square (its rates look twice as high). [FLOP]
    seq_len
        Tokens one kernel sees along the sequence; the chunk under ring context parallelism. [1]
    peak
        Dense peak of the number format of the attention matrices. [FLOP/s]
    e_max
        Fraction of peak of a long causal sequence at head dimension 128; apart for each pass. [1]
    s_half
        Sequence length at which half of that is reached: masked tiles on the diagonal and the
        prologue are a larger share of short sequences. [1]
    head_dim_factor
        See `head_dim_factor`; 1 at head dimension 128. [1]
    latency
        Fixed time of the kernel. [s]

    Notes
    -----
    latency + flops / (peak e_max factor) x (1 + s_half / s). Fitted on causal cuDNN tables for s from
    2k to 32k with 64 or 128 heads; fewer than about one head for each two processors runs slower.

    Examples
    --------
    >>> attention_time(1e12, 4096, peak=1e15, e_max=0.5, s_half=4096)
    0.004

    References
    ----------
    NVIDIA cuDNN frontend, SDPA training benchmark; T. Dao, FlashAttention-2, arXiv:2307.08691.
    """
    return latency + flops * (1 + s_half / seq_len) / (peak * e_max * head_dim_factor)
