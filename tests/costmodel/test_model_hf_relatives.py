"""Hugging Face configs of relatives of Llama, Qwen and DeepSeek-V3: counts of their classes, and what keys mean."""

from __future__ import annotations

import pytest
from hf_configs import LLAMA3_8B, write
from hf_configs_relatives import (
    ARCEE,
    DOTS1,
    ERNIE_03B,
    ERNIE_21B,
    EXAONE3,
    EXAONE4,
    EXAONE_MOE,
    FALCON,
    FLEX_OLMO,
    GPT_BIGCODE,
    GRANITE,
    GRANITE_MOE,
    HUNYUAN,
    HUNYUAN_MOE,
    HY3,
    INTERNLM3,
    IQUEST_CODER,
    JAIS2,
    LING_MINI,
    MIMO_7B,
    MINISTRAL3,
    OPT,
    SARVAM_30B,
    SARVAM_105B,
    SEED_OSS,
    SOLAR_OPEN,
    STABLELM,
    YOUTU,
)

from costmodel.huggingface import from_hf_config, read_hf_config
from costmodel.model_registry import load_model
from costmodel.parameter_counts import count_parameters


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (ERNIE_03B, 360_748_032),
        (ERNIE_03B | {"use_bias": True}, 360_941_568),
        (ERNIE_21B, 21_825_437_888),
        (EXAONE3, 7_818_448_896),
        (EXAONE4, 8_623_763_456),
        (EXAONE_MOE, 28_550_639_616),
        (HY3, 295_033_528_320),
        (SARVAM_30B, 32_152_648_064),
        (SARVAM_105B, 106_031_763_456),
        (LING_MINI, 16_255_638_528),
        (SEED_OSS, 28_921_040_896),
        (ARCEE, 4_022_766_080),
        (JAIS2, 8_090_401_280),
        (INTERNLM3, 8_805_838_848),
        (IQUEST_CODER, 39_794_283_520),
        (GRANITE, 6_738_415_616),
        (GRANITE_MOE, 37_441_769_472),
        (HUNYUAN, 8_859_684_864),
        (HUNYUAN_MOE, 78_118_129_664),
        (DOTS1, 161_206_276_032),
        (SOLAR_OPEN, 102_651_793_408),
        (MINISTRAL3, 8_489_553_920),
        (GPT_BIGCODE, 111_446_784),
        (GPT_BIGCODE | {"multi_query": False}, 124_439_808),
        (OPT, 125_239_296),
        (STABLELM, 2_480_993_280),
        (FALCON, 41_303_293_952),
        (YOUTU, 1_961_560_064),
        # Its norms of all heads at once are taken a head at a time.
        (FLEX_OLMO, 33_270_665_216 - 32 * (32 + 32 - 2) * 128),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_totals_of_their_classes(config, total):
    """As transformers 5.24 builds each without memory, and Ling as Megatron-Bridge 0.6.2's file does.

    But for ERNIE's, their classes keep the bias of a router as a buffer, which is no parameter of theirs.
    """
    spec = from_hf_config(config, "relative")
    moe = spec.moe
    buffers = 0
    if moe is not None and moe.expert_bias and config is not ERNIE_21B:
        buffers = moe.num_experts * spec.layer_counts()["attention + experts"]
    assert count_parameters(spec).total == total + buffers


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        # A layer of Qwen2's class, 177,223,680 parameters, a projection of 2 x 4096 to 4096 and three norms.
        (MIMO_7B, 210_790_400),
        # 17,083,499,776 parameters and 5,120 of buffers with one head, as Bridge's modeling file has them.
        (LING_MINI | {"num_nextn_predict_layers": 1}, 17_083_504_896 - 16_255_643_392),
        # Attention, norms and an MLP of 3 x 4096 x 16384, without experts.
        (EXAONE_MOE | {"num_nextn_predict_layers": 1}, 302_010_624),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_heads_of_multi_token_prediction(config, heads):
    assert count_parameters(from_hf_config(config, "relative")).mtp == heads


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("mimo-7b", MIMO_7B),
        ("ernie4.5-0.3b", ERNIE_03B),
        ("ernie4.5-21b-a3b", ERNIE_21B),
        ("exaone3-7.8b", EXAONE3),
        ("hy3-preview", HY3),
        ("ling-mini-2.0", LING_MINI),
        ("sarvam-30b", SARVAM_30B),
        ("sarvam-105b", SARVAM_105B),
    ],
)
def test_our_file_is_the_same_model(name, config):
    ours, theirs = load_model(name), from_hf_config(config, name)
    assert count_parameters(ours) == count_parameters(theirs)
    assert (ours.rotary_base, ours.mtp_layers, ours.left_out) == (
        theirs.rotary_base,
        theirs.mtp_layers,
        theirs.left_out,
    )
    if ours.moe is not None:
        picks = ("topk", "router_score", "expert_bias", "router_groups", "router_group_topk")
        assert all(getattr(ours.moe, pick) == getattr(theirs.moe, pick) for pick in picks)


def test_windows_of_exaone_are_where_positions_are():
    """Every fourth layer sees everything and rotates nothing; without a window all do both."""
    for pattern in ("LLLG", 4):
        spec = from_hf_config(EXAONE4 | {"sliding_window_pattern": pattern}, "exaone")
        assert spec.sliding_window.window == 4096
        assert spec.sliding_window.full_attention_interval == spec.nope_layer_interval == 4
    assert "norms" in spec.left_out
    whole = from_hf_config(EXAONE4 | {"sliding_window": None}, "exaone")
    assert (whole.sliding_window, whole.nope_layer_interval) == (None, 0)


def test_both_spellings_of_exaone_with_experts():
    other = EXAONE_MOE | {"architectures": ["ExaoneMoeForCausalLM"], "is_moe_layer": [False] + [True] * 31}
    assert count_parameters(from_hf_config(other, "k")) == count_parameters(from_hf_config(EXAONE_MOE, "k"))
    # Norms stand in front here.
    assert from_hf_config(other, "k").left_out == ""


def test_factors_of_granite():
    spec = from_hf_config(GRANITE, "granite")
    assert (spec.embedding_scale, spec.softmax_scale) == (12.0, 0.0078125)
    assert spec.left_out == "factors of residuals and logits"
    plain = {"residual_multiplier": 1.0, "logits_scaling": 1, "attention_multiplier": 128**-0.5}
    spec = from_hf_config(GRANITE | plain, "granite")
    assert (spec.left_out, spec.softmax_scale) == ("", None)


def test_a_fixed_alpha_stretches_the_base_of_positions():
    """Hunyuan's 10,000 by 1000^(128/126) is the 11,158,840 that HYV3Config has by default."""
    stretched = from_hf_config(HUNYUAN, "hunyuan")
    assert stretched.rotary_base == from_hf_config(HY3, "hy3").rotary_base == 11_158_840
    assert stretched.rotary_scaling.kind == "none"
    # Without an alpha it is the usual kind, which a longer sequence stretches.
    dynamic = {"rope_scaling": {"factor": 4.0, "type": "dynamic"}}
    assert from_hf_config(HUNYUAN | dynamic, "hunyuan").rotary_scaling.kind == "dynamic"


def test_positions_of_sarvam():
    spec = from_hf_config(SARVAM_105B, "sarvam")
    assert (spec.rotary_scaling.kind, spec.rotary_scaling.factor) == ("yarn", 40)
    assert spec.mla.q_lora_rank is None
    assert from_hf_config(SARVAM_30B, "sarvam").rotary_percent == 1.0


def test_biases():
    """Of Q, K and V alone, of every linear layer, or of none."""
    said = {"attention_out_bias": True, "mlp_bias": True}
    configs = [MIMO_7B, SEED_OSS, SEED_OSS | said, JAIS2, LING_MINI | {"use_qkv_bias": True}, ARCEE]
    specs = [from_hf_config(config, "relative") for config in configs]
    assert [spec.qkv_bias for spec in specs] == [True, True, True, True, True, False]
    assert [spec.linear_bias for spec in specs] == [False, False, True, True, False, False]


def test_kinds_of_layers():
    """Ungated MLPs, LayerNorm, latent attention without experts, and what is left out of each is said."""
    opt, falcon, youtu = (from_hf_config(config, "relative") for config in (OPT, FALCON, YOUTU))
    assert (opt.activation, opt.gated, opt.learned_positions, opt.left_out) == ("relu", False, 2050, "")
    assert (falcon.norm, falcon.gated, falcon.left_out) == (
        "LayerNorm",
        False,
        "attention and MLP side by side",
    )
    assert (youtu.family, youtu.mla.q_lora_rank) == ("mla", 1536)
    assert from_hf_config(STABLELM, "relative").rotary_percent == 0.25
    assert "queries grow" in from_hf_config(MINISTRAL3, "relative").left_out


def test_windows_of_dots_are_of_all_layers_or_none():
    assert from_hf_config(DOTS1, "dots").sliding_window is None
    assert from_hf_config(DOTS1 | {"max_window_layers": 0}, "dots").sliding_window.window == 4096
    with pytest.raises(ValueError, match="windows on the last layers alone"):
        from_hf_config(DOTS1 | {"max_window_layers": 31}, "dots")


@pytest.mark.parametrize(
    ("config", "change", "says"),
    [
        (MIMO_7B, {"attention_bias": False}, "attention_bias False is not supported"),
        (EXAONE4, {"sliding_window_pattern": "LGLG"}, "sliding_window_pattern 'LGLG' is no text of L"),
        (EXAONE4, {"layer_types": ["sliding_attention"] * 32}, "layer_types is no list with full_attention"),
        (EXAONE_MOE, {"num_nextn_predict_layers": 2, "mtp_share_layers": True}, "mtp_share_layers True"),
        (EXAONE_MOE, {"is_moe_layer": [True, False] * 16}, "is_moe_layer is no list of a layer each"),
        (EXAONE_MOE, {"scoring_func": "softmax"}, 'told with "sigmoid"'),
        (HY3, {"mlp_layer_types": ["sparse"] * 79}, "mlp_layer_types is no list of a layer each"),
        (HY3, {"mlp_layer_types": ["dense"] * 80}, "mlp_layer_types is no list of a layer each"),
        (
            HY3,
            {"qk_norm": False},
            "qk_norm False is not supported: the layers of this class are told with true",
        ),
        (LING_MINI, {"use_bias": True}, "use_bias True is not supported"),
        (LING_MINI, {"moe_shared_expert_intermediate_size": 1024}, "intermediate_size 1024 is not supported"),
        (ERNIE_21B, {"moe_layer_interval": 2}, "moe_layer_interval 2 is not supported"),
        (ERNIE_21B, {"moe_layer_end_index": 20}, "moe_layer_end_index 20 is not supported"),
        (ERNIE_21B, {"moe_num_experts": [64, 32]}, "moe_num_experts [64, 32] is no list of one number"),
        (ERNIE_21B, {"use_bias": True}, "use_bias True is not supported"),
        (HUNYUAN, {"use_cla": True}, "use_cla True is not supported"),
        (HUNYUAN, {"rope_scaling": {"alpha": -1}}, "alpha -1 is not a number from 0 on"),
        (HUNYUAN_MOE, {"moe_topk": [1, 2] * 16}, "moe_topk [1, 2, 1, 2"),
        (HUNYUAN_MOE, {"moe_intermediate_size": 3072}, "moe_intermediate_size 3072 is not supported"),
        (DOTS1, {"norm_topk_prob": None}, "norm_topk_prob False is not supported"),
        (SOLAR_OPEN, {"first_k_dense_replace": 1}, "first_k_dense_replace 1 is not supported"),
        (SEED_OSS, {"attention_out_bias": True}, "attention_out_bias true with mlp_bias false"),
        (
            IQUEST_CODER,
            {"clip_qkv": 8},
            "clip_qkv 8 is not supported: the layers of this class are told without",
        ),
        (OPT, {"word_embed_proj_dim": 512}, "word_embed_proj_dim 512 is not supported"),
        (OPT, {"do_layer_norm_before": False}, "do_layer_norm_before False is not supported"),
        (STABLELM, {"use_parallel_residual": True}, "use_parallel_residual True is not supported"),
        (FALCON, {"new_decoder_architecture": None}, "new_decoder_architecture"),
        (FALCON, {"alibi": True}, "alibi True is not supported"),
        (JAIS2, {"mlp_bias": False}, "attention_bias true with mlp_bias false"),
        (SARVAM_30B, {"norm_topk_prob": False}, "norm_topk_prob False is not supported"),
    ],
)
def test_keys_that_change_what_is_counted_are_refused(config, change, says):
    with pytest.raises(ValueError) as error:
        from_hf_config(config | change, "relative")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("DeciLMForCausalLM", "its layers differ"),
        ("CohereForCausalLM", "side by side behind one norm"),
        ("ApertusForCausalLM", "xIELU"),
        ("OlmoForCausalLM", "norms have no weights"),
    ],
)
def test_a_class_that_layers_cannot_tell_is_refused_with_the_reason(architecture, why):
    with pytest.raises(ValueError, match=f"{architecture} is not supported: .*{why}.*A model TOML can"):
        from_hf_config(LLAMA3_8B | {"architectures": [architecture]}, "other")


def test_experts_from_the_first_layer_on():
    assert from_hf_config(ERNIE_21B | {"moe_layer_start_index": [0]}, "ernie").moe.dense_first_layers == 0
    assert from_hf_config(LING_MINI | {"first_k_dense_replace": 0}, "ling").moe.dense_first_layers == 0


def test_their_types_alone(tmp_path):
    named = {key: value for key, value in HY3.items() if key != "architectures"}
    spec = read_hf_config(write(tmp_path, named | {"model_type": "hy_v3"}))
    assert spec.source == "config.json (HYV3ForCausalLM)"
