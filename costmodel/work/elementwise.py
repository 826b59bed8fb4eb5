"""Element-wise kernels of one decoder layer on one rank: nominal HBM bytes and kernel counts.

Bytes count each tensor a fused kernel must read or write once; `activation_bytes` (e) a element.
Real kernels reach a measured fraction of the memory bandwidth on these bytes.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.work.linear import tokens

NORMS_PER_LAYER = 2
RESIDUALS_PER_LAYER = 2

# Kernels of one layer with fused norms, rotary embedding, SwiGLU and bias-dropout-add, beyond the
# quantisation's: 135 forward and 170 backward in ten llama layers of a Megatron-Core 0.16.1 dry run.
FORWARD_KERNELS_PER_LAYER = 13.5
BACKWARD_KERNELS_PER_LAYER = 17.0


def residual_tokens(x: SimpleNamespace) -> Amount:
    """Tokens of norms and residuals on one rank: divided by tp with sequence parallelism. [1]

    Source: V. Korthikanti et al., arXiv:2205.05198, sec. 4.2.
    """
    return tokens(x) / (1 + x.sp * (x.tp - 1))


def norm_bytes_forward(x: SimpleNamespace) -> Amount:
    """Both norms of a layer: read and write the hidden state; queries and keys too if normalised. [byte]"""
    hidden = 2 * NORMS_PER_LAYER * residual_tokens(x) * x.h
    heads = 2 * x.qk_norms * tokens(x) * (x.a + x.k) * x.d / x.tp
    return x.activation_bytes * (hidden + heads)


def norm_bytes_backward(x: SimpleNamespace) -> Amount:
    """Both norms of a layer: read input and output gradient, write input gradient. [byte]"""
    return 1.5 * norm_bytes_forward(x)


def residual_bytes_forward(x: SimpleNamespace) -> Amount:
    """Two residual additions: read two, write one; a byte of mask an element with dropout. [byte]"""
    return RESIDUALS_PER_LAYER * residual_tokens(x) * x.h * (3 * x.activation_bytes + x.dropout)


def residual_bytes_backward(x: SimpleNamespace) -> Amount:
    """Two gradient additions where branch and residual meet; dropout reads mask and gradient. [byte]"""
    dropout = x.dropout * (2 * x.activation_bytes + 1)
    return RESIDUALS_PER_LAYER * residual_tokens(x) * x.h * (3 * x.activation_bytes + dropout)


def rotary_bytes(x: SimpleNamespace) -> Amount:
    """Rotary embedding reads and writes queries and keys, the same forward and backward. [byte]"""
    return 2 * x.rotary * x.activation_bytes * tokens(x) * (x.a + x.k) * x.d / x.tp


def activation_bytes_forward(x: SimpleNamespace) -> Amount:
    """SwiGLU reads both halves and writes one (3 f); GELU reads and writes (2 f). [byte]"""
    return (2 + x.gates) * x.activation_bytes * tokens(x) * x.f / x.tp


def activation_bytes_backward(x: SimpleNamespace) -> Amount:
    """SwiGLU reads both halves and the gradient, writes two (5 f); GELU reads two, writes one (3 f). [byte]"""
    return (3 + 2 * x.gates) * x.activation_bytes * tokens(x) * x.f / x.tp
