"""Hugging Face configs: rotary positions and their scaling, norms and what a model is trained with beside sizes."""

from __future__ import annotations

import pytest
from hf_configs import (
    DEEPSEEK_V3,
    GEMMA_2B,
    GLM45_AIR,
    GPT_OSS_20B,
    LLAMA3_8B,
    MIXTRAL_8X7B,
    MOONLIGHT,
    NEOX_20B,
    QWEN2_57B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN3_NEXT,
    QWEN25_7B,
    QWEN35_27B,
    write,
)
from hf_configs_newer import (
    GEMMA2_27B,
    GEMMA3_27B,
    LLAMA4_SCOUT,
    MINIMAX_M2,
    NEMOTRON4_15B,
    NEMOTRON_H_8B,
    QWEN3_VL_235B,
    QWEN25_VL_7B,
    SMOLLM3_3B,
)

from costmodel.huggingface import read_hf_config
from costmodel.model_registry import load_model
from costmodel.model_tables import AttentionTemperature, RotaryScaling


# Published files that say what our files hold; Nemotron 4's has no base, its class has ours.
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA3_8B, "llama3-8b"),
        (QWEN25_7B, "qwen2.5-7b"),
        (QWEN3_8B, "qwen3-8b"),
        (QWEN3_30B, "qwen3-30b-a3b"),
        (MIXTRAL_8X7B, "mixtral-8x7b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (MOONLIGHT, "moonlight-16b-a3b"),
        (QWEN3_NEXT, "qwen3-next-80b-a3b"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (LLAMA4_SCOUT, "llama4-scout"),
        (NEMOTRON4_15B, "nemotron4-15b"),
        (NEMOTRON_H_8B, "nemotronh-8b"),
    ],
)
def test_norms_positions_and_router_are_those_of_our_file(tmp_path, config, name):
    theirs, ours = read_hf_config(write(tmp_path, config)), load_model(name)
    for fact in ("norm_epsilon", "zero_centered_norm", "rotary_base", "rotary_percent"):
        assert getattr(theirs, fact) == getattr(ours, fact), fact
    for fact in ("router_score", "router_pre_softmax", "router_scaling_factor") if ours.moe else ():
        assert getattr(theirs.moe, fact) == getattr(ours.moe, fact), fact


def test_weights_of_the_chosen_experts_that_do_not_sum_to_one(tmp_path):
    assert read_hf_config(write(tmp_path, QWEN2_57B)).moe.router_pre_softmax
    assert load_model("qwen2-57b-a14b").moe.router_pre_softmax
    assert not read_hf_config(write(tmp_path, QWEN2_57B | {"norm_topk_prob": True})).moe.router_pre_softmax
    greedy = {"scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": False}
    moe = read_hf_config(write(tmp_path, DEEPSEEK_V3 | greedy | {"routed_scaling_factor": 16.0})).moe
    assert (moe.router_score, moe.router_pre_softmax, moe.router_scaling_factor) == ("softmax", True, 16.0)
    assert not read_hf_config(
        write(tmp_path, QWEN3_VL_235B)
    ).moe.router_pre_softmax  # its class has no choice


@pytest.mark.parametrize(
    ("config", "change", "base", "share"),
    [
        (LLAMA3_8B, {}, 500_000, 1.0),
        (LLAMA3_8B, {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, 1_000_000, 0.5),
        (LLAMA3_8B, {"rope_theta": 10000.5}, None, 1.0),
        (LLAMA3_8B, {"rope_theta": None}, 10_000, 1.0),
        (LLAMA3_8B, {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, None, 1.0),
        (GEMMA3_27B, {}, 1_000_000, 1.0),
        (NEOX_20B, {}, 10_000, 0.25),
        (NEOX_20B, {"rotary_pct": 1.0}, 10_000, 1.0),
        (GLM45_AIR, {}, 10_000, 0.5),
        (MINIMAX_M2, {"rotary_dim": 64}, 5_000_000, 0.5),
        (NEMOTRON_H_8B, {}, None, 1.0),
        # Left out: defaults of the classes in transformers 5, which are not Llama's.
        (SMOLLM3_3B, {}, 2_000_000, 1.0),
        (SMOLLM3_3B, {"rope_theta": 5e6}, 5_000_000, 1.0),
        (QWEN25_VL_7B, {}, 1_000_000, 1.0),
        (QWEN3_VL_235B, {}, 500_000, 1.0),
        (QWEN3_VL_235B, {"architectures": ["Qwen3VLForConditionalGeneration"]}, 500_000, 1.0),
    ],
)
def test_rotary_positions(tmp_path, config, change, base, share):
    spec = read_hf_config(write(tmp_path, config | change))
    assert (spec.rotary_base, spec.rotary_percent) == (base, share)


def test_norms_around_zero(tmp_path):
    zero = [
        read_hf_config(write(tmp_path, each)) for each in (GEMMA_2B, GEMMA3_27B, QWEN35_27B, NEMOTRON4_15B)
    ]
    assert [spec.zero_centered_norm for spec in zero] == [True] * 4
    assert read_hf_config(write(tmp_path, LLAMA3_8B | {"rms_norm_eps": None})).norm_epsilon is None


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        (LLAMA3_8B, {}, {"kind": "none"}),
        (LLAMA3_8B, {"rope_scaling": None}, {"kind": "none"}),
        (LLAMA3_8B, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"kind": "none"}),
        (QWEN25_VL_7B, {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, {"kind": "none"}),
        (
            LLAMA3_8B,
            {
                "rope_scaling": {
                    "factor": 8.0,
                    "high_freq_factor": 4.0,
                    "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "llama3",
                }
            },
            {"kind": "llama3", "factor": 8.0, "original_positions": 8192, "low_freq_factor": 1.0}
            | {"high_freq_factor": 4.0},
        ),
        (
            DEEPSEEK_V3,
            {
                "rope_scaling": {
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "factor": 40,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 4096,
                    "type": "yarn",
                }
            },
            {"kind": "yarn", "factor": 40, "original_positions": 4096, "beta_fast": 32, "beta_slow": 1}
            | {"mscale": 1.0, "mscale_all_dim": 1.0},
        ),
        (
            GPT_OSS_20B,
            {},
            {"kind": "yarn", "factor": 32.0, "original_positions": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
            | {"round_to_int": False},
        ),
        (
            LLAMA3_8B,
            {"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
            {"kind": "linear", "factor": 4.0, "original_positions": 8192},
        ),
    ],
)
def test_rotary_scaling(tmp_path, config, change, said):
    found = read_hf_config(write(tmp_path, config | change)).rotary_scaling
    assert found == RotaryScaling(**said)


def test_published_files_and_our_models_say_the_same_of_scaling(tmp_path):
    assert (
        read_hf_config(write(tmp_path, GPT_OSS_20B)).rotary_scaling
        == load_model("gpt-oss-20b").rotary_scaling
    )


def test_llama4_and_gemma_say_what_else_they_are_trained_with(tmp_path):
    scout = read_hf_config(write(tmp_path, LLAMA4_SCOUT))
    assert (scout.qk_l2_norm, scout.attention_chunk, scout.nope_layer_interval) == (True, 8192, 4)
    assert scout.attention_temperature == AttentionTemperature(floor=8192, scale=0.1)
    cold = {
        "text_config": LLAMA4_SCOUT["text_config"] | {"attn_temperature_tuning": False, "use_qk_norm": False}
    }
    cool = read_hf_config(write(tmp_path, LLAMA4_SCOUT | cold))
    assert (cool.qk_l2_norm, cool.attention_temperature) == (False, None)
    second = read_hf_config(write(tmp_path, GEMMA2_27B | {"query_pre_attn_scalar": 144}))
    assert second.softmax_scale == pytest.approx(1 / 12)
    assert (second.score_cap, second.logit_cap) == (50.0, 30.0)
    assert second.embedding_scale == pytest.approx(4608**0.5)
    third = read_hf_config(write(tmp_path, GEMMA3_27B))
    assert (third.rotary_base, third.rotary_local_base, third.score_cap) == (1_000_000, 10_000, None)
