"""Fused kernels that a model's layers have in Megatron-Core, whatever a plan asks for."""

from __future__ import annotations

from costmodel.layout import blocks_of
from costmodel.model_spec import ModelSpec

# Activation functions with a fused kernel: in grouped experts, and in a dense MLP or a shared expert.
FUSED_IN_EXPERTS, FUSED_IN_MLPS = ("silu", "quick_gelu"), ("silu", "gelu")
# That some layer has one for.
FUSABLE = ("silu", "gelu", "quick_gelu")


def activation_has_kernel(model: ModelSpec, plain_gelu_experts: bool = True) -> bool:
    """Whether every MLP of the model may have a fused kernel for its activation function.

    plain_gelu_experts: of the software, see `stacks.toml`. Source: Megatron-Core 0.19.2, transformer/mlp.py ("Only
    support fusion of gelu and swiglu"), moe/experts.py, transformer_config.py.
    """
    kinds = {block for kind in model.layer_kinds() for block in blocks_of(model, kind)}
    shared = model.moe is not None and model.moe.shared_expert_ffn > 0
    plain = shared or "mlp" in kinds
    in_experts = FUSED_IN_EXPERTS if plain_gelu_experts else (*FUSED_IN_EXPERTS, "gelu")
    return (not plain or model.activation in FUSED_IN_MLPS) and (
        model.moe is None or model.activation in in_experts
    )
