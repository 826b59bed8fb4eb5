"""Hugging Face configs: known files give the totals of their checkpoints, hostile ones one line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hf_configs import (
    DEEPSEEK_V3,
    GEMMA_2B,
    GLM45_AIR,
    GPT2,
    GPT_OSS_20B,
    LLAMA3_8B,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    MOONLIGHT,
    NEOX_20B,
    QWEN2_57B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN3_NEXT,
    QWEN25_7B,
    QWEN35_27B,
    QWEN35_35B,
)
from hf_configs_newer import (
    GEMMA2_27B,
    GEMMA3_27B,
    GLM4_9B,
    LLAMA4_SCOUT,
    MINIMAX_M2,
    NEMOTRON4_15B,
    NEMOTRON_H_8B,
    OLMO2_32B,
    OLMOE,
    PHI4,
    QWEN3_VL_235B,
    QWEN25_VL_7B,
    SMOLLM3_3B,
    STARCODER2_15B,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.model_hf import ARCHITECTURES, read_hf_config
from costmodel.model_registry import load_model
from costmodel.model_spec import AttentionTemperature, RotaryScaling
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

UNHURRIED = settings(deadline=None)
MAVERICK = {"num_local_experts": 128, "interleave_moe_layer_step": 2, "moe_layers": list(range(1, 48, 2))}
# Keys of NVIDIA-Nemotron-3-Super-120B-A12B, whose sizes are those of our file.
SUPER = load_model("nemotron3-super-120b-a12b")
NEMOTRON3_SUPER = {
    "hybrid_override_pattern": SUPER.layer_pattern,
    "intermediate_size": SUPER.ffn_hidden,
    "moe_intermediate_size": 2688,
    "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376,
    "mtp_hybrid_override_pattern": "*E",
    "n_routed_experts": 512,
    "num_experts_per_tok": 22,
    "num_hidden_layers": 88,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
}


def write(folder, config):
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder / "config.json"


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (LLAMA3_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN25_7B, 7_615_616_512),
        (QWEN3_8B, 8_190_735_360),
        (QWEN3_30B, 30_532_122_624),
        (MIXTRAL_8X7B, 46_702_792_704),
        (GEMMA_2B, 2_506_172_416),
        (GPT2, 124_439_808),
        (NEOX_20B, 20_554_567_680),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_totals_of_published_checkpoints(tmp_path, config, total):
    """Parameters as the Hugging Face hub shows them for each checkpoint."""
    assert count_parameters(read_hf_config(write(tmp_path, config))).total == total


@pytest.mark.parametrize(
    ("config", "total", "norms"),
    [
        (PHI4, 14_659_507_200, 0),
        (SMOLLM3_3B, 3_075_098_624, 0),
        (STARCODER2_15B, 15_957_889_024, 0),
        (QWEN3_VL_235B, 235_093_634_560, 0),
        (QWEN25_VL_7B, 7_615_616_512, 0),
        (GEMMA2_27B, 27_227_128_320, 46 * 2 * 4608),
        (GEMMA3_27B, 27_009_346_304, 62 * 2 * 5376),
        (GLM4_9B, 9_400_279_040, 40 * 2 * 4096),
        (OLMO2_32B, 32_234_279_936, 64 * (40 + 8 - 2) * 128),
        (OLMOE, 6_919_161_856, 16 * (16 + 16 - 2) * 128),
        # Here the bias of the router is a buffer.
        (MINIMAX_M2, 228_689_748_992, 62 * ((48 + 8 - 2) * 128 - 256)),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_totals_of_the_transformers_library(tmp_path, config, total, norms):
    """Parameters of the language model as transformers 5.24 builds it without memory; what we leave out is said."""
    spec = read_hf_config(write(tmp_path, config))
    assert count_parameters(spec).total == total - norms
    assert ("norms" in spec.left_out) == bool(norms)


@pytest.mark.parametrize(
    ("config", "full"),
    [(GEMMA2_27B, 23), (GEMMA3_27B, 10), (OLMO2_32B | {"architectures": ["Olmo3ForCausalLM"]}, 16)],
)
def test_layers_with_windows(tmp_path, config, full):
    spec = read_hf_config(write(tmp_path, config))
    assert spec.num_layers // spec.sliding_window.full_attention_interval == full


def test_windows_of_the_last_layers_alone_are_refused(tmp_path):
    windows = QWEN25_7B | {"use_sliding_window": True, "sliding_window": 4096}
    assert read_hf_config(write(tmp_path, windows | {"max_window_layers": 28})).sliding_window is None
    assert read_hf_config(write(tmp_path, windows | {"max_window_layers": 0})).sliding_window.window == 4096
    with pytest.raises(ValueError, match="max_window_layers 21 with use_sliding_window"):
        read_hf_config(write(tmp_path, windows | {"max_window_layers": 21}))


def test_a_file_may_name_its_type_alone(tmp_path):
    named = {key: value for key, value in QWEN3_30B.items() if key != "architectures"}
    spec = read_hf_config(write(tmp_path, named | {"model_type": "qwen3_moe"}))
    assert count_parameters(spec).total == 30_532_122_624
    assert spec.source == "config.json (Qwen3MoeForCausalLM)"
    with pytest.raises(ValueError, match="architectures None is not supported"):
        read_hf_config(write(tmp_path, named | {"model_type": "bert"}))


def test_a_vision_model_ties_its_tables_as_its_language_model_does(tmp_path):
    assert read_hf_config(write(tmp_path, GEMMA3_27B)).tied_embeddings
    assert not read_hf_config(write(tmp_path, GEMMA3_27B | {"tie_word_embeddings": False})).tied_embeddings


@pytest.mark.parametrize(
    ("config", "change", "says"),
    [
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
    ],
)
def test_what_a_newer_file_says_wrong_is_named(tmp_path, config, change, says):
    with pytest.raises(ValueError) as error:
        read_hf_config(write(tmp_path, config | change))
    assert says in str(error.value)


def test_layers_listed_by_name_are_a_pattern(tmp_path):
    names = {"M": "mamba", "-": "mlp", "*": "attention"}
    listed = {"layers_block_type": [names[letter] for letter in NEMOTRON_H_8B["hybrid_override_pattern"]]}
    same = NEMOTRON_H_8B | listed | {"hybrid_override_pattern": None}
    assert read_hf_config(write(tmp_path, same)) == read_hf_config(write(tmp_path, NEMOTRON_H_8B))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA3_8B, "llama3-8b"),
        (QWEN3_30B, "qwen3-30b-a3b"),
        (QWEN2_57B, "qwen2-57b-a14b"),
        (MIXTRAL_8X7B, "mixtral-8x7b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (MOONLIGHT, "moonlight-16b-a3b"),
        (QWEN3_NEXT | {"mtp_num_hidden_layers": 1}, "qwen3-next-80b-a3b"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (LLAMA4_SCOUT, "llama4-scout"),
        (LLAMA4_SCOUT | {"text_config": LLAMA4_SCOUT["text_config"] | MAVERICK}, "llama4-maverick"),
        (NEMOTRON4_15B, "nemotron4-15b"),
        (NEMOTRON_H_8B, "nemotronh-8b"),
        (NEMOTRON_H_8B | NEMOTRON3_SUPER, "nemotron3-super-120b-a12b"),
    ],
)
def test_same_model_as_our_file(tmp_path, config, name):
    theirs, ours = read_hf_config(write(tmp_path, config)), load_model(name)
    assert count_parameters(theirs) == count_parameters(ours)
    assert (theirs.family, theirs.layer_kinds()) == (ours.family, ours.layer_kinds())
    assert (theirs.vocab, theirs.activation, theirs.mtp_layers) == (
        ours.vocab,
        ours.activation,
        ours.mtp_layers,
    )


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
    ("config", "family", "total", "active"),
    [
        (QWEN35_35B, "gated-delta-moe", 35e9, 3e9),
        (QWEN35_27B, "gated-delta", 27e9, 27e9),
        (GLM45_AIR, "moe", 106e9, 12e9),
    ],
)
def test_newer_models_have_the_sizes_of_their_names(tmp_path, config, family, total, active):
    """Names round to a billion; their active parameters count the vocabulary's two tables, or one, or none."""
    spec = read_hf_config(write(tmp_path, config))
    counts = count_parameters(spec)
    assert spec.family == family
    assert counts.total == pytest.approx(total, rel=0.01)
    tables = 2 * spec.vocab * spec.hidden
    assert counts.active - tables - 0.5e9 < active < counts.active + 0.5e9
    assert (spec.left_out == "the encoder of images") == ("text_config" in config)


def test_what_is_not_counted_of_a_model_is_said(tmp_path):
    cluster, plan = load_cluster("dgx-h100"), Plan(pp=5, dp=8, ep=8)
    spec = read_hf_config(write(tmp_path, QWEN35_35B))
    said = "not counted of the model: the encoder of images"
    assert predict(spec, Workload(4096, 64), cluster, plan).assumptions[0] == said
    whole = dataclasses.replace(spec, left_out="")
    assert said not in predict(whole, Workload(4096, 64), cluster, plan).assumptions


def test_layers_in_another_order_are_refused(tmp_path):
    text = QWEN35_35B["text_config"] | {"layer_types": ["full_attention"] * 40}
    with pytest.raises(ValueError, match="layer_types is no list with full_attention at every 4th layer"):
        read_hf_config(write(tmp_path, QWEN35_35B | {"text_config": text}))
    with pytest.raises(ValueError, match="text_config is missing"):
        read_hf_config(write(tmp_path, QWEN35_35B | {"text_config": None}))


def test_folder_and_file_work_as_model_names(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = write(folder, LLAMA3_8B)
    assert load_model(str(folder)) == load_model(str(path)) == load_model(folder)
    assert load_model(str(folder)).name == "my-llama"


def test_dense_configs_have_their_cost_built(tmp_path):
    for config in (LLAMA3_8B, QWEN25_7B, QWEN3_8B, GEMMA_2B, GPT2, NEOX_20B):
        assert read_hf_config(write(tmp_path, config)).family == "dense"
    assert read_hf_config(write(tmp_path, MISTRAL_7B)).sliding_window is not None


def test_sparse_step_counts_from_the_end(tmp_path):
    kinds = read_hf_config(write(tmp_path, QWEN3_30B | {"decoder_sparse_step": 2})).layer_kinds()
    assert [kind.endswith("experts") for kind in kinds[:4]] == [False, True, False, True]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["BertModel"]}, "Supported: LlamaForCausalLM, MistralForCausalLM"),
        ({"architectures": ["LlamaForCausalLm"]}, "Did you mean LlamaForCausalLM?"),
        ({"architectures": ["Qwen3MoEForCausalLM"]}, "Did you mean Qwen3MoeForCausalLM?"),
        ({"architectures": ["FooForCausalLM"]}, "is not supported. Supported: "),
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


@pytest.mark.parametrize(
    ("scaling", "says"), [("yarn", "not an object"), ({"rope_type": "new"}, "is not known. Known: default")]
)
def test_scaling_that_cannot_be_read_is_one_line(tmp_path, scaling, says):
    with pytest.raises(ValueError, match=says):
        read_hf_config(write(tmp_path, LLAMA3_8B | {"rope_scaling": scaling}))


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
