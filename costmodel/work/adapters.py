"""Low-rank adapters beside frozen linear layers (task lora): their products, what they keep, their parameters.

Under tensor parallelism A's outputs are split beside a column-parallel layer and joined again; beside a row-parallel
one its inputs are, and its partial sums are reduced. B's outputs are split in both, and joined beside a row-parallel
layer, which has all of its own. The experts of a rank share one adapter.
Source: Megatron-Bridge 0.3.1 to 0.6.2, peft/utils.py, ParallelLinearAdapter; peft/lora.py, share_expert_adapters.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.work.block import BlockWork
from costmodel.work.elementwise import residual_tokens
from costmodel.work.linear import Linear, same_format, tokens


@dataclass(frozen=True)
class Adapter:
    """One adapter on one rank. on: 1 where it is; down, up: M, N, K of A and of B; out: elements it adds. [1]"""

    on: Amount
    down: tuple[Amount, Amount, Amount]
    up: tuple[Amount, Amount, Amount]
    out: Amount

    @property
    def parameters(self) -> Amount:
        """Elements of A and B. [1]"""
        return self.on * sum(columns * inner for _, columns, inner in (self.down, self.up))


def adapted(x: SimpleNamespace, name: str) -> Amount:
    """1 where weights are frozen and the layers of that name have adapters. [1]"""
    return (1 - x.trained) * getattr(x, f"lora_{name}") if name else 0


def joined_norm(x: SimpleNamespace, name: str) -> Amount:
    """1 where a norm is one module with the column-parallel layers of that name, and they alone read it. [1]

    Source: Transformer Engine 2.8, module/layernorm_linear.py, with_quantized_norm; an adapter reads the norm's output
    too (return_layernorm_output).
    """
    return x.norm_linear * (1 - adapted(x, name))


def adapter_of(x: SimpleNamespace, layer: Linear) -> Adapter:
    """The adapter of a layer. Experts' are not split over etp here."""
    rows = layer.groups * layer.rows
    ranks = 1 if layer.grouped else x.tp
    narrow, outputs, own = x.lora_rank / ranks, layer.columns / ranks, 1 + x.sp * (ranks - 1)
    if layer.split == "column":
        outputs, own = layer.columns, 1
    if layer.split == "row":
        narrow = x.lora_rank
    if layer.split == "none":
        own = 1
    return Adapter(
        on=adapted(x, layer.adapter),
        down=(rows, narrow, layer.inner),
        up=(rows, outputs, x.lora_rank),
        out=rows * layer.columns / own,
    )


def adapter_parameters(x: SimpleNamespace, block: BlockWork) -> Amount:
    """Parameters of a block's low-rank adapters on one rank: r (K + N) for each adapted layer, over tp. [1]

    Source: E. Hu et al., arXiv:2106.09685; as this module.
    """
    return sum(adapter_of(x, layer).parameters for layer in block.linears if layer.adapter)


def kept_input(x: SimpleNamespace, name: str) -> Amount:
    """Bytes of an element that stay of a linear layer's input. [byte]

    For the weight gradient in the recipe's format; a frozen layer keeps none, but its adapter reads it in 16 bits.
    Source: Transformer Engine 2.8, module/linear.py, requires_wgrad; as this module.
    """
    return x.trained * x.saved_bytes + adapted(x, name) * x.activation_bytes


def kept_norm(x: SimpleNamespace, name: str) -> Amount:
    """What stays of a norm's output in front of column-parallel layers of that name. [byte]

    Of weights that are trained this rank's tokens under sequence parallelism, gathered again in the backward pass;
    DTensor keeps what was gathered. So does an adapter (Megatron-Bridge 0.6 can gather again:
    sequence_parallel_input_regather), and the layer its own tokens beside it, though no gradient needs them, unless
    both are one tensor.
    Source: Transformer Engine 2.8, module/layernorm_linear.py; Megatron-Bridge, return_layernorm_output_gathered.
    """
    own = x.saved_bytes * ((1 - x.dtensor) * residual_tokens(x) + x.dtensor * tokens(x))
    one = same_format(x) * (1 - x.sp * is_more_than_one(x.tp))
    beside = x.activation_bytes * tokens(x) + (1 - one) * own
    return (x.trained * own + adapted(x, name) * beside) * x.h


def between(x: SimpleNamespace, block: BlockWork) -> Amount:
    """What adapters keep between A and B. [byte]"""
    each = (adapter_of(x, layer) for layer in block.linears if layer.adapter)
    return sum(one.on * x.activation_bytes * one.up[0] * x.lora_rank for one in each)
