"""Hybrids of Mamba, attention, MLPs and experts of Hugging Face, as in `dense`."""

from __future__ import annotations

from costmodel.huggingface.dense import llama
from costmodel.huggingface.experts import router_groups
from costmodel.huggingface.values import Config, count, count_or_zero, number, read_activation
from costmodel.model_spec import PATTERN_LETTERS

# Names of layers in lists, of now and of earlier files.
_LETTERS = {
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
    "moe": "E",
}


def nemotron_h(config: Config) -> Config:
    """Nemotron-H and Nemotron 3: layers by a pattern, ungated MLPs with squared ReLU."""
    pattern = _pattern(config, "hybrid_override_pattern", "layers_block_type")
    if not pattern:
        raise ValueError("hybrid_override_pattern is missing. Give it, or layers_block_type, in the file.")
    if config.get("hybrid_override_pattern") and count(config, "num_hidden_layers", len(pattern)) != len(
        pattern
    ):
        # The class asserts it: configuration_nemotron_h.py of the published models.
        raise ValueError(
            f"num_hidden_layers {config['num_hidden_layers']} is not the {len(pattern)} letters of "
            "hybrid_override_pattern. Correct one of the two."
        )
    sizes = {"num_hidden_layers": len(pattern), "head_dim": config.get("attention_head_dim") or 128}
    values = llama(sizes | config | {"num_hidden_layers": len(pattern), "hidden_act": "silu"})
    values["rotary_base"] = None  # attention has no positions
    values |= {"gated": False, "activation": read_activation(config, "mlp_hidden_act", "relu2")}
    mixer = {
        "num_heads": count(config, "mamba_num_heads", 128),
        "head_dim": count(config, "mamba_head_dim", 64),
        "state_dim": count(config, "ssm_state_size", 128),
        "num_groups": count(config, "n_groups", 8),
        "conv_kernel": count(config, "conv_kernel", 4),
    }
    mtp = count_or_zero(config, "num_nextn_predict_layers")
    inner = _pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E"
    values |= {"layer_pattern": pattern, "mtp_layers": mtp, "mtp_pattern": inner if mtp else ""}
    return (
        values
        | ({"mamba": mixer} if "M" in pattern else {})
        | ({"moe": _experts(config)} if "E" in pattern else {})
    )


def _experts(config: Config) -> Config:
    shared = count_or_zero(config, "moe_shared_expert_intermediate_size")
    moe = {
        "num_experts": count(config, "n_routed_experts"),
        "topk": count(config, "num_experts_per_tok"),
        "expert_ffn": count(config, "moe_intermediate_size"),
        "shared_expert_ffn": shared,
        "router_score": "sigmoid",
        "expert_bias": True,
        "router_scaling_factor": number(config, ("routed_scaling_factor",)),
    }
    if config.get("moe_latent_size") is not None:
        moe["latent_size"] = count(config, "moe_latent_size")
    return moe | router_groups(config)


def _pattern(config: Config, key: str, listed: str) -> str:
    """A letter a layer, from a text of letters or a list of names; "" where the file has neither."""
    text, names = config.get(key), config.get(listed)
    if names is not None:
        known = isinstance(names, list) and all(isinstance(name, str) and name in _LETTERS for name in names)
        if not known:
            raise ValueError(f"{listed} {names!r:.60} is no list of {', '.join(_LETTERS)}. Correct it.")
        return "".join(_LETTERS[name] for name in names)
    if text is not None and not (isinstance(text, str) and set(text) <= set(PATTERN_LETTERS)):
        raise ValueError(f"{key} {text!r:.60} is no text of the letters {' '.join(PATTERN_LETTERS)}.")
    return text or ""
