"""Fused kernels that a model's layers have in Megatron-Core, whatever a plan asks for."""

from __future__ import annotations

from costmodel.layout import blocks_of
from costmodel.model_spec import ModelSpec

# Activation functions with a fused kernel: in grouped experts, and in a dense MLP or a shared expert.
FUSED_IN_EXPERTS, FUSED_IN_MLPS = ("silu", "quick_gelu"), ("silu", "gelu")
# That some layer has one for.
FUSABLE = ("silu", "gelu", "quick_gelu")


def activation_has_kernel(model: ModelSpec) -> bool:
    """Whether every MLP of the model may have a fused kernel for its activation function.

    Source: Megatron-Core 0.19.2, transformer/mlp.py ("Only support fusion of gelu and swiglu"), transformer_config.py.
    """
    shared = model.moe is not None and model.moe.shared_expert_ffn > 0
    plain = shared or any("mlp" in blocks_of(model, kind) for kind in model.layer_kinds())
    return model.activation in (FUSED_IN_MLPS if plain else FUSABLE)
