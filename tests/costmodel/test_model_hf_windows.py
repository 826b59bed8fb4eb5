"""Hugging Face configs of models whose layers with windows have heads of their own, read and refused."""

from __future__ import annotations

import dataclasses

import pytest
from hf_configs import write

from costmodel.huggingface import read_hf_config
from costmodel.model_registry import load_model
from costmodel.parameter_counts import count_parameters

# As aiconfigurator-core 0.12.0, model_configs, has the published file; keys that change no size are left out.
FULL = (0, 5, 11, 17, 23, 29, 35, 41, 47)
MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "intermediate_size": 16384,
    "vocab_size": 152576,
    "rope_theta": 5000000,
    "swa_rope_theta": 10000,
    "partial_rotary_factor": 0.334,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [int(layer not in FULL) for layer in range(48)],
    "moe_layer_freq": [0] + [1] * 47,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": None,
    "hidden_act": "silu",
    "layernorm_epsilon": 1e-05,
    "attention_bias": False,
    "attention_value_scale": 0.707,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "tie_word_embeddings": False,
}
KINDS = ["full_attention" if layer % 4 == 0 else "sliding_attention" for layer in range(48)]
# Keys as transformers 5.24's Step3p7TextConfig and Megatron-Bridge 0.6.2's Step35Config read them of the hub's file.
STEP = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "num_hidden_layers": 45,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "vocab_size": 128896,
    "rms_norm_eps": 1e-05,
    "layer_types": KINDS,
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 96,
        "num_attention_groups": 8,
        "head_dim": 128,
    },
    "sliding_window": 512,
    "use_head_wise_attn_gate": True,
    "moe_layers_enum": ",".join(map(str, range(3, 45))),
    "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "need_fp32_gate": True,
    "use_moe_router_bias": True,
    "num_nextn_predict_layers": 3,
    "rope_theta": [5e6 if kind == "full_attention" else 1e4 for kind in KINDS],
    "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in KINDS],
    "swiglu_limits": [0.0] * 43 + [7.0, 7.0] + [0.0] * 3,
}
# Of our files alone: where a number was read, what is not of the configuration.
OURS = ("name", "source", "left_out", "note", "mtp_layers", "mtp_pattern")


def same(read, ours: str, *but: str) -> None:
    model = load_model(ours)
    for field in dataclasses.fields(model):
        if field.name not in (*OURS, *but) and not field.name.startswith("params_"):
            assert getattr(read, field.name) == getattr(model, field.name), field.name


def test_mimo_v2_flash_is_read_as_our_file_has_it(tmp_path):
    read = read_hf_config(write(tmp_path, MIMO))
    assert read.window_heads == load_model("mimo-v2-flash").window_heads
    same(read, "mimo-v2-flash", "sliding_window")
    assert "multi-token-prediction heads" in read.left_out
    assert count_parameters(read).total == 308_778_780_864


def test_names_of_the_class_and_of_the_hub_say_the_same(tmp_path):
    """Newer files list layer_types and mlp heads twice as many in windows, as the class has them."""
    own = {
        key: value for key, value in MIMO.items() if not key.startswith(("swa_", "hybrid_", "moe_layer_freq"))
    }
    newer = own | {
        "layer_types": ["full_attention" if layer in FULL else "sliding_attention" for layer in range(48)]
    }
    hub, read, bare = (read_hf_config(write(tmp_path, config)) for config in (MIMO, newer, own))
    assert hub.sliding_window == read.sliding_window == bare.sliding_window
    assert hub.moe == read.moe


def test_step_is_read_as_our_file_has_it(tmp_path):
    read = read_hf_config(write(tmp_path, STEP))
    assert read.window_heads == load_model("step3.5-flash").window_heads
    assert (read.mtp_layers, read.mtp_pattern) == (3, "W-")
    same(
        read, "step3.5-flash", "sliding_window", "moe"
    )  # Megatron-Bridge balances the router by a loss, which no file says
    assert read.left_out == "clamps of SwiGLU on 2 layers"
    assert count_parameters(read).total == 196_956_130_368


def test_the_language_model_of_step_37_is_read(tmp_path):
    text = {key: value for key, value in STEP.items() if key != "architectures"}
    read = read_hf_config(
        write(tmp_path, {"architectures": ["Step3p7ForConditionalGeneration"], "text_config": text})
    )
    assert read.window_heads.num_heads == 96
    assert read.left_out.startswith("the encoder of images")


def test_without_other_heads_windows_are_those_of_all_layers(tmp_path):
    plain = {key: value for key, value in STEP.items() if key != "attention_other_setting"}
    read = read_hf_config(write(tmp_path, plain | {"num_nextn_predict_layers": 0}))
    assert not read.windows_apart
    assert read.sliding_window.pattern.count("W") == 33


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (
            MIMO,
            {"hybrid_layer_pattern": [0, 1]},
            "hybrid_layer_pattern has 2 entries for num_hidden_layers 48",
        ),
        (MIMO, {"hybrid_layer_pattern": [2] * 48}, "is not a list of 0, 1"),
        (MIMO, {"moe_layer_freq": [0, 1] * 24}, "is no list of a layer each"),
        (MIMO, {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias true is not supported"),
        (STEP, {"moe_layers_enum": "3,5,7"}, "is no list of a layer each"),
        (
            STEP,
            {"layer_types": KINDS[:46] + ["full_attention"] * 2},
            "different attention for the layers behind",
        ),
        (STEP, {"layer_types": [[]] * 48}, "is not a list of full_attention, sliding_attention"),
        (STEP, {"attention_other_setting": 96}, "attention_other_setting 96 is not an object"),
        (STEP, {"rope_theta": [1e4]}, "has no value for layer 1"),
    ],
)
def test_what_our_layers_cannot_say_is_refused_in_a_line(tmp_path, config, changes, said):
    with pytest.raises(ValueError, match=said) as refused:
        read_hf_config(write(tmp_path, config | changes))
    assert "\n" not in str(refused.value)


def test_layers_listed_as_newer_files_have_them(tmp_path):
    """transformers 5.24, configuration_step3p7.py: mlp_layer_types, and layers of heads in a list of their own."""
    layers, heads = STEP["num_hidden_layers"], STEP["num_nextn_predict_layers"]
    older = STEP | {"moe_layers_enum": ",".join(str(layer) for layer in range(1, layers))}
    newer = STEP | {
        "moe_layers_enum": None,
        "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
        "layer_types": STEP["layer_types"][:layers],
        "mtp_layer_types": STEP["layer_types"][layers:],
    }
    assert len(newer["mtp_layer_types"]) == heads
    assert read_hf_config(write(tmp_path, newer)) == read_hf_config(write(tmp_path, older))
