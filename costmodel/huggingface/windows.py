"""Models of Hugging Face whose layers with windows have heads of their own: one function a class, as in
`dense`."""

from __future__ import annotations

from typing import Any

from costmodel.huggingface.dense import llama
from costmodel.huggingface.experts import UNSCALED, router_groups
from costmodel.huggingface.values import (
    Config,
    count,
    count_or_zero,
    dense_in_front,
    expect,
    flag,
    number,
    shown,
)

_LETTERS = {"full_attention": "F", "sliding_attention": "W"}
# Heads for more tokens of MiMo-V2-Flash stand in a file of weights of their own.
UNCOUNTED_HEADS = "multi-token-prediction heads, whose number config.json does not say"


def mimo_v2_flash(config: Config) -> Config:
    """MiMo-V2-Flash: values narrower than queries, key-value heads and sinks of windows alone, a dense layer first.

    References: transformers MiMoV2FlashConfig, MiMoV2FlashAttention; Megatron-Bridge 0.6.2, mimo_v2_flash_bridge.py.
    """
    values = llama({"num_key_value_heads": 4, "head_dim": 192, "rope_theta": 5_000_000} | config)
    values["v_head_dim"] = _other(count(config, "v_head_dim", 128), values["head_dim"])
    values["value_scale"] = number({"attention_value_scale": 0.707} | config, ("attention_value_scale",))
    pattern = _listed(config, "hybrid_layer_pattern", {0: "F", 1: "W"}) or _listed(
        config, "layer_types", _LETTERS
    )
    if not pattern:
        layers = range(1, values["num_layers"] + 1)
        pattern = "".join("F" if layer == 1 or layer % 6 == 0 else "W" for layer in layers)
    if flag(config, "add_full_attention_sink_bias"):
        raise ValueError("add_full_attention_sink_bias true is not supported. Write the model as a TOML.")
    window = {
        "window": count(config, "sliding_window_size", count(config, "sliding_window", 128)),
        "pattern": pattern,
        "num_heads": count(config, "swa_num_attention_heads", values["num_heads"]),
        "num_kv_heads": count(config, "swa_num_key_value_heads", 2 * values["num_kv_heads"]),
        "head_dim": count(config, "swa_head_dim", values["head_dim"]),
        "v_head_dim": count(config, "swa_v_head_dim", count(config, "v_head_dim", 128)),
        "sinks": flag(config, "add_swa_attention_sink_bias", True),
    }
    return values | {
        "rotary_local_base": count(config, "swa_rope_theta", 10_000),
        "moe": _mimo_experts(config),
        "sliding_window": window,
        "left_out": UNCOUNTED_HEADS,
    }


def _mimo_experts(config: Config) -> Config:
    width = count(config, "moe_intermediate_size")
    first = 1 if config.get("moe_layer_freq") is None else dense_in_front(config, "moe_layer_freq", (1,))
    return {
        "num_experts": count(config, "n_routed_experts"),
        "topk": count(config, "num_experts_per_tok"),
        "expert_ffn": width,
        "shared_expert_ffn": width * count_or_zero(config, "n_shared_experts"),
        "dense_first_layers": first,
        "router_score": "sigmoid",
        "expert_bias": True,
        "load_balancing": "none",
        **UNSCALED,
        **router_groups(config),
    }


def step3p5(config: Config) -> Config:
    """Step-3.5-Flash, and the language model of Step-3.7-Flash: more query heads in windows, a gate for each head.

    Layers for more tokens follow the others in every list. References: transformers Step3p7TextConfig,
    Step3p7Attention; Megatron-Bridge 0.6.2, stepfun/step35_bridge.py and step35_provider.py.
    """
    expect(config, {"use_head_wise_attn_gate": True})
    layers = count(config, "num_hidden_layers")
    types = _listed(config, "layer_types", _LETTERS) or "F" * layers
    if len(types) == layers:  # as newer files have it, those behind the others in a list of their own
        types += _listed(config | {"num_hidden_layers": 1}, "mtp_layer_types", _LETTERS)
    first = {letter: types.index(letter) for letter in dict.fromkeys(types[:layers])}
    groups = count(config, "num_attention_groups", count(config, "num_key_value_heads", 8))
    full = first.get("F", 0)
    shares = _of_layer(config, "partial_rotary_factors", full)
    own = {
        "rope_theta": _of_layer(config, "rope_theta", full),
        "partial_rotary_factor": 1.0 if shares is None else shares,
    }
    values = llama({"head_dim": 128} | config | own | {"num_key_value_heads": groups})
    limits = config.get("swiglu_limits")
    clamped = sum(bool(each) for each in limits[:layers]) if isinstance(limits, list) else 0
    found: Config = {
        "zero_centered_norm": flag(config, "zero_centered", True),
        "qk_norm": flag(config, "use_qk_norm", True),
        "attention_output_gate": True,
        "attention_head_gate": True,
        "moe": _step_experts(config, layers),
        "mtp_layers": count_or_zero(config, "num_nextn_predict_layers"),
        "left_out": f"clamps of SwiGLU on {clamped} layers" if clamped else "",
    }
    if "W" in first:
        found["sliding_window"] = _step_windows(config, types[:layers])
        base = number({"rope_theta": _of_layer(config, "rope_theta", first["W"])}, ("rope_theta",), 10_000)
        found["rotary_local_base"] = int(base) if base and base == int(base) else None
    if found["mtp_layers"]:
        found["mtp_pattern"] = _step_heads(types[layers:])
    return values | found


def _step_windows(config: Config, pattern: str) -> Config:
    other = config.get("attention_other_setting") or {}
    if not isinstance(other, dict):
        raise ValueError(f"attention_other_setting {shown(other)} is not an object. Correct it in the file.")
    sizes = {
        "num_heads": ("num_attention_heads", config.get("num_sliding_attention_heads")),
        "num_kv_heads": ("num_attention_groups", None),
        "head_dim": ("head_dim", None),
    }
    heads = {name: other.get(key) or default for name, (key, default) in sizes.items()}
    return {"window": count(config, "sliding_window", 512), "pattern": pattern} | {
        name: count({name: value}, name) for name, value in heads.items() if value is not None
    }


def _step_heads(types: str) -> str:
    """Layers of one head for more tokens: attention as listed behind the others, full where it is not, and an MLP."""
    if len(set(types)) > 1:
        raise ValueError(
            "layer_types lists different attention for the layers behind num_hidden_layers, which predict more tokens. "
            "Write the model as a TOML."
        )
    return "W-" if types.startswith("W") else "*-"


def _step_experts(config: Config, layers: int) -> Config:
    listed = config.get("moe_layers_enum")
    newer = config.get("mlp_layer_types")
    if isinstance(newer, list):
        listed = [layer for layer, kind in enumerate(newer[:layers]) if kind == "sparse"]
    elif isinstance(listed, str):
        listed = [int(each) if each.strip().isdecimal() else each for each in listed.split(",")]
    if listed is None:
        listed = list(range(3, layers))
    sparse = [layer in listed for layer in range(layers)] if isinstance(listed, list) else listed
    experts = count(config, "moe_num_experts", count(config, "n_routed_experts", 288))
    chosen = count(config, "moe_top_k", count(config, "num_experts_per_tok", 8))
    return {
        "num_experts": experts,
        "topk": chosen,
        "expert_ffn": count(config, "moe_intermediate_size", 1280),
        "shared_expert_ffn": count(config, "share_expert_dim", count(config, "share_expert_dims", 1280)),
        "dense_first_layers": dense_in_front(
            config | {"moe_layers_enum": sparse}, "moe_layers_enum", (True,)
        ),
        "router_score": str(config.get("moe_router_activation") or "sigmoid"),
        "router_scaling_factor": number(config, ("moe_router_scaling_factor",), 1.0),
        "router_dtype": "fp32" if flag(config, "need_fp32_gate") else None,
        "expert_bias": flag(config, "use_moe_router_bias", True),
    }


def gemma4(config: Config) -> Config:
    """Gemma 4: full layers with wide heads and one projection for keys and values, norms around every block, and
    perhaps experts beside the MLP of each layer, which is told as their shared one.

    References: transformers Gemma4TextConfig, Gemma4TextDecoderLayer; Megatron-Bridge 0.6.2, gemma/modeling_gemma4.py.
    """
    if count_or_zero({"hidden_size_per_layer_input": 256} | config, "hidden_size_per_layer_input"):
        raise ValueError(
            "hidden_size_per_layer_input gives each layer embeddings of its own, and such models share keys and values "
            "between layers, which are none of ours. Larger ones of the class have neither."
        )
    expect(config, {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "attention_bias": False})
    activation = config.get("hidden_activation") or config.get("hidden_act") or "gelu_pytorch_tanh"
    usual: Config = {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262144,
    }
    usual |= {"tie_word_embeddings": True, "rms_norm_eps": 1e-6, "num_hidden_layers": 30}
    config = usual | {"hidden_size": 2304, "intermediate_size": 9216} | config | {"hidden_act": activation}
    positions = config.get("rope_parameters") or {}
    of_full, of_windows = (
        (positions.get(kind) or {}) if isinstance(positions, dict) else {} for kind in _LETTERS
    )
    bases = {"rope_theta": of_full.get("rope_theta", 1_000_000), "rope_parameters": None}
    share = of_full.get("partial_rotary_factor", 0.25)
    values = llama(config | bases | {"partial_rotary_factor": share})
    local = number({"rope_theta": of_windows.get("rope_theta", 10_000)}, ("rope_theta",))
    layers = values["num_layers"]
    pattern = _listed(config, "layer_types", _LETTERS) or (
        "".join("W" if layer % 6 else "F" for layer in range(1, layers + 1))
    )
    tied = flag(config, "attention_k_eq_v")
    full = _overrides(config)
    groups = count(full, "num_key_value_heads", values["num_kv_heads"]) if tied else values["num_kv_heads"]
    found: Config = {
        "num_kv_heads": groups,
        "head_dim": count(full, "head_dim", 512),
        # As Megatron-Bridge has it: no fused kernel is for this one.
        "activation": "fast_gelu" if values["activation"] == "gelu" else values["activation"],
        "qk_norm": True,
        "values_are_keys": tied,
        "rotary_local_base": int(local) if local and local == int(local) else None,
        "softmax_scale": 1.0,
        "embedding_scale": values["hidden"] ** 0.5,
        "logit_cap": number(config, ("final_logit_softcapping",)),
        "sliding_window": {
            # The last layer sees everything, whatever a file says.
            "pattern": pattern[: layers - 1] + "F",
            "window": count(config, "sliding_window", 512),
            "num_kv_heads": values["num_kv_heads"],
            "head_dim": values["head_dim"],
        },
    }
    norms = {"attention": 2, "mlp": 2, "values": True, "layer_scale": True}
    if flag(config, "enable_moe_block"):
        experts = {
            "num_experts": count(config, "num_experts"),
            "topk": count(config, "top_k_experts"),
            "expert_ffn": count(config, "moe_intermediate_size"),
            "shared_expert_ffn": values["ffn_hidden"],
            # As Megatron-Bridge trains it.
            "router_dtype": "fp32",
            "load_balancing": "aux_loss",
            "aux_loss_coeff": 0.001,
        }
        around = {"mlp": 5, "router": True, "written": "mlp"}
        return values | found | {"moe": experts, "norms": norms | around}
    return values | found | {"norms": norms, "local_layers": True}


def _overrides(config: Config) -> Config:
    """Heads of layers without windows: newer files list them layer by layer."""
    listed = config.get("per_layer_config")
    if listed is None:
        own = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        return {name: config[key] for name, key in own.items() if config.get(key) is not None}
    parts = list(listed.values()) if isinstance(listed, dict) else [listed]
    first = parts[0] if parts else {}
    if not isinstance(first, dict) or any(part != first for part in parts):
        raise ValueError(
            f"per_layer_config {shown(listed)} gives layers without windows different heads, which is not supported. "
            "Write the model as a TOML."
        )
    return first


def _other(size: int, usual: int) -> int | None:
    return None if size == usual else size


def _of_layer(config: Config, key: str, layer: int) -> Any:
    """The value of one layer where a key has a list of them, else the one of all."""
    value = config.get(key)
    if not isinstance(value, list):
        return value
    if layer >= len(value):
        raise ValueError(f"{key} {shown(value)} has no value for layer {layer}. Give one for each layer.")
    return value[layer]


def _listed(config: Config, key: str, letters: dict[Any, str]) -> str:
    """A list with an entry for each layer as a letter each; "" where the file has none."""
    listed = config.get(key)
    if listed is None:
        return ""
    known = ", ".join(map(str, letters))
    least = count(config, "num_hidden_layers")
    if not isinstance(listed, list) or any(
        isinstance(each, list | dict) or each not in letters for each in listed
    ):
        raise ValueError(f"{key} {shown(listed)} is not a list of {known}. Correct it in the file.")
    if len(listed) < least:
        raise ValueError(
            f"{key} has {len(listed)} entries for num_hidden_layers {least}. Give one for each layer."
        )
    return "".join(letters[each] for each in listed)
