"""Hugging Face configs that are broken, hostile or of no model we have: each is refused in one line."""

from __future__ import annotations

import json

import pytest
from hf_configs import (
    DEEPSEEK_V3,
    GPT2,
    LLAMA3_8B,
    QWEN2_57B,
    QWEN25_7B,
    QWEN35_35B,
    write,
)
from hf_configs_newer import (
    DEEPSEEK_V4_FLASH,
    LLAMA4_SCOUT,
    MINIMAX_M3,
    NEMOTRON_H_8B,
    SMOLLM3_3B,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.huggingface import ARCHITECTURES, read_hf_config
from costmodel.model_registry import load_model
from costmodel.parameter_counts import count_parameters

UNHURRIED = settings(deadline=None)


def test_windows_of_the_last_layers_alone_are_refused(tmp_path):
    windows = QWEN25_7B | {"use_sliding_window": True, "sliding_window": 4096}
    assert read_hf_config(write(tmp_path, windows | {"max_window_layers": 28})).sliding_window is None
    assert read_hf_config(write(tmp_path, windows | {"max_window_layers": 0})).sliding_window.window == 4096
    with pytest.raises(ValueError, match="max_window_layers 21 with use_sliding_window"):
        read_hf_config(write(tmp_path, windows | {"max_window_layers": 21}))


@pytest.mark.parametrize(
    ("config", "change", "says"),
    [
        (
            DEEPSEEK_V4_FLASH,
            {"compress_ratios": [4] * 43},
            "43 layers of light and 0 of heavy compression among 43",
        ),
        (DEEPSEEK_V4_FLASH, {"compress_ratios": [0, 0, 4, 128]}, "1 layers of light and 1 of heavy"),
        (DEEPSEEK_V4_FLASH, {"compress_rates": [4, 128]}, "compress_rates [4, 128] is not an object"),
        (NEMOTRON_H_8B, {"hybrid_override_pattern": None}, "hybrid_override_pattern is missing"),
        (NEMOTRON_H_8B, {"hybrid_override_pattern": "MXM"}, "is no text of the letters M"),
        (
            NEMOTRON_H_8B,
            {"hybrid_override_pattern": "M-M*"},
            "is not the 4 letters of hybrid_override_pattern",
        ),
        (
            NEMOTRON_H_8B,
            {"layers_block_type": ["mamba", "conv"]},
            "layers_block_type ['mamba', 'conv'] is no",
        ),
        (SMOLLM3_3B, {"no_rope_layers": [0] * 36}, "no_rope_layers is no list with 0 at every 4th layer"),
        (
            LLAMA4_SCOUT | LLAMA4_SCOUT["text_config"] | {"architectures": ["Llama4ForCausalLM"]},
            {"moe_layers": [1, 2]},
            "moe_layers is not every 1th layer",
        ),
        (
            MINIMAX_M3["text_config"] | {"architectures": ["MiniMaxM3ForCausalLM"]},
            {"moe_layer_freq": [1] * 59 + [0]},
            "moe_layer_freq is no list of a layer each",
        ),
        (
            MINIMAX_M3["text_config"] | {"architectures": ["MiniMaxM3ForCausalLM"]},
            {"moe_layer_freq": [0] * 60},
            "moe_layer_freq is no list of a layer each",
        ),
        (
            MINIMAX_M3["text_config"] | {"architectures": ["MiniMaxM3ForCausalLM"]},
            {"swiglu_limit": 10.0},
            "swiglu_limit 10.0 is not supported",
        ),
    ],
)
def test_what_a_newer_file_says_wrong_is_named(tmp_path, config, change, says):
    with pytest.raises(ValueError) as error:
        read_hf_config(write(tmp_path, config | change))
    assert says in str(error.value)


def test_layers_in_another_order_are_refused(tmp_path):
    text = QWEN35_35B["text_config"] | {"layer_types": ["full_attention"] * 40}
    with pytest.raises(ValueError, match="layer_types is no list with full_attention at every 4th layer"):
        read_hf_config(write(tmp_path, QWEN35_35B | {"text_config": text}))
    with pytest.raises(ValueError, match="text_config is missing"):
        read_hf_config(write(tmp_path, QWEN35_35B | {"text_config": None}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["BertModel"]}, "classes are, such as LlamaForCausalLM, Qwen3MoeForCausalLM"),
        ({"architectures": ["LlamaForCausalLm"]}, "Did you mean LlamaForCausalLM?"),
        ({"architectures": ["Qwen3MoEForCausalLM"]}, "Did you mean Qwen3MoeForCausalLM?"),
        ({"architectures": ["FooForCausalLM"]}, "docs/extending.md lists them"),
        ({"architectures": None}, "architectures None is not supported"),
        ({"architectures": []}, "architectures [] is not supported"),
        ({"architectures": [["LlamaForCausalLM"]]}, "is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "4096"}, "hidden_size '4096' is not a whole number"),
        ({"hidden_size": 4096.0}, "hidden_size 4096.0"),
        ({"hidden_size": float("nan")}, "hidden_size nan"),
        ({"hidden_size": float("inf")}, "hidden_size inf"),
        ({"hidden_size": -4096}, "hidden_size -4096"),
        ({"hidden_size": True}, "hidden_size True"),
        ({"hidden_size": [4096]}, "hidden_size [4096]"),
        ({"num_attention_heads": 0}, "num_attention_heads 0 is not a whole number from 1"),
        ({"num_attention_heads": 33}, "hidden_size 4096 is not a multiple of num_attention_heads 33"),
        ({"num_key_value_heads": 5}, "not a multiple of num_kv_heads 5"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000 is not a whole number from 1 to 10000"),
        ({"vocab_size": 10**30}, "vocab_size 1000000000000000000000000000000 is not"),
        ({"hidden_act": "sigmoid"}, "hidden_act 'sigmoid' is not known"),
        ({"hidden_act": {}}, None),
        ({"hidden_act": ["silu"]}, "hidden_act ['silu'] is not known"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings 'no' is not true or false"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps '1e-5' is not a number from 0 on"),
        ({"rope_theta": float("nan")}, "rope_theta nan is not a number from 0 on"),
        (
            {"partial_rotary_factor": 2},
            "rotary_percent 2 is not a number from 0 to 1. Try rotary_percent = 0.5",
        ),
        ({"mlp_bias": True}, "attention_bias false with mlp_bias true is not supported"),
    ],
)
def test_hostile_values(tmp_path, change, says):
    path = write(tmp_path, LLAMA3_8B | change)
    if says is None:  # an empty value falls back on the default of the class
        assert read_hf_config(path).activation == "silu"
        return
    with pytest.raises(ValueError) as error:
        read_hf_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ("{}", "architectures None is not supported"),
    ],
)
def test_hostile_files(tmp_path, content, says):
    with pytest.raises(ValueError) as error:
        load_model(str(write(tmp_path, content)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_binary_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        load_model(str(tmp_path))


values = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=5) | st.just([1])


@UNHURRIED
@given(
    architecture=st.sampled_from(sorted(ARCHITECTURES)),
    change=st.dictionaries(st.sampled_from(sorted({**DEEPSEEK_V3, **QWEN2_57B, **GPT2})), values, max_size=5),
)
def test_any_config_is_a_model_or_a_value_error(tmp_path_factory, architecture, change):
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(json.dumps(DEEPSEEK_V3 | QWEN2_57B | change | {"architectures": [architecture]}))
    message = ""
    try:
        assert count_parameters(read_hf_config(path)).total > 0
    except ValueError as error:
        message = str(error)
    assert not message or message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("scaling", "says"), [("yarn", "not an object"), ({"rope_type": "new"}, "is not known. Known: default")]
)
def test_scaling_that_cannot_be_read_is_one_line(tmp_path, scaling, says):
    with pytest.raises(ValueError, match=says):
        read_hf_config(write(tmp_path, LLAMA3_8B | {"rope_scaling": scaling}))
