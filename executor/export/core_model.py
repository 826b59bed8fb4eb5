"""A model's shape from fields of Megatron-Core: the way back of `executor.megatron_model.model_fields`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from costmodel.model_registry import list_models, load_model
from costmodel.model_spec import DEFAULT_VOCAB_DIVISIBLE_BY, ModelSpec
from executor.megatron_model import LLAMA3_FREQUENCIES, model_fields

# Fields that are a number of layers, or a list with a place for each.
FREQUENCIES = ("moe_layer_freq", "window_attn_skip_freq", "no_rope_freq", "linear_attention_freq")
# Fields of classes whose layers with windows, or without, have heads of their own. Source: Megatron-Bridge 0.6.2,
# stepfun/step35_provider.py, mimo_v2_flash/mimo_v2_flash_provider.py, gemma/gemma4_provider.py.
OWN_HEADS = ("head_wise_attn_gate", "hybrid_attention_pattern", "global_kv_channels", "global_head_dim")
# Enough to tell the models of the catalogue apart; what a text may leave out is not among them.
TELLING = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "num_moe_experts",
    "moe_ffn_hidden_size",
    "moe_router_topk",
    "moe_shared_expert_intermediate_size",
    "kv_lora_rank",
    "mamba_num_heads",
    "mamba_state_dim",
    "experimental_attention_variant",
    "dsa_indexer_n_heads",
    "dsa_indexer_topk",
    "dsa_indexer_topk_freq",
    "activation_func",
    "gated_linear_unit",
)

# Tokens that a tokenizer may have on top of a model's: NullTokenizer's end of text.
END_OF_TEXT = 1


def same_models(fields: Mapping[str, Any]) -> list[str]:
    """Names of the models of the catalogue that have these sizes, the likeliest first."""
    found = []
    for name in list_models():
        model = load_model(name)
        ours = model_fields(model)
        if all(ours.get(field) == _given(fields, field, model) for field in TELLING):
            found.append((unlike(fields, model), other_tokens(fields, model), rare(model), name))
    return [name for *_, name in sorted(found)]


def _given(fields: Mapping[str, Any], field: str, model: ModelSpec) -> Any:
    """A field as given; latent attention has as many key-value heads as heads, whatever is said."""
    if field == "num_query_groups" and model.mla is not None:
        return model.num_kv_heads
    if field.startswith("dsa_indexer_") and fields.get("experimental_attention_variant") != "dsa":
        return None  # the parser's defaults
    if field == "dsa_indexer_topk_freq":
        return fields.get(field) or 1
    if field == "ffn_hidden_size" and model.moe is not None and fields.get("num_moe_experts"):
        # A model of experts alone has no dense layers; its configurations give any number here.
        return fields.get(field) if model.moe.dense_first_layers else model.ffn_hidden
    return fields.get(field)


def rare(model: ModelSpec) -> bool:
    """Whether no independent count of the model is on file: of two as likely those with one win."""
    return model.params_computed is None


def unlike(fields: Mapping[str, Any], model: ModelSpec) -> int:
    """How much else differs: vocabulary, biases, embeddings, positions. [1]"""
    ours = model_fields(model)
    soft = ("normalization", "add_bias_linear", "add_qkv_bias", "qk_layernorm")
    differing = (fields.get("mtp_num_layers") or 0) != model.mtp_layers
    differing += sum((fields.get(field) or None) != (ours.get(field) or None) for field in soft)
    tied = fields.get("share_embeddings_and_output_weights")
    differing += tied is not None and tied != model.tied_embeddings
    differing += position_kind(fields) not in ("", model.position_embedding)
    differing += other_base(fields, model)
    return 4 * (other_tokens(fields, model) > END_OF_TEXT) + differing


def other_base(fields: Mapping[str, Any], model: ModelSpec) -> bool:
    """Whether the base of rotary positions that is said is not the model's: it tells Llama 2 from Llama 3."""
    said = fields.get("rotary_base")
    return isinstance(said, int | float) and model.rotary_base is not None and said != model.rotary_base


def other_tokens(fields: Mapping[str, Any], model: ModelSpec) -> int:
    """How far the vocabulary that is said is from the model's, padded or not; 0 where none is said. [tokens]

    Where only its padded size is said, the model's is padded as the text pads, by calculate_padded_vocab_size of
    Megatron-LM 0.19.2, training/vocab_utils.py.
    """
    known = [each for each in (model.vocab, model.vocab_padded) if each]
    vocab, padded = fields.get("vocab_size"), fields.get("padded_vocab_size")
    if vocab or not padded:
        return min(abs(vocab - each) for each in known) if vocab else 0
    step = fields.get("make_vocab_size_divisible_by") or DEFAULT_VOCAB_DIVISIBLE_BY
    step *= fields.get("tensor_model_parallel_size") or 1
    return min(abs(padded - -(-each // step) * step) for each in known)


# Fields that say one of ModelSpec's alone; what is left out of a text with overrides is not read at its default.
SAID_BY = {
    "num_layers": "num_layers",
    "hidden": "hidden_size",
    "ffn_hidden": "ffn_hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "gated": "gated_linear_unit",
    "activation": "activation_func",
    "norm": "normalization",
    "norm_epsilon": "layernorm_epsilon",
    "zero_centered_norm": "layernorm_zero_centered_gamma",
    "vocab": "vocab_size",
    "tied_embeddings": "share_embeddings_and_output_weights",
    "qk_norm": "qk_layernorm",
    "linear_bias": "add_bias_linear",
    "qkv_bias": "add_qkv_bias",
}


def said_architecture(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`architecture` of a text that says some fields of a model's configuration and leaves the others out."""
    return {
        name: value
        for name, value in architecture(fields).items()
        if name not in SAID_BY or fields.get(SAID_BY[name]) is not None
    }


def architecture(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The model as a mapping of `costmodel.model_file`: from_mapping makes a ModelSpec of it.

    ValueError in one line where a class of its own has heads that these fields do not say.
    """
    own = next((name for name in OWN_HEADS if fields.get(name)), None)
    if own is not None:
        raise ValueError(
            f"{own}: heads of their own are read of models of the catalogue alone, and this is none of their "
            "sizes. Write it as a TOML with [sliding_window], and name that with --model."
        )
    texts = {name: fields[name] for name in FREQUENCIES if isinstance(fields.get(name), str)}
    fields = {**fields, **{name: frequency_of(name, text) for name, text in texts.items()}}
    heads = fields.get("num_attention_heads")
    shape: dict[str, Any] = {
        "num_layers": fields.get("num_layers"),
        "hidden": fields.get("hidden_size"),
        "ffn_hidden": fields.get("ffn_hidden_size"),
        "num_heads": heads,
        "num_kv_heads": fields.get("num_query_groups") or heads,
        "head_dim": fields.get("kv_channels"),
        "gated": bool(fields.get("gated_linear_unit")),
        "activation": fields.get("activation_func") or "gelu",
        "norm": fields.get("normalization") or "LayerNorm",
        "norm_epsilon": fields.get("layernorm_epsilon"),
        "zero_centered_norm": bool(fields.get("layernorm_zero_centered_gamma")),
        "vocab": fields.get("vocab_size") or fields.get("padded_vocab_size"),
        "vocab_padded": fields.get("padded_vocab_size"),
        "tied_embeddings": bool(fields.get("share_embeddings_and_output_weights")),
        "qk_norm": bool(fields.get("qk_layernorm")),
        "linear_bias": bool(fields.get("add_bias_linear")),
        "qkv_bias": bool(fields.get("add_qkv_bias")),
        "mtp_layers": fields.get("mtp_num_layers"),
        "nope_layer_interval": fields.get("no_rope_freq"),
        "attention_output_gate": bool(fields.get("attention_output_gate")),
        "attention_sink": fields.get("softmax_type") == "learnable",
        "qk_l2_norm": fields.get("qk_l2_norm") or None,
        "softmax_scale": fields.get("softmax_scale"),
    }
    pattern = fields.get("hybrid_layer_pattern") or fields.get("hybrid_override_pattern")
    if pattern:
        main, *heads_of_mtp = str(pattern).split("/")
        shape |= {"layer_pattern": main.replace("|", ""), "mtp_layers": len(heads_of_mtp) or None}
        shape |= {"mtp_pattern": heads_of_mtp[0]} if heads_of_mtp else {}
    parts = {
        "moe": _experts(fields),
        "mla": _latent(fields),
        "indexer": _indexer(fields),
        "mamba": _mamba(fields, pattern),
        "gated_delta": _delta(fields),
        "sliding_window": _window(fields),
    }
    kept = {name: value for name, value in (shape | parts).items() if value not in (None, {})}
    return kept | _positions(fields)


def said_heads(fields: Mapping[str, Any], whole: bool) -> int | None:
    """Heads of multi-token prediction that a text says. [1]

    Where it says nothing: 0 if it is a whole configuration, else None, for a recipe below it may have some.
    """
    segments = str(fields.get("hybrid_layer_pattern") or "").count("/")
    said = segments or fields.get("mtp_num_layers")
    if said is None:
        return 0 if whole or "mtp_num_layers" in fields else None
    if isinstance(said, str) and "$" in said:
        return None  # a variable that is not set
    if not isinstance(said, int) or isinstance(said, bool) or said < 0:
        raise ValueError(f"mtp_num_layers {said!r:.60} is not a whole number from 0 on. Correct it.")
    return said


def position_kind(fields: Mapping[str, Any]) -> str:
    """learned_absolute, none or rope, which its scaled kinds are too; "" where the text leaves it open."""
    if fields.get("use_rotary_position_embeddings"):  # an older flag, which wins
        return "rope"
    kind = str(fields.get("position_embedding_type") or "")
    return "rope" if kind in ("mrope", "yarn") else kind


def said_positions(fields: Mapping[str, Any]) -> int:
    """Length of the table of learned positions that is said, 0 where none is. [1]"""
    said = fields.get("max_position_embeddings")
    return said if position_kind(fields) == "learned_absolute" and isinstance(said, int) else 0


def _positions(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions or a table of learned ones."""
    kind = position_kind(fields)
    if kind == "learned_absolute":
        # The parser asks for the length of the table, and that it holds a sequence.
        return {"learned_positions": said_positions(fields) or fields.get("seq_length") or 0}
    if kind in ("", "none"):
        return {}
    base = fields.get("rotary_base")
    if isinstance(base, float):  # as Megatron-Bridge takes it from Hugging Face; no base of ours is broken
        base = int(base) if base.is_integer() else None
    said = {
        "rotary_base": base,
        "rotary_percent": fields.get("rotary_percent"),
        "rotary_scaling": _scaling(fields),
    }
    return {name: value for name, value in said.items() if value is not None}


def _scaling(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """How rotary positions are scaled; None where the fields do not say."""
    if fields.get("rope_scaling"):
        low, high, length = LLAMA3_FREQUENCIES
        factor = fields.get("rope_scaling_factor") or 8.0
        own = {"low_freq_factor": low, "high_freq_factor": high, "original_positions": length}
        return {"kind": "llama3", "factor": factor} | own
    latent = fields.get("multi_latent_attention")
    factor = fields.get("rotary_scaling_factor" if latent else "yarn_rotary_scaling_factor")
    if factor is None:
        return None
    if factor == 1:
        return {"kind": "none"}
    prefix = "" if latent else "yarn_"
    found = {
        "factor": factor,
        "original_positions": fields.get(f"{prefix}original_max_position_embeddings"),
        **{
            name: fields.get(prefix + name) for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        },
        "round_to_int": fields.get("yarn_correction_range_round_to_int"),
    }
    return {"kind": "yarn"} | {name: value for name, value in found.items() if value is not None}


def frequency_of(name: str, text: str) -> int | list[int]:
    """A number, or a pattern such as ([0]*3+[1]*58). ValueError in one line for anything else.

    name: of the flag or field, for the error.
    """
    if text.strip().isdigit():
        return int(text)
    found: list[int] = []
    body = re.sub(r"[\s()]", "", text)
    if not re.fullmatch(r"\[[\d,]+\](\*\d+)?(\+\[[\d,]+\](\*\d+)?)*", body) or re.search(r"\)\s*\*", text):
        repeated = re.fullmatch(r"\((.*)\)\*(\d+)", re.sub(r"\s", "", text))
        if repeated:
            inner = frequency_of(name, repeated[1])
            return list(inner) * int(repeated[2]) if isinstance(inner, list) else inner
        raise ValueError(f"{name} {text!r:.60} is not a number or a pattern such as ([0]*3+[1]*58).")
    for numbers, times in re.findall(r"\[([\d,]+)\](?:\*(\d+))?", body):
        if int(times or 1) > 10000:
            raise ValueError(f"{name} {text!r:.60} has more layers than any model. Shorten it.")
        found += [int(number) for number in numbers.split(",")] * int(times or 1)
    return found


def _whole(fields: Mapping[str, Any], name: str, default: int) -> int:
    """A size that others follow from. ValueError in one line where it is none."""
    value = fields.get(name) or default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} {value!r:.60} is not a whole number. Correct it in the configuration.")
    return value


def _experts(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields.get("num_moe_experts"):
        return {}
    layers = fields.get("moe_layer_freq") or 1
    first = layers.index(1) if isinstance(layers, list) and 1 in layers else 0
    interval = layers if isinstance(layers, int) else 1
    if isinstance(layers, list) and layers[first:].count(1) > 1:
        interval = layers[first + 1 :].index(1) + 1
    score = fields.get("moe_router_score_function") or "softmax"
    shape = {
        "num_experts": fields["num_moe_experts"],
        "topk": fields.get("moe_router_topk"),
        "expert_ffn": fields.get("moe_ffn_hidden_size") or fields.get("ffn_hidden_size"),
        "shared_expert_ffn": fields.get("moe_shared_expert_intermediate_size"),
        "shared_expert_gate": fields.get("moe_shared_expert_gate"),
        "dense_first_layers": first,
        "layer_interval": interval,
        "latent_size": fields.get("moe_latent_size"),
        "router_score": score,
        "router_pre_softmax": score == "softmax" and bool(fields.get("moe_router_pre_softmax")),
        "router_scaling_factor": fields.get("moe_router_topk_scaling_factor") or 1.0,
        "router_dtype": fields.get("moe_router_dtype"),
        "aux_loss_coeff": fields.get("moe_aux_loss_coeff"),
        "load_balancing": fields.get("moe_router_load_balancing_type"),
        "expert_bias": fields.get("moe_router_enable_expert_bias"),
        "router_groups": fields.get("moe_router_num_groups"),
        "router_group_topk": fields.get("moe_router_group_topk"),
    }
    return {name: value for name, value in shape.items() if value is not None}


def _latent(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields.get("multi_latent_attention"):
        return {}
    sizes = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    given = {name: fields[name] for name in sizes if fields.get(name)}
    return given | {"q_lora_rank": fields.get("q_lora_rank")}


def _mamba(fields: Mapping[str, Any], pattern: str | None) -> dict[str, Any]:
    if "M" not in str(pattern or ""):
        return {}
    width = _whole(fields, "mamba_head_dim", 64)
    return {
        "num_heads": fields.get("mamba_num_heads") or 2 * _whole(fields, "hidden_size", 0) // width,
        "head_dim": width,
        "state_dim": fields.get("mamba_state_dim") or 128,
        "num_groups": fields.get("mamba_num_groups") or 8,
    }


def _indexer(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("experimental_attention_variant") != "dsa":
        return {}
    sizes = {"heads": "n_heads", "head_dim": "head_dim", "topk": "topk"}
    shared = {"interval": "topk_freq", "offset": "skip_topk_offset"}
    return {name: fields.get(f"dsa_indexer_{key}") for name, key in sizes.items()} | {
        name: fields.get(f"dsa_indexer_{key}") or 1 for name, key in shared.items()
    }


def _delta(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("experimental_attention_variant") != "gated_delta_net":
        return {}
    return {
        "full_attention_interval": fields.get("linear_attention_freq") or 1,
        "conv_kernel": fields.get("linear_conv_kernel_dim") or 4,
        "key_head_dim": fields.get("linear_key_head_dim") or 128,
        "value_head_dim": fields.get("linear_value_head_dim") or 128,
        "num_key_heads": fields.get("linear_num_key_heads") or 16,
        "num_value_heads": fields.get("linear_num_value_heads") or 32,
    }


def _window(fields: Mapping[str, Any]) -> dict[str, Any]:
    size = fields.get("window_size")
    if not size:
        return {}
    if isinstance(size, str):  # a tuple in an override
        size = [int(number) for number in re.findall(r"-?\d+", size)]
    if not isinstance(size, list | tuple) or not size or not all(isinstance(each, int) for each in size):
        raise ValueError(
            f"window_size {fields['window_size']!r:.60} is not tokens before and behind. Write it as [127, 0]."
        )
    every = fields.get("window_attn_skip_freq")
    if isinstance(every, list):  # 1 where a layer has a window
        return {"window": size[0] + 1, "pattern": "".join("W" if each else "F" for each in every)}
    return {"window": size[0] + 1} | ({"full_attention_interval": every} if isinstance(every, int) else {})
