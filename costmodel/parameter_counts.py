"""Parameters of whole models: those of each kind of layer, and their sum, as a checkpoint holds them."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.model_spec import (
    ATTENTION,
    DENSE,
    GATED_DELTA,
    MAMBA,
    MLP,
    MOE,
    SPARSE,
    WINDOW_ATTENTION,
    WINDOW_DENSE,
    WINDOW_SPARSE,
    ModelSpec,
)
from costmodel.parameters import (
    attention_parameters,
    compressed_attention_parameters,
    embedding_parameters,
    gated_delta_parameters,
    indexer_parameters,
    mamba_parameters,
    mla_parameters,
    mlp_parameters,
    mtp_parameters,
    norm_parameters,
    router_parameters,
)
from costmodel.work.csa import mixing_weights


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a whole model [1]; `parts` sums to `total`.

    `active` counts only the experts one token uses. `embedding` is the token and position tables,
    `output` the output layer of its own (0 when tied). `per_layer` is one layer of each kind.
    `mtp` is not in `total`.
    """

    total: int
    active: int
    embedding: int
    output: int
    mtp: int
    parts: dict[str, int]
    per_layer: dict[str, int]


def layer_parts(spec: ModelSpec, kind: str) -> dict[str, int]:
    """Parameters of one layer of the given kind by part, in the order data flows. [1]"""
    norm_weights = 2 if spec.norm == "LayerNorm" else 1
    parts: dict[str, int] = {}
    windowed = kind in (WINDOW_DENSE, WINDOW_SPARSE, WINDOW_ATTENTION)
    if kind in (DENSE, SPARSE, ATTENTION) or windowed:
        parts["attention"] = _attention(spec, norm_weights, windowed)
        if spec.mla is not None and spec.indexer is not None:
            parts["indexer"] = _indexer(spec) * spec.picking_layers // spec.num_layers
        if spec.residual_streams > 1:
            parts["hyper-connections"] = int(mixing_weights(spec.hidden, spec.residual_streams))
    if kind in (GATED_DELTA, MAMBA):
        parts[kind] = _mixer(spec, kind)
    if kind in (DENSE, WINDOW_DENSE, MLP) or (kind == GATED_DELTA and spec.moe is None):
        parts["mlp"] = mlp_parameters(spec.hidden, spec.ffn_hidden, spec.gated, spec.linear_bias)
    if kind in (SPARSE, WINDOW_SPARSE, MOE) or (kind == GATED_DELTA and spec.moe is not None):
        parts |= _experts(spec)
    two_blocks = kind in (DENSE, SPARSE, WINDOW_DENSE, WINDOW_SPARSE, GATED_DELTA)
    parts["norms"] = (1 + two_blocks + _norms_beside(spec, kind)) * norm_parameters(spec.hidden, norm_weights)
    return parts


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Parameters of a model, as a checkpoint without vocabulary padding holds them.

    Raises ValueError when the formulas do not cover the model (`parameters_known` false).
    """
    if not spec.parameters_known:
        raise ValueError(
            f"parameters of {spec.name} cannot be counted: {spec.note} Give a model that can be."
        )
    norm_weights = 2 if spec.norm == "LayerNorm" else 1
    embedding = embedding_parameters(spec.hidden, spec.vocab, spec.learned_positions)
    output = 0 if spec.tied_embeddings else embedding_parameters(spec.hidden, spec.vocab)
    parts = {"embedding": embedding}
    per_layer: dict[str, int] = {}
    idle = 0
    for kind, count in spec.layer_counts().items():
        one = layer_parts(spec, kind)
        per_layer[kind] = sum(one.values())
        idle += count * _idle_experts(spec, one)
        for part, amount in one.items():
            parts[part] = parts.get(part, 0) + count * amount
    parts["norms"] = parts.get("norms", 0) + norm_parameters(spec.hidden, norm_weights)
    if output:
        parts["output layer"] = output
    total = sum(parts.values())
    mtp_layers = sum(sum(layer_parts(spec, kind).values()) for kind in spec.mtp_layer_kinds())
    mtp = spec.mtp_layers * (mtp_layers + mtp_parameters(spec.hidden, norm_weights)) if spec.mtp_layers else 0
    return ParameterCount(total, total - idle, embedding, output, mtp, parts, per_layer)


def encoder_parameters(spec: ModelSpec) -> int:
    """Attention and MLPs of the encoder in front, as its time and memory count them; 0 without one. [1]

    Not of it: the embedding of its patches, and what projects its tokens to the decoder.
    """
    own = spec.encoder
    if own is None:
        return 0
    head = own.hidden / own.num_heads
    layer = attention_parameters(own.hidden, own.num_heads, own.num_heads, head)
    return own.num_layers * round(float(layer + mlp_parameters(own.hidden, own.ffn_hidden, own.gated)))


def _indexer(spec: ModelSpec) -> int:
    """Parameters of the indexer of a layer that has one. [1]"""
    assert spec.mla is not None
    assert spec.indexer is not None
    sizes = spec.hidden, spec.mla.q_lora_rank or 0, spec.indexer.heads, spec.indexer.head_dim
    return int(indexer_parameters(*sizes))


def _attention(spec: ModelSpec, norm_weights: int, windowed: bool) -> int:
    if spec.compressed_attention is not None:
        csa = spec.compressed_attention
        return int(
            compressed_attention_parameters(
                spec.hidden,
                spec.num_heads,
                spec.head_dim,
                q_lora_rank=csa.q_lora_rank,
                index_heads=csa.index_heads,
                index_head_dim=csa.index_head_dim,
                out_groups=csa.out_groups,
                out_lora_rank=csa.out_lora_rank,
            )
        )
    if spec.mla is not None:
        mla = spec.mla
        return int(
            mla_parameters(
                spec.hidden,
                spec.num_heads,
                q_lora_rank=mla.q_lora_rank or 0,
                kv_lora_rank=mla.kv_lora_rank,
                qk_head_dim=mla.qk_head_dim,
                qk_pos_emb_head_dim=mla.qk_pos_emb_head_dim,
                v_head_dim=mla.v_head_dim,
                latent_norm=norm_weights if spec.qk_norm else 0,
            )
        )
    heads = spec.window_heads if windowed else spec.heads
    gate = 1 if spec.attention_head_gate else heads.v_head_dim
    return int(
        attention_parameters(
            spec.hidden,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            qkv_bias=int(spec.qkv_bias),
            linear_bias=int(spec.linear_bias),
            qk_norm=norm_weights if spec.qk_norm else 0,
            output_gate=gate if spec.attention_output_gate else 0,
            sink=int(heads.sinks),
            v=heads.v_head_dim,
            tied_values=int(spec.values_are_keys and not (windowed and spec.windows_apart)),
        )
    )


def _norms_beside(spec: ModelSpec, kind: str) -> int:
    """Norms of the hidden state in a layer beside the one in front of each block. [1]"""
    if spec.norms is None:
        return 0
    feed_forward = kind not in (ATTENTION, WINDOW_ATTENTION)
    return spec.norms.attention - 1 + feed_forward * (spec.norms.mlp - 1)


def _mixer(spec: ModelSpec, kind: str) -> int:
    if kind == MAMBA:
        mamba = spec.mamba
        assert mamba is not None
        return int(
            mamba_parameters(
                spec.hidden,
                num_heads=mamba.num_heads,
                head_dim=mamba.head_dim,
                state_dim=mamba.state_dim,
                num_groups=mamba.num_groups,
                conv_kernel=mamba.conv_kernel,
            )
        )
    delta = spec.gated_delta
    assert delta is not None
    return int(
        gated_delta_parameters(
            spec.hidden,
            num_key_heads=delta.num_key_heads,
            num_value_heads=delta.num_value_heads,
            key_head_dim=delta.key_head_dim,
            value_head_dim=delta.value_head_dim,
            conv_kernel=delta.conv_kernel,
        )
    )


def _experts(spec: ModelSpec) -> dict[str, int]:
    moe = spec.moe
    assert moe is not None
    h, gated, bias = spec.hidden, int(spec.gated), int(spec.linear_bias)
    width = moe.latent_size or h
    parts = {
        "router": router_parameters(h, moe.num_experts, bias=bias, expert_bias=int(moe.expert_bias))
        + (h + moe.num_experts if spec.norms is not None and spec.norms.router else 0),
        "experts": moe.num_experts * mlp_parameters(width, moe.expert_ffn, gated, bias),
    }
    if moe.latent_size:
        parts["latent projections"] = 2 * h * moe.latent_size
    if moe.shared_expert_ffn:
        gate = h if moe.shared_expert_gate else 0
        parts["shared experts"] = mlp_parameters(h, moe.shared_expert_ffn, gated, bias) + gate
    return {name: int(amount) for name, amount in parts.items()}


def _idle_experts(spec: ModelSpec, layer: dict[str, int]) -> int:
    """Parameters of the experts that one token does not visit, in one layer."""
    if spec.moe is None or "experts" not in layer:
        return 0
    return layer["experts"] // spec.moe.num_experts * (spec.moe.num_experts - spec.moe.topk)
