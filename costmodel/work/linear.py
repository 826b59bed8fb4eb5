"""Linear layers of a dense decoder on one rank: their GEMM shapes, FLOPs and bytes.

A linear layer with M tokens, K inputs and N outputs on this rank is one GEMM (M, N, K) forward, one
(M, K, N) for the data gradient and one (N, K, M) for the weight gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, ceiling, maximum


@dataclass(frozen=True)
class Linear:
    """One linear layer on one rank. columns: N outputs, inner: K inputs. [1]

    column_parallel: outputs are split over tp (QKV, FC1), so its input is gathered; otherwise the
    inner dimension is split (projection, FC2), so its output is reduced.
    """

    name: str
    columns: Amount
    inner: Amount
    column_parallel: bool


def tokens(x: SimpleNamespace) -> Amount:
    """Tokens one rank sees in one micro-batch inside the tensor-parallel region. [1]

    b s / cp: context parallel splits the sequence, tensor parallel does not (sequence parallelism is
    gathered before the GEMM). Source: Megatron-Core context parallelism; V. Korthikanti et al.,
    MLSys 2023, arXiv:2205.05198.
    """
    return x.b * x.s / x.cp


def kv_heads_per_rank(x: SimpleNamespace) -> Amount:
    """Key/value heads on one rank: k / tp, at least one. [1]

    Megatron-Core replicates key/value heads when tp exceeds them. Source: shared notes on
    Megatron-Core 0.16.1, dry run ("accepts kv groups < TP (mcore replicates KV)").
    """
    return maximum(x.k / x.tp, 1)


def linears(x: SimpleNamespace) -> tuple[Linear, ...]:
    """The four linear layers of one decoder layer. Source: Megatron-Core, TransformerLayer.

    QKV: h -> (a + 2k) d; projection: a d -> h; FC1: h -> f, twice when gated; FC2: f -> h.
    """
    return (
        Linear("qkv", (x.a / x.tp + 2 * kv_heads_per_rank(x)) * x.d, x.h, True),
        Linear("proj", x.h, x.a * x.d / x.tp, False),
        Linear("fc1", (1 + x.gates) * x.f / x.tp, x.h, True),
        Linear("fc2", x.h, x.f / x.tp, False),
    )


def gemm_flops(rows: Amount, columns: Amount, inner: Amount) -> Amount:
    """FLOPs of one GEMM, 2 M N K. [FLOP] Source: one multiply and one add for each product."""
    return 2 * rows * columns * inner


def padded_vocabulary(x: SimpleNamespace) -> Amount:
    """Vocabulary padded to a multiple of V_multiple x tp. [1]

    Source: Megatron-Core, make_vocab_size_divisible_by.
    """
    multiple = x.V_multiple * x.tp
    return ceiling(x.V / multiple) * multiple


def gemm_bytes(
    rows: Amount, columns: Amount, inner: Amount, operand_bytes: Amount, output_bytes: Amount
) -> Amount:
    """HBM bytes of one GEMM that reads both operands and writes its output once. [byte]

    Holds when the L2 cache keeps tiles of one operand; a lower bound otherwise. Source: roofline model,
    S. Williams et al., CACM 2009.
    """
    return operand_bytes * (rows * inner + inner * columns) + output_bytes * rows * columns


def linear_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of the linear layers of one decoder layer, forward, one micro-batch, one rank. [FLOP]

    Data and weight gradients take the same again each. Source: D. Narayanan et al., SC 2021,
    arXiv:2104.04473, appendix, with grouped queries and gated MLP.
    """
    return sum(gemm_flops(tokens(x), linear.columns, linear.inner) for linear in linears(x))


def linear_weights(x: SimpleNamespace) -> Amount:
    """Weights of the four linear layers of one decoder layer on one rank. [1]"""
    return sum(linear.columns * linear.inner for linear in linears(x))
