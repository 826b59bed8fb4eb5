"""Mixtures of small experts beside shared ones of Hugging Face, relatives of DeepSeek-V3 and GLM-4.5, as in
`experts`.

References: classes of huggingface/transformers 5.24; where they leave a router or heads of multi-token prediction out,
those of Megatron-Bridge 0.6.2, models/*.
"""

from __future__ import annotations

from costmodel.huggingface.dense import ernie, exaone4, granite, hunyuan, last_windows, llama
from costmodel.huggingface.experts import (
    UNSCALED,
    deepseek,
    glm4_moe,
    olmoe,
    router_groups,
    small_experts,
)
from costmodel.huggingface.values import (
    Config,
    count,
    count_or_zero,
    dense_first,
    expect,
    flag,
    renamed,
    shown,
)

SOFTMAX_BIAS = "scores of the router by a softmax, taken as sigmoids, as Megatron-Bridge trains them"
# Megatron-Core normalises the weights of experts that sigmoids chose.
SIGMOIDS = {"norm_topk_prob": True, "scoring_func": "sigmoid", "score_function": "sigmoid"}
SIGMOIDS |= {"moe_router_enable_expert_bias": True}
# What files of other authors call DeepSeek's keys.
OTHER_NAMES = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
OTHER_NAMES |= {"use_qkv_bias": "attention_bias", "num_mtp_layers": "num_nextn_predict_layers"}


def _sigmoid_experts(config: Config, dense: int) -> Config:
    """Experts chosen by sigmoids and a bias, beside shared ones, behind `dense` layers or those listed."""
    expect(config, SIGMOIDS)
    own = {"router_score": "sigmoid", "expert_bias": True, "dense_first_layers": dense_first(config, dense)}
    return small_experts(config) | router_groups(config) | own


def hy_v3(config: Config) -> Config:
    """Hy3: grouped-query attention with norms of Q and K, and experts as in DeepSeek-V3."""
    on = ("moe_router_use_sigmoid", "route_norm", "qk_norm")
    expect(config, dict.fromkeys(on, True) | {"attention_bias": False, "mlp_bias": False})
    names = {"expert_hidden_dim": "moe_intermediate_size", "router_scaling_factor": "routed_scaling_factor"}
    config = {"num_shared_experts": 1, "rope_theta": 11_158_840} | renamed(config, names)
    moe = _sigmoid_experts(renamed(config, OTHER_NAMES), 1)
    mtp = count_or_zero(config, "num_nextn_predict_layers")
    return llama(config) | {"qk_norm": True, "moe": moe, "mtp_layers": mtp}


def bailing_moe_v2(config: Config) -> Config:
    """Ling and Ring 2.0: grouped-query attention with norms of Q and K, and experts in groups as in DeepSeek-V3."""
    usual = {"num_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 1.0}
    config = usual | {"rope_theta": 600_000} | config
    expect(config, {"use_bias": False, "use_sliding_window": False})
    moe = _sigmoid_experts(renamed(config, OTHER_NAMES), 1)
    expect(config, {"moe_shared_expert_intermediate_size": moe["shared_expert_ffn"]})
    return llama(config) | {
        "qkv_bias": flag(config, "use_qkv_bias"),
        "qk_norm": flag(config, "use_qk_norm", True),
        "moe": moe,
        "mtp_layers": count_or_zero(config, "num_nextn_predict_layers"),
    }


def exaone_moe(config: Config) -> Config:
    """K-EXAONE: attention of EXAONE 4.0 behind its norms, and experts as in DeepSeek-V3; MTP heads without experts."""
    config = {"num_shared_experts": 1, "routed_scaling_factor": 2.5} | config
    moe = _sigmoid_experts(renamed(config, OTHER_NAMES), 1)
    mtp = count_or_zero(config, "num_nextn_predict_layers")
    if mtp > 1:
        expect(config, {"mtp_share_layers": False})
    # Source of the heads' layer: Megatron-Bridge 0.6.2, exaone_moe_provider.py.
    heads = {"mtp_layers": mtp, "mtp_pattern": "*-" if mtp else ""}
    return exaone4(config) | {"left_out": "", "moe": moe} | heads


def ernie_moe(config: Config) -> Config:
    """ERNIE 4.5 with experts. Heads of multi-token prediction in its files have no weights; Bridge makes none."""
    layers = count(config, "num_hidden_layers")
    last = config.get("moe_layer_end_index")
    expect(config, {"moe_layer_interval": 1, "use_bias": False})
    if last not in (None, -1):
        expect(config, {"moe_layer_end_index": layers - 1})
    width = _same(config, "moe_intermediate_size", None)
    first = (
        0 if config.get("moe_layer_start_index") in (0, [0]) else _same(config, "moe_layer_start_index", 1)
    )
    moe = {
        "num_experts": _same(config, "moe_num_experts", 64),
        "topk": count(config, "moe_k", 6),
        "expert_ffn": width,
        "shared_expert_ffn": width
        * count_or_zero({"moe_num_shared_experts": 2} | config, "moe_num_shared_experts"),
        "dense_first_layers": dense_first(config, first),
        "router_score": "sigmoid",
        "expert_bias": True,
        **UNSCALED,
    }
    return ernie(config) | {"left_out": SOFTMAX_BIAS, "moe": moe}


def sarvam_moe(config: Config) -> Config:
    """Sarvam-30B: GLM-4.5 with positions of the whole head."""
    expect(config, SIGMOIDS)
    usual: Config = {"partial_rotary_factor": 1.0, "use_qk_norm": True, "rope_theta": 8_000_000}
    usual |= {"head_dim": 64, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5}
    return glm4_moe(usual | renamed(config, OTHER_NAMES))


def sarvam_mla(config: Config) -> Config:
    """Sarvam-105B: DeepSeek-V3 under names of its own, queries without a latent."""
    expect(config, SIGMOIDS)
    usual = {"n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5}
    config = usual | renamed(config, OTHER_NAMES)
    scaling = config.get("rope_scaling")
    if isinstance(scaling, dict) and "deepseek_yarn" in (scaling.get("type"), scaling.get("rope_type")):
        config["rope_scaling"] = scaling | {"rope_type": "yarn"}
    return deepseek(config | {"topk_method": "noaux_tc"})


def dots1(config: Config) -> Config:
    """dots.llm1: attention of Qwen3, and experts as in DeepSeek-V3."""
    expect({"norm_topk_prob": config.get("norm_topk_prob") or False}, {"norm_topk_prob": True})
    moe = _sigmoid_experts({"routed_scaling_factor": 1.0} | config, 0)
    layers = count(config, "num_hidden_layers")
    window = {} if config.get("sliding_window", 4096) is None else last_windows(config, layers)
    return llama(config) | window | {"qk_norm": True, "moe": moe}


def solar_open(config: Config) -> Config:
    """Solar Open: GLM-4.5 with experts in every layer, positions of the whole head and no norms of Q and K."""
    expect(config, SIGMOIDS | {"use_qk_norm": False, "first_k_dense_replace": 0})
    usual: Config = {"partial_rotary_factor": 1.0, "rope_theta": 1_000_000, "head_dim": 128}
    usual |= {"n_shared_experts": 1, "routed_scaling_factor": 1.0}
    # A class without dense layers has no width for them.
    usual["intermediate_size"] = count(config, "moe_intermediate_size")
    return glm4_moe(usual | config)


def hunyuan_moe(config: Config) -> Config:
    """Hunyuan V1 with experts in every layer, one of them shared, all as wide as intermediate_size."""
    width = count(config, "intermediate_size")
    expect(config, {"use_mixed_mlp_moe": True, "moe_layer_num_skipped": 0, "norm_topk_prob": True})
    expect(config, {"group_limited_greedy": False, "routed_scaling_factor": 1.0})
    for key, value in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        expect({key: _same(config, key, value)}, {key: value})
    moe = {
        "num_experts": _same(config, "num_experts", 1),
        "topk": _same(config, "moe_topk", 1),
        "expert_ffn": width,
        "shared_expert_ffn": width,
        **UNSCALED,
    }
    return hunyuan(config) | {"moe": moe}


def granite_moe(config: Config) -> Config:
    """Granite 3 with experts; a softmax over the chosen ones."""
    moe = {
        "num_experts": count(config, "num_local_experts", 8),
        "topk": count(config, "num_experts_per_tok", 2),
        "expert_ffn": count(config, "intermediate_size"),
        "shared_expert_ffn": count_or_zero(config, "shared_intermediate_size"),
        **UNSCALED,
    }
    return granite(config) | {"moe": moe}


def flex_olmo(config: Config) -> Config:
    """FlexOlmo: attention and norms of OLMo 2, experts of OLMoE."""
    return olmoe({"num_experts": 7, "num_experts_per_tok": 5, "rope_theta": 500_000} | config)


def _same(config: Config, key: str, default: int | None) -> int:
    """A count that a file may give a layer or a kind of token each: the one that all are."""
    value = config.get(key)
    if isinstance(value, list):
        if not value or any(each != value[0] for each in value):
            raise ValueError(
                f"{key} {shown(value)} is no list of one number: layers that differ in it are not supported. "
                "Write the model as a TOML."
            )
        return count({key: value[0]}, key)
    return count(config, key, default)
