"""Layer modules for Megatron-Core where Transformer Engine is absent: norm and attention core.

The norm marks its weight for sequence parallelism, which Megatron's plain norm refuses; the attention
core uses torch's scaled_dot_product_attention, which never writes the score matrix.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm, as the configuration says; input (sequence, batch, hidden)."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.shape, self.eps = (hidden_size,), eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        layer_norm = config.normalization == "LayerNorm"
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size)) if layer_norm else None
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return functional.rms_norm(x, self.shape, self.weight, self.eps)
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class AttentionCore(torch.nn.Module):
    """Causal attention; query (s, b, heads, d), key and value (s, b, groups, d) to (s, b, heads d)."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__()
        if config.context_parallel_size != 1:
            raise ValueError("context parallelism needs Transformer Engine's attention")

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
        length, batch = query.shape[:2]
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.permute(2, 0, 1, 3).reshape(length, batch, -1)


def block_spec(config: Any, qk_norm: bool) -> Any:
    """Megatron's own layer specification with these two modules put in."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules,
        get_num_layers_to_build,
    )

    spec = get_gpt_layer_local_spec(qk_layernorm=qk_norm, normalization=config.normalization)
    spec.submodules.input_layernorm = Norm
    spec.submodules.pre_mlp_layernorm = Norm
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = AttentionCore
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = Norm

    def build(stage: int | None = None) -> Any:
        layers = get_num_layers_to_build(config, vp_stage=stage)
        return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=Norm)

    return build
