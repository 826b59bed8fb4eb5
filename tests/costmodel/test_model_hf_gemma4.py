"""Hugging Face configs of Gemma 4, read and refused."""

from __future__ import annotations

import dataclasses

import pytest
from hf_configs import write

from costmodel.huggingface import read_hf_config
from costmodel.model_registry import load_model
from costmodel.parameter_counts import count_parameters

# As aiconfigurator-core 0.12.0, model_configs, has the published files; keys that change no size are left out.
DENSE = {
    "attention_bias": False,
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 5376,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 21504,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "model_type": "gemma4_text",
    "num_attention_heads": 32,
    "num_experts": None,
    "num_global_key_value_heads": 4,
    "num_hidden_layers": 60,
    "num_key_value_heads": 16,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
}
SPARSE = DENSE | {
    "enable_moe_block": True,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "top_k_experts": 8,
}
CAUSAL = {"architectures": ["Gemma4ForCausalLM"]}
# What a file has of a model, and its name and sources say otherwise.
TOLD_APART = {"name", "source", "left_out", "sliding_window", "embedding_scale"}


def read(tmp_path, config):
    return read_hf_config(write(tmp_path, config))


@pytest.mark.parametrize(("name", "text"), [("gemma4-31b", DENSE), ("gemma4-26b-a4b", SPARSE)])
def test_the_published_files_are_the_models_of_the_catalogue(tmp_path, name, text):
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": True,
    }
    read_one, ours = read(tmp_path, config), load_model(name)
    for field in dataclasses.fields(ours):
        if field.name not in TOLD_APART and not field.name.startswith("params_"):
            assert getattr(read_one, field.name) == getattr(ours, field.name), field.name
    assert count_parameters(read_one) == count_parameters(ours)
    assert read_one.layer_kinds() == ours.layer_kinds()
    assert read_one.left_out == "the encoder of images"
    assert read_one.embedding_scale == pytest.approx(ours.embedding_scale)


def test_hand_count_of_the_dense_layers(tmp_path):
    """Windows: 32 and 16 heads of 256; full: 32 and 4 of 512, one projection for keys and values; four norms."""
    model = read(tmp_path, CAUSAL | DENSE)
    h = 5376
    mlp, norms = 3 * h * 21504, 4 * h
    windows = h * (32 + 2 * 16) * 256 + 32 * 256 * h + 2 * 256
    full = h * (32 + 4) * 512 + 32 * 512 * h + 2 * 512
    per_layer = count_parameters(model).per_layer
    assert per_layer == {
        "window attention + mlp": windows + mlp + norms,
        "attention + mlp": full + mlp + norms,
    }
    assert model.norms.written == "all"
    assert model.local_layers


def test_hand_count_of_the_sparse_layers(tmp_path):
    """Experts beside an MLP, seven norms, a vector in front of the router and a number an expert behind it."""
    model = read(tmp_path, CAUSAL | SPARSE)
    h = 2816
    experts = 128 * 3 * h * 704 + 3 * h * 2112 + 128 * h + h + 128
    full = h * (16 + 2) * 512 + 16 * 512 * h + 2 * 512
    assert count_parameters(model).per_layer["attention + experts"] == full + experts + 7 * h
    assert model.norms.written == "mlp"
    assert not model.local_layers


def test_files_of_newer_transformers_list_heads_by_layer(tmp_path):
    own = {f"{layer:02}": {"head_dim": 512, "num_key_value_heads": 4} for layer in range(5, 60, 6)}
    newer = {key: value for key, value in DENSE.items() if "global" not in key} | {"per_layer_config": own}
    assert read(tmp_path, CAUSAL | newer) == read(tmp_path, CAUSAL | DENSE)
    newer["per_layer_config"]["05"] = {"head_dim": 256}
    with pytest.raises(ValueError, match="gives layers without windows different heads"):
        read(tmp_path, CAUSAL | newer)


def test_keys_of_their_own_have_the_heads_of_windows(tmp_path):
    """transformers' Gemma4TextConfig: num_global_key_value_heads counts where keys are values alone."""
    model = read(tmp_path, CAUSAL | DENSE | {"attention_k_eq_v": False})
    assert (model.num_kv_heads, model.values_are_keys) == (16, False)


def test_the_last_layer_sees_everything(tmp_path):
    model = read(tmp_path, CAUSAL | DENSE | {"layer_types": ["sliding_attention"] * 60})
    assert model.sliding_window.pattern == "W" * 59 + "F"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size_per_layer_input": 256}, "gives each layer embeddings of its own"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers 20 is not supported"),
        ({"use_double_wide_mlp": True}, "use_double_wide_mlp True is not supported"),
        ({"enable_moe_block": True}, "num_experts"),
        ({"layer_types": ["linear"] * 60}, "layer_types"),
    ],
)
def test_what_is_not_told_is_refused_in_one_line(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said) as refused:
        read(tmp_path, CAUSAL | DENSE | changes)
    assert "\n" not in str(refused.value)


def test_the_small_ones_are_what_the_class_is_by_default(tmp_path):
    text = {key: value for key, value in DENSE.items() if key != "hidden_size_per_layer_input"}
    with pytest.raises(ValueError, match="gives each layer embeddings of its own"):
        read(tmp_path, CAUSAL | text)
