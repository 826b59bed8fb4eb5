"""Mixtures of experts of Hugging Face, and models of gated delta nets: one function a class, as in `dense`."""

from __future__ import annotations

from costmodel.huggingface.dense import HALF_ROTARY, llama, mistral, olmo2, qwen2, qwen3
from costmodel.huggingface.values import (
    Config,
    count,
    count_or_zero,
    dense_first,
    dense_in_front,
    every_nth,
    expect,
    flag,
    nope_interval,
    number,
    shown,
)

# Of classes that only know normalised weights of the chosen experts.
NORMALISED = {"norm_topk_prob": True}
UNSCALED = {"router_scaling_factor": 1.0}


def qwen_experts(config: Config) -> Config:
    if config.get("mlp_only_layers"):
        raise ValueError("mlp_only_layers is not supported when it lists layers. Write the model as a TOML.")
    step = count(config, "decoder_sparse_step", 1)
    return {
        "num_experts": count(config, "num_experts"),
        "topk": count(config, "num_experts_per_tok"),
        "expert_ffn": count(config, "moe_intermediate_size"),
        # Sparse where (i + 1) is a multiple of the step.
        "dense_first_layers": step - 1,
        "layer_interval": step,
        **softmax_router(config),
    }


def softmax_router(config: Config) -> Config:
    """Softmax over all experts; normalised over the chosen, it is the same as over the chosen alone."""
    return {"router_pre_softmax": not flag(config, "norm_topk_prob"), **UNSCALED}


def shared_expert(config: Config) -> Config:
    return {
        "shared_expert_ffn": count(config, "shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }


def qwen2_moe(config: Config) -> Config:
    return qwen2(config) | {"moe": qwen_experts(config) | shared_expert(config)}


def qwen3_moe(config: Config) -> Config:
    return qwen3(config) | {"moe": qwen_experts(config)}


def qwen3_vl_moe(config: Config) -> Config:
    return qwen3_moe({"rope_theta": 500_000} | config | NORMALISED)


def mixtral(config: Config) -> Config:
    values = mistral({"sliding_window": None, "rope_theta": 1_000_000} | config)
    moe = {
        "num_experts": count(config, "num_local_experts", 8),
        "topk": count(config, "num_experts_per_tok", 2),
        "expert_ffn": values["ffn_hidden"],
        **UNSCALED,
    }
    return values | {"moe": moe}


# Node-limited routing: our names for DeepSeek's.
ROUTER_GROUPS = {"router_groups": "n_group", "router_group_topk": "topk_group"}


def small_experts(config: Config) -> Config:
    """Many small experts beside shared ones, behind dense layers: DeepSeek, and GLM-4.5 after it."""
    width = count(config, "moe_intermediate_size")
    return {
        "num_experts": count(config, "n_routed_experts"),
        "topk": count(config, "num_experts_per_tok"),
        "expert_ffn": width,
        "shared_expert_ffn": width * count_or_zero(config, "n_shared_experts"),
        "dense_first_layers": count_or_zero(config, "first_k_dense_replace"),
        "router_scaling_factor": number(config, ("routed_scaling_factor",)),
    }


def router_groups(config: Config) -> Config:
    return {name: count(config, key, 1) for name, key in ROUTER_GROUPS.items()}


def latent(config: Config) -> Config:
    """Llama with latent attention."""
    v_head_dim = count(config, "v_head_dim", 128)
    mla = {
        "kv_lora_rank": count(config, "kv_lora_rank"),
        "qk_head_dim": count(config, "qk_nope_head_dim"),
        "qk_pos_emb_head_dim": count(config, "qk_rope_head_dim"),
        "v_head_dim": v_head_dim,
    }
    if config.get("q_lora_rank") is not None:
        mla["q_lora_rank"] = count(config, "q_lora_rank")
    values = llama({"head_dim": v_head_dim} | config)
    return values | {"head_dim": v_head_dim, "qk_norm": True, "mla": mla}


def youtu(config: Config) -> Config:
    """Youtu-LLM: latent attention, and an MLP in every layer."""
    usual: Config = {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
    }
    return latent(usual | {"tie_word_embeddings": True} | config)


def deepseek(config: Config) -> Config:
    """DeepSeek-V2 and V3 (also Moonlight and Kimi K2, which use the V3 class)."""
    sigmoid = config.get("scoring_func") == "sigmoid" or config.get("topk_method") == "noaux_tc"
    moe = small_experts(config) | {
        "layer_interval": count(config, "moe_layer_freq", 1),
        "router_score": "sigmoid" if sigmoid else "softmax",
        "router_pre_softmax": not sigmoid and not flag(config, "norm_topk_prob"),
        "expert_bias": config.get("topk_method") == "noaux_tc",
    }
    if config.get("topk_method") != "greedy":
        moe |= router_groups(config)
    mtp = count_or_zero(config, "num_nextn_predict_layers")
    return latent(config) | {"moe": moe, "mtp_layers": mtp}


def deepseek_v32(config: Config) -> Config:
    """DeepSeek-V3.2: V3 with an indexer of tokens."""
    return _indexed(deepseek({"topk_method": "noaux_tc"} | config), config, {"index_n_heads": 64})


def glm4_moe_lite(config: Config) -> Config:
    """GLM-4.7-Flash: latent attention and experts as in DeepSeek-V3, behind one dense layer."""
    usual = {"topk_method": "noaux_tc", "v_head_dim": 256, "first_k_dense_replace": 1}
    return deepseek(usual | config)


def glm_moe_dsa(config: Config) -> Config:
    """GLM-5: latent attention with an indexer of tokens, and experts as in DeepSeek-V3."""
    values = deepseek({"topk_method": "noaux_tc", "v_head_dim": 256} | config)
    return _indexed(values, config, {"index_n_heads": 32})


def _indexed(values: Config, config: Config, usual: Config) -> Config:
    """Sparse attention by an indexer, which may choose for several layers."""
    indexer = {
        "heads": count(config, "index_n_heads", usual["index_n_heads"]),
        "head_dim": count(config, "index_head_dim", 128),
        "topk": count(config, "index_topk", 2048),
        "interval": count(config, "index_topk_freq", 1),
        "offset": max(count_or_zero(config, "index_skip_topk_offset"), 1),
    }
    return values | {"indexer": indexer}


def deepseek_v4(config: Config) -> Config:
    """DeepSeek-V4: compressed sparse attention between hyper-connections, experts in every layer.

    Three layers choose experts by a hash of the token; all are told with a router.
    """
    light, heavy = _compression(config)
    table = {
        "q_lora_rank": count(config, "q_lora_rank", 1024),
        "rope_head_dim": count(config, "qk_rope_head_dim", 64),
        "window": count(config, "sliding_window", 128),
        "light_ratio": light,
        "heavy_ratio": heavy,
        "index_heads": count(config, "index_n_heads", 64),
        "index_head_dim": count(config, "index_head_dim", 128),
        "index_topk": count(config, "index_topk", 512),
        "out_groups": count(config, "o_groups", 8),
        "out_lora_rank": count(config, "o_lora_rank", 1024),
        "residual_streams": count(config, "hc_mult", 4),
    }
    config = {"head_dim": 512, "num_key_value_heads": 1, "norm_topk_prob": True} | config
    values = llama(config | {"intermediate_size": count(config, "moe_intermediate_size")})
    values |= {"rotary_percent": 1.0, "rotary_scaling": None}
    return values | {
        "compressed_attention": table,
        "moe": small_experts(config) | {"dense_first_layers": 0},
        "mtp_layers": count_or_zero(config, "num_nextn_predict_layers"),
    }


# Compressions by the names of their layers; the classes' own rates.
LIGHT, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
COMPRESSIONS = {LIGHT: 4, HEAVY: 128}


def _compression(config: Config) -> tuple[int, int]:
    """Tokens of one summary of light and of heavy layers. ValueError where they have not half of the layers each."""
    said = config.get("compress_rates") or {}
    if not isinstance(said, dict):
        raise ValueError(f"compress_rates {shown(said)} is not an object. Correct it in the file.")
    rates = {name: count(said, name, rate) for name, rate in COMPRESSIONS.items()}
    layers = count(config, "num_hidden_layers")
    listed = config.get("compress_ratios") or config.get("layer_types") or []
    if not isinstance(listed, list):
        raise ValueError(f"the list of layers {shown(listed)} is none. Correct it in the file.")
    kinds = [str(each) for each in listed[:layers]]
    halves = [sum(kind in (name, str(rate)) for kind in kinds) for name, rate in rates.items()]
    if kinds and (len(kinds) < layers or abs(halves[0] - halves[1]) > 2 or sum(halves) < layers - 2):
        raise ValueError(
            f"{halves[0]} layers of light and {halves[1]} of heavy compression among {layers}: the model is told with "
            "about half of each. Give a file with such layers."
        )
    return rates[LIGHT], rates[HEAVY]


def gated_delta(config: Config) -> Config:
    """Qwen3-Next and Qwen3.5: gated delta nets, and gated attention with norms of Q and K every few layers."""
    step = count(config, "full_attention_interval", 4)
    every_nth(config, "full_attention", step)
    table = {
        "full_attention_interval": step,
        "num_key_heads": count(config, "linear_num_key_heads", 16),
        "num_value_heads": count(config, "linear_num_value_heads", 32),
        "key_head_dim": count(config, "linear_key_head_dim", 128),
        "value_head_dim": count(config, "linear_value_head_dim", 128),
        "conv_kernel": count(config, "linear_conv_kernel_dim", 4),
    }
    # A class without dense layers has no width for them.
    width = count(config, "intermediate_size", config.get("moe_intermediate_size"))
    values = llama({"head_dim": 256, "partial_rotary_factor": 0.25} | config | {"intermediate_size": width})
    mtp = count_or_zero(config, "mtp_num_hidden_layers")
    norms = {"qk_norm": True, "zero_centered_norm": True}
    return values | norms | {"attention_output_gate": True, "gated_delta": table, "mtp_layers": mtp}


def gated_delta_moe(config: Config) -> Config:
    return gated_delta(config) | {"moe": qwen_experts(NORMALISED | config) | shared_expert(config)}


def glm4_moe(config: Config) -> Config:
    """GLM-4.5: grouped-query attention, and experts as in DeepSeek-V3."""
    moe = small_experts(config) | {"router_score": "sigmoid", "expert_bias": True} | router_groups(config)
    # Of attention's linear layers those of Q, K and V have biases.
    values = llama(HALF_ROTARY | {"mlp_bias": flag(config, "attention_bias")} | config) | {
        "linear_bias": False
    }
    mtp = count_or_zero(config, "num_nextn_predict_layers")
    return values | {"qk_norm": flag(config, "use_qk_norm"), "moe": moe, "mtp_layers": mtp}


def gpt_oss(config: Config) -> Config:
    """GPT-OSS: windows at every other layer, attention sinks, clamped gates, biases in every linear layer."""
    every_nth(config, "full_attention", 2)
    moe = {
        "num_experts": count(config, "num_local_experts"),
        "topk": count(config, "num_experts_per_tok"),
        "expert_ffn": count(config, "intermediate_size"),
        "load_balancing": "none",
        **UNSCALED,
    }
    window = {"window": count(config, "sliding_window", 128), "full_attention_interval": 2}
    defaults: Config = {"attention_bias": True, "head_dim": 64, "rope_theta": 150_000}
    if "rope_parameters" not in config:
        yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        defaults["rope_scaling"] = yarn | {"original_max_position_embeddings": 4096}
    values = llama(defaults | config | {"mlp_bias": True})
    return values | {"activation": "quick_gelu", "attention_sink": True, "moe": moe, "sliding_window": window}


def olmoe(config: Config) -> Config:
    moe = {
        "num_experts": count(config, "num_experts", 64),
        "topk": count(config, "num_experts_per_tok", 8),
        "expert_ffn": count(config, "intermediate_size"),
        **softmax_router(config),
    }
    return olmo2(config) | {"moe": moe}


def minimax_m2(config: Config) -> Config:
    """MiniMax-M2: grouped-query attention, experts in every layer, none shared, picked by sigmoids and a bias."""
    moe = {
        "num_experts": count(config, "num_local_experts"),
        "topk": count(config, "num_experts_per_tok"),
        "expert_ffn": count(config, "intermediate_size"),
        "router_score": "sigmoid",
        "expert_bias": True,
        **UNSCALED,
    }
    values = olmo2({"head_dim": 128, "rope_theta": 5_000_000} | config)
    # Released files count the rotating dimensions.
    share = (
        {"rotary_percent": count(config, "rotary_dim") / values["head_dim"]} if "rotary_dim" in config else {}
    )
    return values | share | {"moe": moe}


def minimax_m3(config: Config) -> Config:
    """MiniMax-M3: GPT-OSS's gates, experts behind dense layers, and an indexer that picks blocks of tokens.

    Told with attention to all tokens, as Megatron-Bridge 0.6.2 trains it: its `minimax_m3_bridge.py` holds the indexer
    as frozen weights that never run, and no heads for more tokens.
    """
    expect(config, {"swiglu_alpha": 1.702, "swiglu_limit": 7.0})
    listed = isinstance(config.get("moe_layer_freq"), list)
    width = count(config, "intermediate_size", 3072)
    shared = count_or_zero({"shared_intermediate_size": 3072} | config, "shared_intermediate_size")
    moe = {
        "num_experts": count(config, "num_local_experts", 128),
        "topk": count(config, "num_experts_per_tok", 4),
        "expert_ffn": width,
        "shared_expert_ffn": shared * count_or_zero({"n_shared_experts": 1} | config, "n_shared_experts"),
        "dense_first_layers": dense_in_front(config, "moe_layer_freq", (1,))
        if listed
        else dense_first(config, 0),
        "router_score": "sigmoid",
        "router_dtype": "fp32",
        "expert_bias": True,
        "router_scaling_factor": number(config, ("routed_scaling_factor",), 2.0),
        "load_balancing": "aux_loss",
        "aux_loss_coeff": number(config, ("router_aux_loss_coef",), 0.001),
    }
    head = count(config, "head_dim", 128)
    rotary = {"rotary_percent": count(config, "rotary_dim", 64) / head}
    dense = {"intermediate_size": count(config, "dense_intermediate_size", 12288), "head_dim": head}
    values = llama({"rope_theta": 5_000_000} | config | dense | {"hidden_act": "silu"})
    own: Config = {"activation": "quick_gelu", "qk_norm": flag(config, "use_qk_norm", True), "moe": moe}
    own["zero_centered_norm"] = flag(config, "use_gemma_norm", True)
    own["left_out"] = (
        "the indexer's choice of blocks (attention is to all tokens, as Megatron-Bridge trains it)"
    )
    return values | rotary | own


def llama4(config: Config) -> Config:
    """Llama 4: chunked attention but on every fourth layer, a shared expert as wide as the others."""
    step = count(config, "interleave_moe_layer_step", 1)
    layers = count(config, "num_hidden_layers")
    listed = config.get("moe_layers")
    if listed is not None and listed != list(range(step - 1, layers, step)):
        raise ValueError(
            f"moe_layers is not every {step}th layer, as interleave_moe_layer_step says. Write the model as a TOML."
        )
    width = count(config, "intermediate_size", 8192)
    moe = {
        "num_experts": count(config, "num_local_experts"),
        "topk": count(config, "num_experts_per_tok", 1),
        "expert_ffn": width,
        "shared_expert_ffn": width,
        "dense_first_layers": step - 1,
        "layer_interval": step,
        "router_score": "sigmoid",
        **UNSCALED,
    }
    dense = count(config, "intermediate_size_mlp", 16384)
    values = llama({"head_dim": 128, "rope_theta": 500_000} | config | {"intermediate_size": dense})
    chunk = (
        0 if config.get("attention_chunk_size", 8192) is None else count(config, "attention_chunk_size", 8192)
    )
    own: Config = {"attention_chunk": chunk, "nope_layer_interval": nope_interval(config)}
    own["qk_l2_norm"] = flag(config, "use_qk_norm", True)
    # Early files have 4 in place of true.
    if config.get("attn_temperature_tuning", True):
        floor, scale = number(config, ("floor_scale",), 8192), number(config, ("attn_scale",), 0.1)
        own["attention_temperature"] = {"floor": int(floor or 1), "scale": scale}
    return values | own | {"moe": moe}
