"""Model specs from a local Hugging Face `config.json`: one mapping per architecture, no network.

References: the configuration classes of huggingface/transformers. Keys absent from a file take the default
of its class where the class has one that matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from costmodel.model_checks import largest_count
from costmodel.model_file import from_mapping, nearest, read_text, split_heads
from costmodel.model_spec import ModelSpec

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}

# Keys whose largest value is that of a field of ours, not the general one.
_COUNTS_OF_OWN = {"num_hidden_layers": "num_layers", "n_layer": "num_layers", "vocab_size": "vocab"}

Config = dict[str, Any]


def read_hf_config(path: Path) -> ModelSpec:
    """A model from a config.json. ValueError in one line that names the file and the key."""
    text = read_text(path)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} is not valid JSON: {reason[:120]}. Give a Hugging Face config.json."
        ) from None
    try:
        return _convert(config, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _convert(config: Any, path: Path) -> ModelSpec:
    if not isinstance(config, dict):
        raise ValueError("the file is not a JSON object. Give a Hugging Face config.json.")
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        near = nearest(name, list(ARCHITECTURES), "For") if isinstance(name, str) else ""
        raise ValueError(
            f"architectures {architectures!r:.80} is not supported.{near} "
            f"Supported: {', '.join(ARCHITECTURES)}. Others can be written as a model TOML."
        )
    folder = path.resolve().parent.name if path.name == "config.json" else path.stem
    values = ARCHITECTURES[name](config)
    return from_mapping(values | {"name": folder or "model", "source": f"{path.name} ({name})"})


def _count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"{key} is missing. Give it in the file.")
    largest = largest_count(_COUNTS_OF_OWN.get(key, ""))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
        raise ValueError(
            f"{key} {_shown(value)} is not a whole number from 1 to {largest}. Correct it in the file."
        )
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _count_or_zero(config: Config, key: str) -> int:
    value = config.get(key)
    return 0 if value is None or (value == 0 and isinstance(value, int)) else _count(config, key)


def _flag(config: Config, key: str, default: bool = False) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} {value!r:.60} is not true or false. Correct it in the file.")
    return value


def _activation(config: Config, key: str, default: str) -> str:
    value = config.get(key) or default
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise ValueError(f"{key} {value!r:.60} is not known. Known: {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[value]


def _llama(config: Config) -> Config:
    """Llama and its near relatives: gated MLP, RMSNorm, rotary positions, grouped-query attention."""
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    explicit = config.get("head_dim") is not None
    return {
        "num_layers": _count(config, "num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": _count(config, "intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": _count(config, "num_key_value_heads", heads),
        "head_dim": _count(config, "head_dim") if explicit else _split(hidden, heads),
        "gated": True,
        "activation": _activation(config, "hidden_act", "silu"),
        "norm": "RMSNorm",
        "vocab": _count(config, "vocab_size"),
        "tied_embeddings": _flag(config, "tie_word_embeddings"),
        "qkv_bias": _flag(config, "attention_bias"),
        "linear_bias": _bias_of_linears(config),
    }


def _split(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ValueError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads} and head_dim is absent. "
            "Give head_dim, or correct one of the two."
        )
    return split_heads(hidden, heads)


def _bias_of_linears(config: Config) -> bool:
    attention, mlp = _flag(config, "attention_bias"), _flag(config, "mlp_bias")
    if attention != mlp:
        raise ValueError(
            f"attention_bias {str(attention).lower()} with mlp_bias {str(mlp).lower()} is not supported: "
            "both or neither. Write the model as a TOML with qkv_bias and linear_bias."
        )
    return mlp


def _mistral(config: Config) -> Config:
    window = config.get("sliding_window")
    table = {} if window is None else {"sliding_window": {"window": _count(config, "sliding_window")}}
    return _llama(config) | table


def _qwen2(config: Config) -> Config:
    values = _llama(config) | {"qkv_bias": True}
    if _flag(config, "use_sliding_window"):
        values["sliding_window"] = {"window": _count(config, "sliding_window", 4096)}
    return values


def _qwen3(config: Config) -> Config:
    return _qwen2(config) | {"qkv_bias": False, "qk_norm": True}


def _gemma(config: Config) -> Config:
    values = _llama({"head_dim": 256, "tie_word_embeddings": True} | config)
    # Gemma's released files say "gelu" in hidden_act and mean the tanh one in hidden_activation: same cost.
    return values | {"activation": "gelu"}


def _qwen_experts(config: Config) -> Config:
    if config.get("mlp_only_layers"):
        raise ValueError("mlp_only_layers is not supported when it lists layers. Write the model as a TOML.")
    step = _count(config, "decoder_sparse_step", 1)
    return {
        "num_experts": _count(config, "num_experts"),
        "topk": _count(config, "num_experts_per_tok"),
        "expert_ffn": _count(config, "moe_intermediate_size"),
        # Sparse where (i + 1) is a multiple of the step.
        "dense_first_layers": step - 1,
        "layer_interval": step,
    }


def _shared_expert(config: Config) -> Config:
    return {
        "shared_expert_ffn": _count(config, "shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }


def _qwen2_moe(config: Config) -> Config:
    return _qwen2(config) | {"moe": _qwen_experts(config) | _shared_expert(config)}


def _qwen3_moe(config: Config) -> Config:
    return _qwen3(config) | {"moe": _qwen_experts(config)}


def _mixtral(config: Config) -> Config:
    values = _mistral(config)
    moe = {
        "num_experts": _count(config, "num_local_experts", 8),
        "topk": _count(config, "num_experts_per_tok", 2),
        "expert_ffn": values["ffn_hidden"],
    }
    return values | {"moe": moe}


# Node-limited routing: our names for DeepSeek's.
ROUTER_GROUPS = {"router_groups": "n_group", "router_group_topk": "topk_group"}


def _small_experts(config: Config) -> Config:
    """Many small experts beside shared ones, behind dense layers: DeepSeek, and GLM-4.5 after it."""
    width = _count(config, "moe_intermediate_size")
    return {
        "num_experts": _count(config, "n_routed_experts"),
        "topk": _count(config, "num_experts_per_tok"),
        "expert_ffn": width,
        "shared_expert_ffn": width * _count_or_zero(config, "n_shared_experts"),
        "dense_first_layers": _count_or_zero(config, "first_k_dense_replace"),
    }


def _router_groups(config: Config) -> Config:
    return {name: _count(config, key, 1) for name, key in ROUTER_GROUPS.items()}


def _deepseek(config: Config) -> Config:
    """DeepSeek-V2 and V3 (also Moonlight and Kimi K2, which use the V3 class)."""
    v_head_dim = _count(config, "v_head_dim", 128)
    mla = {
        "kv_lora_rank": _count(config, "kv_lora_rank"),
        "qk_head_dim": _count(config, "qk_nope_head_dim"),
        "qk_pos_emb_head_dim": _count(config, "qk_rope_head_dim"),
        "v_head_dim": v_head_dim,
    }
    if config.get("q_lora_rank") is not None:
        mla["q_lora_rank"] = _count(config, "q_lora_rank")
    sigmoid = config.get("scoring_func") == "sigmoid" or config.get("topk_method") == "noaux_tc"
    moe = _small_experts(config) | {
        "layer_interval": _count(config, "moe_layer_freq", 1),
        "router_score": "sigmoid" if sigmoid else "softmax",
        "expert_bias": config.get("topk_method") == "noaux_tc",
    }
    if config.get("topk_method") != "greedy":
        moe |= _router_groups(config)
    mtp = _count_or_zero(config, "num_nextn_predict_layers")
    llama = _llama({"head_dim": v_head_dim} | config)
    return llama | {"head_dim": v_head_dim, "qk_norm": True, "mla": mla, "moe": moe, "mtp_layers": mtp}


def _every_nth(config: Config, kind: str, step: int) -> None:
    """Whether layers of `kind` are every step-th one, from the step-th on, where the file lists its layers."""
    listed = config.get("layer_types")
    if listed is None:
        return
    if not isinstance(listed, list) or any(
        (layer == kind) != (place % step == 0) for place, layer in enumerate(listed, 1)
    ):
        raise ValueError(
            f"layer_types is no list with {kind} at every {step}th layer. Write the model as a TOML."
        )


def _gated_delta(config: Config) -> Config:
    """Qwen3-Next and Qwen3.5: gated delta nets, and gated attention with norms of Q and K every few layers."""
    step = _count(config, "full_attention_interval", 4)
    _every_nth(config, "full_attention", step)
    table = {
        "full_attention_interval": step,
        "num_key_heads": _count(config, "linear_num_key_heads", 16),
        "num_value_heads": _count(config, "linear_num_value_heads", 32),
        "key_head_dim": _count(config, "linear_key_head_dim", 128),
        "value_head_dim": _count(config, "linear_value_head_dim", 128),
        "conv_kernel": _count(config, "linear_conv_kernel_dim", 4),
    }
    # A class without dense layers has no width for them.
    width = _count(config, "intermediate_size", config.get("moe_intermediate_size"))
    values = _llama({"head_dim": 256} | config | {"intermediate_size": width})
    mtp = _count_or_zero(config, "mtp_num_hidden_layers")
    return values | {"qk_norm": True, "attention_output_gate": True, "gated_delta": table, "mtp_layers": mtp}


def _gated_delta_moe(config: Config) -> Config:
    return _gated_delta(config) | {"moe": _qwen_experts(config) | _shared_expert(config)}


def _language_part(convert: Callable[[Config], Config]) -> Callable[[Config], Config]:
    """The language model of a file that describes an encoder of images beside it."""

    def read(config: Config) -> Config:
        text = config.get("text_config")
        if not isinstance(text, dict):
            raise ValueError("text_config is missing. Give it in the file.")
        values = convert({"tie_word_embeddings": _flag(config, "tie_word_embeddings")} | text)
        return values | {"left_out": "the encoder of images"}

    return read


def _glm4_moe(config: Config) -> Config:
    """GLM-4.5: grouped-query attention, and experts as in DeepSeek-V3."""
    moe = _small_experts(config) | {"router_score": "sigmoid", "expert_bias": True} | _router_groups(config)
    # Of attention's linear layers those of Q, K and V have biases.
    values = _llama({"mlp_bias": _flag(config, "attention_bias")} | config) | {"linear_bias": False}
    mtp = _count_or_zero(config, "num_nextn_predict_layers")
    return values | {"qk_norm": _flag(config, "use_qk_norm"), "moe": moe, "mtp_layers": mtp}


def _gpt_oss(config: Config) -> Config:
    """GPT-OSS: windows at every other layer, attention sinks, clamped gates, biases in every linear layer."""
    _every_nth(config, "full_attention", 2)
    moe = {
        "num_experts": _count(config, "num_local_experts"),
        "topk": _count(config, "num_experts_per_tok"),
        "expert_ffn": _count(config, "intermediate_size"),
        "load_balancing": "none",
    }
    window = {"window": _count(config, "sliding_window", 128), "full_attention_interval": 2}
    values = _llama({"attention_bias": True, "head_dim": 64} | config | {"mlp_bias": True})
    return values | {"activation": "quick_gelu", "attention_sink": True, "moe": moe, "sliding_window": window}


def _gpt2(config: Config) -> Config:
    heads, hidden = _count(config, "n_head", 12), _count(config, "n_embd", 768)
    return {
        "num_layers": _count(config, "n_layer", 12),
        "hidden": hidden,
        "ffn_hidden": _count(config, "n_inner", 4 * hidden),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _split(hidden, heads),
        "gated": False,
        "activation": _activation(config, "activation_function", "gelu_new"),
        "norm": "LayerNorm",
        "vocab": _count(config, "vocab_size", 50257),
        "tied_embeddings": _flag(config, "tie_word_embeddings", True),
        "qkv_bias": True,
        "linear_bias": True,
        "learned_positions": _count(config, "n_positions", 1024),
    }


def _gpt_neox(config: Config) -> Config:
    values = _llama({"attention_bias": True, "mlp_bias": True} | config)
    bias = {"qkv_bias": True, "linear_bias": True}
    activation = _activation(config, "hidden_act", "gelu")
    return values | bias | {"gated": False, "activation": activation, "norm": "LayerNorm"}


ARCHITECTURES: dict[str, Callable[[Config], Config]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GemmaForCausalLM": _gemma,
    "GPT2LMHeadModel": _gpt2,
    "GPTNeoXForCausalLM": _gpt_neox,
    "MixtralForCausalLM": _mixtral,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "Qwen3NextForCausalLM": _gated_delta_moe,
    "Qwen3_5ForCausalLM": _gated_delta,
    "Qwen3_5ForConditionalGeneration": _language_part(_gated_delta),
    "Qwen3_5MoeForCausalLM": _gated_delta_moe,
    "Qwen3_5MoeForConditionalGeneration": _language_part(_gated_delta_moe),
    "Glm4MoeForCausalLM": _glm4_moe,
    "GptOssForCausalLM": _gpt_oss,
}
