"""A model in Megatron-Core's words: fields of its configuration classes and arguments of its model classes.

Plain values only, so that this imports no torch: types are named ("bf16", "silu") and made where torch is.
Names and meanings as in Megatron-Core 0.16.1, transformer_config.py, gpt_model.py and mamba_model.py.
"""

from __future__ import annotations

import itertools
from typing import Any

from costmodel.layout import blocks_of, layout_of
from costmodel.model_spec import ModelSpec
from costmodel.model_tables import Indexer, Moe
from costmodel.plan import Plan

# Layers of the first and the last stage, by Megatron-Core's names.
ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")

# Only one published model has a gated quick GELU; its clamp and offset are part of the activation function.
# Source: Megatron-Bridge, gpt_oss_provider.py.
CLAMPED_SWIGLU = {"glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0}

# Low and high frequency factor and first length of Megatron-Core's rope_scaling.
# Source: 0.16.1, rotary_pos_embedding.py, _apply_scaling.
LLAMA3_FREQUENCIES = (1.0, 4.0, 8192)
# Of models with an encoder, which Megatron-Core builds as a model of its own.
ENCODER_NOTE = "this trains the decoder of {} alone: the encoder in front of it is left out"


def config_class(model: ModelSpec) -> str:
    """Megatron-Core's configuration class for the model."""
    return "MLATransformerConfig" if model.mla is not None else "TransformerConfig"


def model_class(model: ModelSpec) -> str:
    """Megatron-Core's model class: hybrids of Mamba layers have one of their own."""
    return "MambaModel" if model.mamba is not None else "GPTModel"


def model_arguments(model: ModelSpec, tp: int, seq_len: int) -> dict[str, Any]:
    """Arguments of the model class that are no fields of the configuration."""
    arguments: dict[str, Any] = {
        "vocab_size": model.padded_vocab(tp),
        "max_sequence_length": max(seq_len, model.learned_positions),
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "position_embedding_type": model.position_embedding,
    }
    if model.mamba is not None:
        arguments["hybrid_override_pattern"] = model.layer_pattern
    return arguments | ({} if model.mla is not None else rotary_fields(model))


def rotary_fields(model: ModelSpec) -> dict[str, Any]:
    """What the model says of its rotary positions: of the configuration with latent attention, else arguments."""
    if model.position_embedding != "rope":
        return {}
    base = {} if model.rotary_base is None else {"rotary_base": model.rotary_base}
    share = {} if model.rotary_percent == 1 else {"rotary_percent": model.rotary_percent}
    return base | share | scaling_fields(model)


def scaling_fields(model: ModelSpec) -> dict[str, Any]:
    """Scaling of rotary positions: YaRN of latent attention, whose class has a factor of 40 unless told, and llama3."""
    found = model.rotary_scaling
    if found is None:
        return {}
    if model.mla is None:
        # The frequencies between which it mixes are fixed, see `LLAMA3_FREQUENCIES`.
        known = found.kind == "llama3"
        return {"rope_scaling": True, "rope_scaling_factor": found.factor} if known else {}
    if found.kind == "none":
        return {"rotary_scaling_factor": 1.0}  # YaRN by 1 is no scaling, and rotary kernels stay fused
    said = {
        "rotary_scaling_factor": found.factor,
        "original_max_position_embeddings": found.original_positions,
        "beta_fast": found.beta_fast,
        "beta_slow": found.beta_slow,
        "mscale": found.mscale,
        "mscale_all_dim": found.mscale_all_dim,
    }
    return {name: value for name, value in said.items() if value is not None} if found.kind == "yarn" else {}


def yarn_arguments(model: ModelSpec) -> dict[str, Any]:
    """YaRN of attention without latents, as fields that Megatron-Core reads off its configuration; else nothing.

    Source: Megatron-Core 0.16.1, gpt_model.py, yarn_rotary_pos_embedding.py; its class does not have them, those of
    Megatron-Bridge from 0.4 on do.
    """
    found = model.rotary_scaling
    if found is None or found.kind != "yarn" or model.mla is not None or model.position_embedding != "rope":
        return {}
    return {
        "position_embedding_type": "yarn",
        "yarn_rotary_scaling_factor": found.factor,
        "yarn_original_max_position_embeddings": found.original_positions,
        "yarn_beta_fast": found.beta_fast if found.beta_fast is not None else 32.0,
        "yarn_beta_slow": found.beta_slow if found.beta_slow is not None else 1.0,
        "yarn_mscale": found.mscale,
        "yarn_mscale_all_dim": found.mscale_all_dim,
        "yarn_correction_range_round_to_int": found.round_to_int is not False,
    }


def model_fields(model: ModelSpec) -> dict[str, Any]:
    """Fields of the configuration class that describe the model, whatever the plan."""
    fields: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
        "num_query_groups": model.num_kv_heads,
        "kv_channels": model.head_dim,
        "normalization": model.norm,
        "layernorm_zero_centered_gamma": model.zero_centered_norm,
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": model.qkv_bias or model.linear_bias,
        "qk_layernorm": model.qk_norm,
        "gated_linear_unit": model.gated,
        "activation_func": model.activation,
    }
    if model.norm_epsilon is not None:
        fields["layernorm_epsilon"] = model.norm_epsilon
    if model.activation == "quick_gelu" and model.gated:
        fields |= CLAMPED_SWIGLU
    if (
        model.mtp_layers and model.mamba is None
    ):  # MambaModel has no heads, and would share an embedding for them
        fields["mtp_num_layers"] = model.mtp_layers
    if model.moe is not None:
        fields |= expert_fields(model, model.moe)
    return fields | attention_fields(model) | mixer_fields(model)


def attention_fields(model: ModelSpec) -> dict[str, Any]:
    """Latent attention, windows, sinks, output gates, layers without positions."""
    fields: dict[str, Any] = {}
    if model.mla is not None:
        fields |= {
            "multi_latent_attention": True,
            "q_lora_rank": model.mla.q_lora_rank,
            "kv_lora_rank": model.mla.kv_lora_rank,
            "qk_head_dim": model.mla.qk_head_dim,
            "qk_pos_emb_head_dim": model.mla.qk_pos_emb_head_dim,
            "v_head_dim": model.mla.v_head_dim,
            **rotary_fields(model),
        }
    if model.indexer is not None:
        fields |= indexer_fields(model.indexer)
    if model.sliding_window is not None:
        # A query sees itself and window - 1 tokens before it.
        fields["window_size"] = [model.sliding_window.window - 1, 0]
        every = model.sliding_window.full_attention_interval
        listed = [int(letter == "W") for letter in model.sliding_window.pattern]
        fields["window_attn_skip_freq"] = listed or every
    if model.attention_sink:
        fields["softmax_type"] = "learnable"
    if model.attention_output_gate:
        fields["attention_output_gate"] = True
    if model.qk_l2_norm:
        fields["qk_l2_norm"] = True
    if model.softmax_scale is not None:
        fields["softmax_scale"] = model.softmax_scale
    if model.nope_layer_interval:
        fields["no_rope_freq"] = model.nope_layer_interval
    return fields


def indexer_fields(indexer: Indexer) -> dict[str, Any]:
    """Sparse latent attention with the fused kernels that it is told with, and the loss of its indexer.

    Source of what the model does not say: Megatron-Bridge 0.6.2, glm5_bridge.py, and recipes/glm/h100/glm5.py.
    """
    return {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": indexer.heads,
        "dsa_indexer_head_dim": indexer.head_dim,
        "dsa_indexer_topk": indexer.topk,
        "dsa_indexer_topk_freq": indexer.interval,
        "dsa_indexer_skip_topk_offset": indexer.offset,
        "dsa_indexer_loss_coeff": 0.001,
        "dsa_indexer_use_sparse_loss": True,
        "dsa_kernel_backend": "cudnn",
    }


def mixer_fields(model: ModelSpec) -> dict[str, Any]:
    """Mixers in place of attention: Mamba-2, the gated delta net."""
    if model.mamba is not None:
        return {
            "is_hybrid_model": True,
            "mamba_num_heads": model.mamba.num_heads,
            "mamba_head_dim": model.mamba.head_dim,
            "mamba_state_dim": model.mamba.state_dim,
            "mamba_num_groups": model.mamba.num_groups,
        }
    if model.gated_delta is not None:
        return {
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": model.gated_delta.full_attention_interval,
            "linear_conv_kernel_dim": model.gated_delta.conv_kernel,
            "linear_key_head_dim": model.gated_delta.key_head_dim,
            "linear_value_head_dim": model.gated_delta.value_head_dim,
            "linear_num_key_heads": model.gated_delta.num_key_heads,
            "linear_num_value_heads": model.gated_delta.num_value_heads,
        }
    return {}


def expert_fields(model: ModelSpec, moe: Moe) -> dict[str, Any]:
    """Router, experts, shared experts, and which layers have them."""
    fields: dict[str, Any] = {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.topk,
        "moe_ffn_hidden_size": moe.expert_ffn,
        "moe_router_score_function": moe.router_score,
        "moe_router_load_balancing_type": moe.load_balancing or "aux_loss",
        "moe_aux_loss_coeff": moe.aux_loss_coeff or 0.0,
        "moe_router_enable_expert_bias": moe.expert_bias,
        # A softmax over one chosen score would be one, without a gradient.
        "moe_router_pre_softmax": moe.router_pre_softmax or (moe.topk == 1 and moe.router_score == "softmax"),
    }
    if moe.router_scaling_factor not in (None, 1.0):
        fields["moe_router_topk_scaling_factor"] = moe.router_scaling_factor
    if moe.router_groups > 1:
        fields |= {"moe_router_num_groups": moe.router_groups, "moe_router_group_topk": moe.router_group_topk}
    if moe.router_dtype:
        fields["moe_router_dtype"] = moe.router_dtype
    if moe.shared_expert_ffn:
        fields["moe_shared_expert_intermediate_size"] = moe.shared_expert_ffn
        fields["moe_shared_expert_gate"] = moe.shared_expert_gate
    if moe.latent_size:
        fields["moe_latent_size"] = moe.latent_size
    if not model.layer_pattern:
        fields["moe_layer_freq"] = layer_frequency(model, moe)
    return fields


def layer_frequency(model: ModelSpec, moe: Moe) -> int | list[int]:
    """Every n-th layer, or one number a layer where dense ones come first: 1 with experts, 0 without."""
    if not moe.dense_first_layers:
        return moe.layer_interval
    layers = (index - moe.dense_first_layers for index in range(model.num_layers))
    return [int(place >= 0 and place % moe.layer_interval == 0) for place in layers]


def staged_pattern(plan: Plan, model: ModelSpec, seq_len: int) -> str:
    """Layers of a hybrid with the stages that are priced parted by |, chunk by chunk, of 0.17 on.

    Without where there is one stage, or where the plan says how many layers its first and last have.
    """
    if plan.pp * plan.vpp == 1:
        return model.layer_pattern
    if (plan.first_stage_layers or plan.last_stage_layers) and plan.vpp == 1 and not plan.pipeline_layout:
        return model.layer_pattern
    layout = layout_of(plan, model, seq_len)
    letters = iter(model.layer_pattern)
    chunks = [layout.chunks[stage][chunk] for chunk in range(plan.vpp) for stage in range(plan.pp)]
    return "|".join("".join(itertools.islice(letters, chunk.layers)) for chunk in chunks)


def mtp_segments(model: ModelSpec) -> str:
    """MTP heads of a hybrid as segments behind its layers' pattern, of Megatron-Core from 0.17 on: /*E/*E.

    Source: Megatron-Core 0.17.1, models/mamba/mamba_model.py, hybrid_layer_pattern.
    """
    return "".join(f"/{model.mtp_pattern or model.layer_pattern[-1]}" for _ in range(model.mtp_layers or 0))


def heads_apart(model: ModelSpec) -> bool:
    """Whether heads of multi-token prediction have other layers than the last one, which GPTModel makes them of.

    Source: Megatron-Core 0.19.2, gpt_layer_specs.py, get_gpt_mtp_block_spec_for_backend.
    """
    if not model.mtp_layers or model.mamba is not None:
        return False
    inside = [block for kind in model.mtp_layer_kinds() for block in blocks_of(model, kind)]
    return inside != list(blocks_of(model, model.layer_kinds()[-1]))


def not_expressed(
    model: ModelSpec, hybrid_heads: bool = False, recipe: bool = False, indexers: bool = False
) -> tuple[str, ...]:
    """What the configuration classes of 0.16.1 cannot say of the model, a line each.

    hybrid_heads: of a later release, which has `mtp_segments`. recipe: whether the framework's own builds the model,
    with layers that those classes lack. indexers: of 0.19, whose kernels of sparse latent attention need packages.
    """
    notes = []
    if model.attention_chunk:
        notes.append(f"attention in chunks of {model.attention_chunk} tokens: Megatron-Core attends fully")
    if model.custom_heads and not recipe:
        notes.append(f"{model.custom_heads}: Megatron-Core has no layers for them")
    elif model.norms is not None and not recipe:
        notes.append("norms behind attention and MLP: Megatron-Core's layers have none")
    if model.indexer is not None and indexers:
        notes.append(f"{model.sparse_attention} needs flash_mla and nvidia-cudnn-frontend[cutedsl]")
    elif model.sparse_attention and not recipe:
        notes.append(f"{model.sparse_attention}: not built here with Megatron-Core 0.16")
    if model.encoder is not None:
        notes.insert(0, ENCODER_NOTE.format(model.name))
    if model.mamba is not None and model.mtp_layers and not hybrid_heads:
        notes.append("multi-token prediction: MambaModel has none up to Megatron-Core 0.16, left out")
    if heads_apart(model) and not recipe:
        notes.append(
            "heads of multi-token prediction have layers of their own: GPTModel makes them like the last"
        )
    return tuple(notes)
