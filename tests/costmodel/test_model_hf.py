"""Hugging Face configs: known files give the totals of their checkpoints, and the models that we have on file."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from family_cases import unjudged
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
    write,
)
from hf_configs_newer import (
    DEEPSEEK_V4_FLASH,
    DEEPSEEK_V32,
    GEMMA2_27B,
    GEMMA3_27B,
    GLM4_9B,
    GLM5,
    LLAMA4_SCOUT,
    MINIMAX_M2,
    MINIMAX_M3,
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

from costmodel.huggingface import ARCHITECTURES, read_hf_config
from costmodel.model_registry import load_model
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

ROOT = Path(__file__).parents[2]
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
        (GEMMA2_27B, 27_227_128_320, 0),
        (GEMMA3_27B, 27_009_346_304, 0),
        (GLM4_9B, 9_400_279_040, 0),
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


def test_attention_to_all_tokens_holds_no_indexer(tmp_path):
    """As Megatron-Bridge trains MiniMax-M3: the library's model less its indexer, and the router's biases."""
    spec = read_hf_config(write(tmp_path, MINIMAX_M3))
    assert count_parameters(spec).total == 425_950_417_920 + 57 * 128
    assert "indexer" in spec.left_out
    ours = load_model("minimax-m3")
    assert (spec.moe, spec.mtp_layers, spec.rotary_percent) == (ours.moe, 0, ours.rotary_percent)


@pytest.mark.parametrize(
    ("config", "full"),
    [(GEMMA2_27B, 23), (GEMMA3_27B, 10), (OLMO2_32B | {"architectures": ["Olmo3ForCausalLM"]}, 16)],
)
def test_layers_with_windows(tmp_path, config, full):
    spec = read_hf_config(write(tmp_path, config))
    assert spec.num_layers // spec.sliding_window.full_attention_interval == full


def test_a_file_may_name_its_type_alone(tmp_path):
    named = {key: value for key, value in QWEN3_30B.items() if key != "architectures"}
    spec = read_hf_config(write(tmp_path, named | {"model_type": "qwen3_moe"}))
    assert count_parameters(spec).total == 30_532_122_624
    assert spec.source == "config.json (Qwen3MoeForCausalLM)"
    with pytest.raises(ValueError, match="architectures None with model_type 'bert' is not supported"):
        read_hf_config(write(tmp_path, named | {"model_type": "bert"}))


def test_a_vision_model_ties_its_tables_as_its_language_model_does(tmp_path):
    assert read_hf_config(write(tmp_path, GEMMA3_27B)).tied_embeddings
    assert not read_hf_config(write(tmp_path, GEMMA3_27B | {"tie_word_embeddings": False})).tied_embeddings


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
        (DEEPSEEK_V4_FLASH, "deepseek-v4-flash"),
        (DEEPSEEK_V32, "deepseek-v3.2"),
        (GLM5, "glm-5"),
        (MOONLIGHT, "moonlight-16b-a3b"),
        (QWEN3_NEXT | {"mtp_num_hidden_layers": 1}, "qwen3-next-80b-a3b"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (LLAMA4_SCOUT, "llama4-scout"),
        (LLAMA4_SCOUT | {"text_config": LLAMA4_SCOUT["text_config"] | MAVERICK}, "llama4-maverick"),
        (MINIMAX_M3, "minimax-m3"),
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


def test_folder_and_file_work_as_model_names(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = write(folder, LLAMA3_8B)
    assert load_model(str(folder)) == load_model(str(path)) == load_model(folder)
    assert load_model(str(folder)).name == "my-llama"


@pytest.mark.parametrize("config", [LLAMA3_8B, QWEN25_7B, QWEN3_8B, GEMMA_2B, GPT2, NEOX_20B, MISTRAL_7B])
def test_dense_configs_are_priced(config, tmp_path):
    """A GPU alone holds the parameters that the configuration has, but for the padding of its vocabulary."""
    spec = read_hf_config(write(tmp_path, config))
    assert spec.family == "dense"
    assert (spec.sliding_window is not None) == (config is MISTRAL_7B)
    found = unjudged(spec, Workload(1024, 1), load_cluster("dgx-h100"), Plan())
    padding = (spec.padded_vocab(1) - spec.vocab) * spec.hidden * (1 if spec.tied_embeddings else 2)
    assert found.values["first_stage_parameters"] == count_parameters(spec).total + padding
    assert found.step_time_s > 0


def test_sparse_step_counts_from_the_end(tmp_path):
    kinds = read_hf_config(write(tmp_path, QWEN3_30B | {"decoder_sparse_step": 2})).layer_kinds()
    assert [kind.endswith("experts") for kind in kinds[:4]] == [False, True, False, True]


def test_every_class_is_listed_where_the_error_sends_its_reader():
    listed = set(re.findall(r"\w+", (ROOT / "docs" / "extending.md").read_text()))
    endings = ("ForCausalLM", "ForConditionalGeneration")
    short = {
        next((name.removesuffix(end) for end in endings if name.endswith(end)), name)
        for name in ARCHITECTURES
    }
    assert short <= listed
