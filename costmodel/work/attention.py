"""The attention core on one rank: FLOPs, and bytes when it is not fused."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount


def attention_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of Q K^T and P V of one layer and micro-batch on one rank, causal half counted. [FLOP]

    4 b s^2 a d / (tp cp) x 1/2. Context parallel splits the causal work evenly (load-balanced
    chunks). Backward takes 2.5 times this in a fused kernel (recomputed scores, dQ, dK, dV, dP).
    Sources: T. Dao, FlashAttention-2, arXiv:2307.08691; Megatron-Core dry run, 0.5 x 4 s^2 h / TP.
    """
    return 2 * x.b * x.s**2 * x.a * x.d / (x.tp * x.cp)


def score_elements(x: SimpleNamespace) -> Amount:
    """Elements of the attention score matrices of one layer and micro-batch on one rank. [1]

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
    return (4 + 5 * x.dropout) * score_elements(x)


def unfused_score_bytes_backward(x: SimpleNamespace) -> Amount:
    """HBM bytes that unfused attention moves for its scores, backward. [byte]

    Softmax backward reads gradient and output, writes gradient (6 B); dropout reads gradient and
    mask, writes (5 B). Source: as forward.
    """
    return (6 + 5 * x.dropout) * score_elements(x)


def unfused_attention_flops(x: SimpleNamespace) -> Amount:
    """FLOPs of unfused attention forward: both halves of the causal square are computed. [FLOP]

    Source: arXiv:2104.04473, appendix (4 b s^2 h per layer); backward takes twice this.
    """
    return 2 * attention_flops_forward(x)
