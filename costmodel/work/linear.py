"""Linear layers on one rank: their GEMM shapes, FLOPs and bytes.

A linear layer with M tokens, K inputs and N outputs on this rank is one GEMM (M, N, K) forward, one
(M, K, N) for the data gradient and one (N, K, M) for the weight gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, ceiling, maximum, minimum


@dataclass(frozen=True)
class Linear:
    """One linear layer on one rank, or `groups` equal ones (the local experts). [1]

    columns: N outputs, inner: K inputs, rows: M tokens of one group. split: "column" when outputs are split
    over tp (QKV, FC1), so its input is gathered; "row" when the inner dimension is split (projection, FC2), so
    its output is reduced; "none" when every rank holds it whole. grouped: one of the experts' layers.
    quantised: in the recipe's format, else in the model's own. adapter: which low-rank adapters it belongs to
    under task lora: "qkv", "proj" or "mlp"; "" has none. cast_input, cast_grad: share of its input and of its output's
    gradient that a kernel of its own quantises; 0 where the product before it writes them so. normed: share of its
    input that the norm in front of it makes, one module with it. products: products with weights of their own that
    read the one input where the framework keeps them apart (`separate_gate`), whose input gradients are then summed.
    """

    name: str
    columns: Amount
    inner: Amount
    rows: Amount
    split: str
    groups: Amount = 1
    grouped: bool = False
    quantised: bool = True
    adapter: str = ""
    cast_input: Amount = 1
    cast_grad: Amount = 1
    normed: Amount = 0
    products: Amount = 1


def tokens(x: SimpleNamespace) -> Amount:
    """Tokens one rank sees in one micro-batch inside the tensor-parallel region. [1]

    b s / cp: context parallel splits the sequence, tensor parallel does not (sequence parallelism is
    gathered before the GEMM). Source: Megatron-Core context parallelism; V. Korthikanti et al.,
    MLSys 2023, arXiv:2205.05198.
    """
    return x.b * x.s / x.cp


def kv_heads_per_rank(x: SimpleNamespace) -> Amount:
    """Key/value heads that attention on one rank uses: k / tp, at least one. [1]

    Source: Megatron-Core 0.16.1, attention.py, get_query_key_value_tensors.
    """
    return maximum(x.k / x.tp, 1)


def heads_are_shared(x: SimpleNamespace) -> Amount:
    """1 where tensor-parallel ranks outnumber key/value heads: QKV outputs are gathered whole, each rank takes its
    part. [1] Source: as `kv_heads_per_rank`."""
    return minimum(maximum(x.tp - x.k, 0), 1)


def gemm_flops(rows: Amount, columns: Amount, inner: Amount) -> Amount:
    """FLOPs of one GEMM, 2 M N K. [FLOP] Source: one multiply and one add for each product."""
    return 2 * rows * columns * inner


def same_format(x: SimpleNamespace) -> Amount:
    """1 when linear inputs are kept in the activations' own format, else 0. [1]

    saved_bytes is activation_bytes (2 and 2, 4 and 4) or smaller (1 against 2).
    """
    return maximum(0, 1 - ceiling(x.activation_bytes - x.saved_bytes))


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


def linear_flops_forward(linear: Linear) -> Amount:
    """FLOPs of a linear layer forward, one micro-batch, one rank. [FLOP]

    Data and weight gradients take the same again each. Source: D. Narayanan et al., SC 2021, arXiv:2104.04473.
    """
    return linear.groups * gemm_flops(linear.rows, linear.columns, linear.inner)
