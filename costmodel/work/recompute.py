"""What selective recompute repeats of a block in the backward pass: products, attention cores, messages.

Megatron-Core checkpoints a module whole, with its own collectives; its norms and activation functions have no
product. Full recompute repeats everything of its layers and is counted with them. Source: Megatron-Core 0.16.1,
transformer_layer.py, attention.py, mlp.py, moe_layer.py, multi_latent_attention.py.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.symbols import ATTENTION_BLOCKS


def kept_products(x: SimpleNamespace) -> Amount:
    """Layers whose every other product per-op recompute keeps. [1]

    It knows products by their operator. Where a recipe's kernels are operators of their own, only layers that stay in
    16 bits have any: an inference from the published peak of NVFP4 under torchtitan, 111 GiB where MXFP8 and BF16 take
    180 and 174, which is what layers hold that keep their input and the attention core's output.
    """
    return x.recompute_ops * (1 - x.products_apart * (1 - x.bf16_share))


def repeated(x: SimpleNamespace, selective: Amount) -> Amount:
    """How often something is repeated: once in layers with full recompute, in the others `selective` times. [1]"""
    return x.recompute_layers + (1 - x.recompute_layers) * selective


def linear_again(x: SimpleNamespace, block: str, layer: str) -> Amount:
    """How often the forward product of a linear layer is repeated. [1]"""
    if block == "mlp":
        return x.recompute_mlp
    if block == "mla" and layer in ("q_up", "kv_up"):
        return x.recompute_mla_up_proj
    if block == "experts":
        shared = layer.startswith("shared")
        return x.recompute_moe + (1 - x.recompute_moe) * shared * x.recompute_shared_experts
    return 0


def core_again(x: SimpleNamespace, block: str) -> Amount:
    """How often the attention core is repeated, with what context parallelism exchanges for it. [1]"""
    return x.recompute_attention if block in ATTENTION_BLOCKS else 0


def messages_again(x: SimpleNamespace, block: str) -> Amount:
    """How often the tensor-parallel messages of a block are repeated. [1]

    In an expert block they are those of the shared experts.
    """
    if block == "mlp":
        return x.recompute_mlp
    if block == "experts":
        return x.recompute_moe + (1 - x.recompute_moe) * x.recompute_shared_experts
    return 0
