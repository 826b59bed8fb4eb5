"""Dense models of Hugging Face: one function a class, from its configuration to the fields of a model.

References: configuration and modelling classes of huggingface/transformers 5.24.
"""

from __future__ import annotations

from costmodel.huggingface.values import (
    Config,
    bias_of_linears,
    count,
    count_or_zero,
    every_nth,
    expect,
    flag,
    nope_interval,
    norm_epsilon,
    number,
    read_activation,
    renamed,
    rotary,
    shown,
    split,
)

# Norms that our layers have no place for; a few thousand weights a layer, and the time to read and write its tokens.
NORMS_BEHIND: Config = {"norms": {"attention": 2, "mlp": 2, "written": "none"}}
NORMS_MOVED = "norms behind attention and MLP instead of in front"
NORMS_OF_ALL_HEADS = "norms of Q and K over all heads at once, taken a head at a time"
NORMS_ROTATED = "norms of rotated Q and K, taken in front of the rotation"
GROWING_QUERIES = "how queries grow with their position"
FACTORS = "factors of residuals and logits"
# Both read what enters the layer and are added to it at once, so that one all-reduce over tp may serve for two.
SIDE_BY_SIDE = "attention and MLP side by side"

# What classes take for granted where a file has no share of rotary dimensions.
HALF_ROTARY = {"partial_rotary_factor": 0.5}


def llama(config: Config) -> Config:
    """Llama and its near relatives: gated MLP, RMSNorm, rotary positions, grouped-query attention."""
    heads, hidden = count(config, "num_attention_heads"), count(config, "hidden_size")
    explicit = config.get("head_dim") is not None
    return {
        "num_layers": count(config, "num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": count(config, "intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": count(config, "num_key_value_heads", heads),
        "head_dim": count(config, "head_dim") if explicit else split(hidden, heads),
        "gated": True,
        "activation": read_activation(config, "hidden_act", "silu"),
        "norm": "RMSNorm",
        "norm_epsilon": norm_epsilon(config),
        **rotary(config),
        "vocab": count(config, "vocab_size"),
        "tied_embeddings": flag(config, "tie_word_embeddings"),
        "qkv_bias": flag(config, "attention_bias"),
        "linear_bias": bias_of_linears(config),
    }


def mistral(config: Config) -> Config:
    config = {"sliding_window": 4096, "num_key_value_heads": 8} | config
    window = config["sliding_window"]
    table = {} if window is None else {"sliding_window": {"window": count(config, "sliding_window")}}
    return llama(config) | table


def qwen2(config: Config) -> Config:
    values = llama(config) | {"qkv_bias": True}
    return values | (last_windows(config, 28) if flag(config, "use_sliding_window") else {})


def last_windows(config: Config, usual: int) -> Config:
    """Windows on the layers from max_window_layers on: all or none."""
    first = count_or_zero({"max_window_layers": usual} | config, "max_window_layers")
    if first == 0:
        return {"sliding_window": {"window": count(config, "sliding_window", 4096)}}
    if first < count(config, "num_hidden_layers"):
        raise ValueError(
            f"max_window_layers {first} with use_sliding_window puts windows on the last layers alone, which is not "
            "supported. Write the model as a TOML, or set use_sliding_window to false."
        )
    return {}


def qwen2_vl(config: Config) -> Config:
    return qwen2({"rope_theta": 1_000_000} | config)


def qwen3(config: Config) -> Config:
    return qwen2(config) | {"qkv_bias": False, "qk_norm": True}


def qwen3_vl(config: Config) -> Config:
    return qwen3({"rope_theta": 500_000} | config)


def gemma(config: Config) -> Config:
    values = llama({"head_dim": 256, "tie_word_embeddings": True} | config)
    # Gemma's released files say "gelu" in hidden_act and mean the tanh one in hidden_activation, which is fast_gelu to
    # Megatron-Bridge (0.6.2, gemma/*_provider.py).
    own: Config = {
        "activation": "fast_gelu",
        "zero_centered_norm": True,
        "embedding_scale": values["hidden"] ** 0.5,
    }
    scalar = number(config, ("query_pre_attn_scalar",))
    # The class divides scores by its root instead of the head size's.
    if scalar and scalar != values["head_dim"]:
        own["softmax_scale"] = scalar**-0.5
    caps = {"score_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
    own |= {name: number(config, (key,)) for name, key in caps.items() if config.get(key) is not None}
    return values | own


def gpt2(config: Config) -> Config:
    heads, hidden = count(config, "n_head", 12), count(config, "n_embd", 768)
    return {
        "num_layers": count(config, "n_layer", 12),
        "hidden": hidden,
        "ffn_hidden": count(config, "n_inner", 4 * hidden),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": split(hidden, heads),
        "gated": False,
        "activation": read_activation(config, "activation_function", "gelu_new"),
        "norm": "LayerNorm",
        "norm_epsilon": norm_epsilon(config),
        "vocab": count(config, "vocab_size", 50257),
        "tied_embeddings": flag(config, "tie_word_embeddings", True),
        "qkv_bias": True,
        "linear_bias": True,
        "learned_positions": count(config, "n_positions", 1024),
    }


def gpt_neox(config: Config) -> Config:
    values = llama({"attention_bias": True, "mlp_bias": True, "rotary_pct": 0.25} | config)
    bias = {"qkv_bias": True, "linear_bias": True}
    activation = read_activation(config, "hidden_act", "gelu")
    left_out = SIDE_BY_SIDE if flag(config, "use_parallel_residual", True) else ""
    own = {"gated": False, "activation": activation, "norm": "LayerNorm", "left_out": left_out}
    return values | bias | own


def _windowed(values: Config, config: Config, default: int, interval: int) -> Config:
    """Windows on all layers but every interval-th one."""
    every_nth(config, "full_attention", interval)
    window = {"window": count(config, "sliding_window", default), "full_attention_interval": interval}
    return values | {"sliding_window": window}


def gemma2(config: Config) -> Config:
    """Gemma 2: windows on every other layer, norms on both sides of each block, capped scores and logits."""
    caps = {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    values = _windowed(gemma(caps | config), config, 4096, 2)
    return values | NORMS_BEHIND


def gemma3(config: Config) -> Config:
    """Gemma 3: windows on five of six layers, norms of Q and K, norms on both sides of each block."""
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}
    defaults |= {"query_pre_attn_scalar": 256, "rope_theta": 1_000_000}
    values = gemma(defaults | config) | {"qk_norm": True} | NORMS_BEHIND
    # Layers with windows have a base of their own. Newer files nest both in rope_parameters, which are not read.
    if "rope_parameters" in config:
        values["rotary_base"] = None
    else:
        local = number(config, ("rope_local_base_freq",), 10_000)
        values["rotary_local_base"] = int(local) if local and local == int(local) else None
    return _windowed(values, config, 4096, count(config, "sliding_window_pattern", 6))


def phi3(config: Config) -> Config:
    """Phi-3 and Phi-4: Llama with one matrix for Q, K and V, and for gate and up; the same sizes and work."""
    return mistral({"sliding_window": None, "num_key_value_heads": None} | config)


def olmo2(config: Config) -> Config:
    return llama(config) | {"qk_norm": True, "left_out": NORMS_OF_ALL_HEADS}


def olmo3(config: Config) -> Config:
    return _windowed(olmo2({"rope_theta": 500_000} | config), config, 4096, 4)


def smollm3(config: Config) -> Config:
    """SmolLM3: Llama without rotary embedding on every fourth layer."""
    values = llama({"tie_word_embeddings": True, "num_key_value_heads": 4, "rope_theta": 2_000_000} | config)
    return values | {"nope_layer_interval": nope_interval(config)}


def glm(config: Config) -> Config:
    """GLM-4 of the transformers library: Llama with biases of Q, K and V."""
    values = llama(
        HALF_ROTARY
        | {"head_dim": 128, "attention_bias": True, "mlp_bias": flag(config, "attention_bias", True)}
        | config
    )
    return values | {"linear_bias": False}


def glm4(config: Config) -> Config:
    return glm(config) | NORMS_BEHIND


def nemotron(config: Config) -> Config:
    """Nemotron-4: an ungated MLP with squared ReLU, and LayerNorm of weights around zero."""
    activation = read_activation(config, "hidden_act", "relu2")
    own = {"gated": False, "activation": activation, "norm": "LayerNorm", "zero_centered_norm": True}
    return llama(HALF_ROTARY | config | {"hidden_act": "relu2"}) | own


def starcoder2(config: Config) -> Config:
    bias = flag(config, "use_bias", True)
    values = phi3({"tie_word_embeddings": True, "num_key_value_heads": 2} | config)
    activation = read_activation(config, "hidden_act", "gelu_pytorch_tanh")
    own = {"gated": False, "activation": activation, "norm": "LayerNorm"}
    return values | own | {"qkv_bias": bias, "linear_bias": bias}


def mimo(config: Config) -> Config:
    """MiMo-7B: Qwen2 with heads of multi-token prediction."""
    # Its files say attention_bias, which is of Q, K and V, as Qwen2's is without a key.
    expect(config, {"attention_bias": True})
    values = qwen2(config | {"attention_bias": False})
    return values | {"mtp_layers": count_or_zero(config, "num_nextn_predict_layers")}


def ernie(config: Config) -> Config:
    """ERNIE 4.5: Llama whose linear layers all have biases, or none."""
    bias = flag(config, "use_bias")
    usual: Config = {"head_dim": 128, "tie_word_embeddings": True, "rope_theta": 500_000}
    return llama(usual | config | {"attention_bias": bias, "mlp_bias": bias})


def global_windows(config: Config) -> Config:
    """EXAONE 4.0's windows, on all layers but every n-th one, which then has no positions; none without a window."""
    if config.get("sliding_window", 4096) is None:
        return {}
    pattern = config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        if pattern != "L" * (len(pattern) - 1) + "G":
            raise ValueError(
                f"sliding_window_pattern {shown(pattern)} is no text of L with one G at its end. "
                "Write the model as a TOML."
            )
        pattern = len(pattern)
    interval = count({"sliding_window_pattern": pattern}, "sliding_window_pattern", 4)
    return _windowed({"nope_layer_interval": interval}, config, 4096, interval)


def exaone(config: Config) -> Config:
    """EXAONE 3: Llama under names of its own."""
    names = {
        "num_layers": "num_hidden_layers",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "rms_norm_eps",
    }
    return llama({"num_key_value_heads": 8, "rope_theta": 500_000} | renamed(config, names))


def exaone4(config: Config) -> Config:
    """EXAONE 4.0: norms of Q and K, and of what attention and MLP put out instead of what they take in."""
    return llama(config) | global_windows(config) | {"qk_norm": True, "left_out": NORMS_MOVED}


def internlm3(config: Config) -> Config:
    usual = {"head_dim": 128, "num_key_value_heads": 2}
    return llama(usual | renamed(config, {"qkv_bias": "attention_bias", "bias": "mlp_bias"}))


def iquestcoder(config: Config) -> Config:
    """IQuest-Coder: Llama; its class refuses what the remote one could clip or put windows on."""
    expect(config, {"use_sliding_window": False, "clip_qkv": None})
    return llama({"head_dim": 128, "num_key_value_heads": 8} | config)


def seed_oss(config: Config) -> Config:
    """Seed-OSS: Llama with biases of Q, K and V."""
    bias = {"attention_bias": bias_of_linears(config, "attention_out_bias")}
    values = llama({"head_dim": 128, "num_key_value_heads": 8} | config | bias)
    return values | {"qkv_bias": flag(config, "attention_bias", True)}


def arcee(config: Config) -> Config:
    """AFM-4.5B: Llama with an ungated MLP and squared ReLU."""
    return llama({"hidden_act": "relu2"} | config) | {"gated": False}


def jais2(config: Config) -> Config:
    """Jais 2: an ungated MLP with squared ReLU, LayerNorm, biases in every linear layer."""
    usual: Config = {"attention_bias": True, "mlp_bias": True, "head_dim": 128}
    return arcee(usual | config) | {"norm": "LayerNorm"}


def granite(config: Config) -> Config:
    """Granite 3: Llama with factors of embeddings, scores, residuals and logits."""
    values = llama(config)
    own: Config = {}
    if (scale := number(config, ("embedding_multiplier",), 1.0)) != 1:
        own["embedding_scale"] = scale
    if (scale := number(config, ("attention_multiplier",), 1.0)) != values["head_dim"] ** -0.5:
        own["softmax_scale"] = scale
    others = [number(config, (key,), 1.0) for key in ("residual_multiplier", "logits_scaling")]
    return values | own | ({"left_out": FACTORS} if others != [1, 1] else {})


def hunyuan(config: Config) -> Config:
    """Hunyuan V1: Llama with norms of rotated Q and K; a fixed alpha stretches the base of positions."""
    expect(config, {"use_cla": False, "use_rotary_pos_emb": True})
    config = renamed(config, {"attention_head_dim": "head_dim"})
    values = llama(_stretched_base(config))
    if not flag(config, "use_qk_norm", True):
        return values
    return values | {"qk_norm": True, "left_out": NORMS_ROTATED}


def _stretched_base(config: Config) -> Config:
    """The configuration with the base that an alpha makes: theta alpha^(d / (d - 2)), rounded, and no scaling left."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(scaling, dict) or not scaling.get("alpha"):
        return config
    said = config | scaling
    heads = count(config, "num_attention_heads")
    dim = count(config, "head_dim") if config.get("head_dim") else split(count(config, "hidden_size"), heads)
    theta, alpha = number(said, ("rope_theta",), 10_000) or 0, number(said, ("alpha",)) or 0
    if dim <= 2 or not 0 < theta <= 10**9 or not 0 < alpha <= 10**6:
        raise ValueError(f"alpha {shown(scaling['alpha'])} of rope_scaling stretches no base. Correct it.")
    base = round(theta * alpha ** (dim / (dim - 2)))
    return config | {"rope_theta": base, "rope_scaling": None, "rope_parameters": None}


def ministral3(config: Config) -> Config:
    """Ministral 3: Mistral whose queries may grow with their position."""
    values = mistral({"sliding_window": None} | config)
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    grows = isinstance(scaling, dict) and scaling.get("llama_4_scaling_beta")
    return values | ({"left_out": GROWING_QUERIES} if grows else {})


def gpt_bigcode(config: Config) -> Config:
    """StarCoder: GPT-2 with one key-value head."""
    expect(config, {"add_cross_attention": False})
    return gpt2(config) | ({"num_kv_heads": 1} if flag(config, "multi_query", True) else {})


def opt(config: Config) -> Config:
    """OPT: GPT-2 with ReLU under names of its own; two rows of its positions stand for none."""
    usual = {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "enable_bias": True}
    hidden = count(config, "hidden_size")
    expect(config, usual | {"layer_norm_elementwise_affine": True, "word_embed_proj_dim": hidden})
    names = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    values = gpt2({"activation_function": "relu"} | renamed(config, names | {"ffn_dim": "n_inner"}))
    return values | {"learned_positions": count(config, "max_position_embeddings", 2048) + 2}


def stablelm(config: Config) -> Config:
    """StableLM: Llama with LayerNorm, a quarter of rotary dimensions and perhaps biases of Q, K and V."""
    expect(config, {"use_parallel_residual": False, "qk_layernorm": False})
    values = llama({"partial_rotary_factor": 0.25} | config)
    return values | {"norm": "LayerNorm", "qkv_bias": flag(config, "use_qkv_bias")}


def falcon(config: Config) -> Config:
    """Falcon 40B and 180B: attention and an ungated MLP side by side, each behind a LayerNorm of its own."""
    told = {"new_decoder_architecture": True, "parallel_attn": True, "num_ln_in_parallel_attn": 2}
    newer = config.get("new_decoder_architecture") or False
    expect(config | {"new_decoder_architecture": newer}, told | {"alibi": False, "bias": False})
    width = count(config, "ffn_hidden_size", 4 * count(config, "hidden_size"))
    usual = {"tie_word_embeddings": True, "num_key_value_heads": config.get("num_kv_heads")}
    values = llama(usual | config | {"intermediate_size": width, "hidden_act": "gelu"})
    activation = read_activation(config, "activation", "gelu")
    return values | {
        "gated": False,
        "activation": activation,
        "norm": "LayerNorm",
        "left_out": SIDE_BY_SIDE,
    }
