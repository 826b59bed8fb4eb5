"""Models by name, alias, size name and path; hostile names and files."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from hf_configs import GLM45_AIR, NEOX_20B
from hf_configs_newer import (
    DEEPSEEK_V4_PRO,
    DEEPSEEK_V32,
    GLM5,
    GLM47_FLASH,
    GLM52,
    OLMO2_32B,
    OLMOE,
    PHI4,
    SMOLLM3_3B,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.huggingface import read_hf_config
from costmodel.model_registry import MODELS, list_aliases, list_models, load_model, parse_size_name
from costmodel.parameter_counts import count_parameters

UNHURRIED = settings(deadline=None)
# What names a model and its totals, and numbers that the configurations of these tests leave out.
TOLD_ELSEWHERE = (
    "name",
    "source",
    "left_out",
    "params_published",
    "params_printed",
    "params_published_source",
)
LEFT_OPEN = ("norm_epsilon", "rotary_base", "rotary_scaling")


def test_every_file_is_a_model_of_its_name():
    assert len(list_models()) >= 120
    for name in list_models():
        spec = load_model(name)
        assert spec.name == name
        assert spec.source


def test_files_cite_public_sources_only():
    for name in list_models():
        text = (MODELS / f"{name}.toml").read_text(encoding="utf-8")
        for private in ("file id", "notes on", "flops_formula", "recipe_flags", "read visually", "/work"):
            assert private not in text, name


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("deepseek-v3.2", DEEPSEEK_V32),
        ("deepseek-v4-pro", DEEPSEEK_V4_PRO),
        ("glm-4.7-flash", GLM47_FLASH),
        ("glm-5", GLM5),
        ("glm-5.2", GLM52),
        ("glm4.5-air", GLM45_AIR | {"routed_scaling_factor": 1.0}),
        ("gpt-neox-20b", NEOX_20B),
        ("olmo2-32b", OLMO2_32B),
        ("olmoe-1b-7b", OLMOE),
        ("phi-4", PHI4),
        ("smollm3-3b", SMOLLM3_3B),
    ],
)
def test_files_written_by_hand_agree_with_their_configurations(tmp_path, name, config):
    """Also in what they do not say and so take by default: shares of rotary dimensions, layers without them, heads
    for more tokens, routers; and what is not counted of one is said of the other."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec, read = load_model(name), read_hf_config(tmp_path / "config.json")
    for field in dataclasses.fields(spec):
        if field.name not in TOLD_ELSEWHERE + LEFT_OPEN:
            assert getattr(spec, field.name) == getattr(read, field.name), field.name
    assert bool(spec.left_out) == bool(read.left_out)


def test_files_written_by_hand_hold_what_an_export_says():
    """Their norms' epsilon and rotary base, but where no source states them or two sources differ."""
    texts = {name: (MODELS / f"{name}.toml").read_text(encoding="utf-8") for name in list_models()}
    specs = [load_model(name) for name, text in texts.items() if "from what its publisher prints" in text]
    without = {spec.name for spec in specs if spec.norm_epsilon is None}
    assert without == {"dbrx-132b", "deepseek-llm-67b", "qwen2.5-14b", "yi-34b"}
    # Mamba hybrids have no positions.
    told = [spec for spec in specs if not spec.learned_positions and "ALiBi" not in spec.left_out]
    rotary = [spec for spec in told if spec.mamba is None]
    unsaid = {"dbrx-132b", "deepseek-llm-67b", "llama-33b", "llama-65b", "smollm3-3b", "yi-34b"}
    assert {spec.name for spec in rotary if spec.rotary_base is None} == unsaid


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("70b", "llama3-70b"),
        ("70B", "llama3-70b"),
        (" 70b ", "llama3-70b"),
        ("llama-3-70b", "llama3-70b"),
        ("llama3.1-70b", "llama3-70b"),
        ("Llama_3.1 70B", "llama3-70b"),
        ("meta-llama/Llama-3.1-8B", "llama3-8b"),
        ("8b", "llama3-8b"),
        ("405b", "llama3.1-405b"),
        ("175b", "gpt3-175b"),
        ("gpt3", "gpt3-175b"),
        ("mixtral", "mixtral-8x7b"),
        ("dsv3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("tiny-gpt", "tiny-gpt"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        # As the NeMo recipes on AWS print them, and their scripts.
        ("LLAMA3.1-405B", "llama3.1-405b"),
        ("LLAMA4-Scout-LLM", "llama4-scout"),
        ("llama4_e16", "llama4-scout"),
        ("LLAMA4-Maverick-LLM", "llama4-maverick"),
        ("llama4_e128", "llama4-maverick"),
        ("Nemotron5-H-56B", "nemotronh-56b"),
        ("DeepSeekV3", "deepseek-v3"),
    ],
)
def test_aliases(alias, name):
    assert load_model(alias).name == name


def test_aliases_lead_to_models_and_hide_none():
    for alias, name in list_aliases().items():
        assert name in list_models(), alias
        assert alias not in list_models(), alias


@pytest.mark.parametrize(
    ("given_name", "says"),
    [
        ("lama3-70b", "Did you mean llama3-70b?"),
        ("llama3-70", "Did you mean llama3-70b?"),
        ("deepseek-v33", "Did you mean deepseek-v3?"),
        ("mixtrall", "Did you mean mixtral"),
        ("nemotron", "is ambiguous: nemotron-22b"),
        (
            "9b",
            "is ambiguous: gemma2-9b, nemotron-nano-9b-v2, qwen3.5-9b. Give",
        ),  # which is no part of mcore-gpt-119b, narayanan-gpt-39b, pythia-6.9b
        ("13b", "is ambiguous: llama2-13b"),
        (
            "qwen3",
            "is ambiguous: qwen3-0.6b, qwen3-1.7b, qwen3-14b, qwen3-235b-a22b, qwen3-30b-a3b and 19 more. Give",
        ),
        ("mpt", "and 4 more"),
        ("zzzzzz", "is not a known model or file"),
        ("", "is not a name or a path"),
        ("a\0b", "is not a name or a path"),
        ("x" * 100_000, "is not a name or a path"),
        ("no/such/model.toml", "is not a file"),
        ("no/model.json", "is not a file"),
        ("mine.toml", "is not a file"),
        ("~no-such-user-here/a/b", "is not a file"),
        ("x" * 300 + ".json", "Check the path"),
        ("../../no/such", "is not a file"),
    ],
)
def test_unknown_names(given_name, says):
    with pytest.raises(ValueError) as error:
        load_model(given_name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@UNHURRIED
@given(st.text(max_size=40))
def test_any_other_text_is_a_value_error(text):
    with pytest.raises(ValueError, match="--model "):
        load_model("?" + text.replace("/", ""))


def test_narayanan2021_size_name():
    """arXiv 2104.04473 table 1: 8192 hidden, 48 layers, 64 heads is its 39.1B model."""
    spec = load_model("gpt-h8192-l48-a64")
    assert count_parameters(spec).total == count_parameters(load_model("narayanan-gpt-39b")).total
    assert spec.padded_vocab(8) == 51_200
    assert (spec.ffn_hidden, spec.num_kv_heads, spec.gated, spec.norm) == (32768, 64, False, "LayerNorm")
    assert spec.family == "dense"


@UNHURRIED
@given(heads=st.integers(1, 128), d=st.integers(1, 256), layers=st.integers(1, 200))
def test_size_names_say_their_sizes(heads, d, layers):
    spec = parse_size_name(f"gpt-h{heads * d}-l{layers}-a{heads}")
    assert (spec.hidden, spec.num_layers, spec.num_heads, spec.head_dim) == (heads * d, layers, heads, d)


@pytest.mark.parametrize(
    "name", ["gpt-h8192-l48", "gpt-hx-l48-a64", "gpt-h-1-l2-a1", "llama3-8b", "", "gpt-h8192-l48-a64b"]
)
def test_other_names_are_no_size_names(name):
    assert parse_size_name(name) is None


@pytest.mark.parametrize(
    "name", ["gpt-h100-l2-a3", "gpt-h0-l2-a1", "gpt-h64-l0-a1", "gpt-h64-l2-a0", "gpt-h64-l99999-a1"]
)
def test_impossible_size_names(name):
    with pytest.raises(ValueError, match=f"^--model {name}: "):
        load_model(name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "num_layers is missing"),
        (b"num_layers = ", "is not valid TOML"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"num_layers = " + b"9" * 5000, "is not valid TOML"),
        (b"a = " + b"[" * 10_000, "is not valid TOML"),
        (b"num_layers = nan\nhidden = 8\nffn_hidden = 8\nnum_heads = 1\nvocab = 8", "num_layers nan"),
        (b"schema = 1\n[knobs]\ntp = 1", "is a plan file, not a model. `advisor predict"),
        (b"layers = 2", "layers is not a key of a model. Did you mean num_layers?"),
        (b"moe = 3", "moe 3 is not a table"),
    ],
)
def test_bad_toml(tmp_path, content, says):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        load_model(str(path))
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_extension_is_read_as_toml(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes((MODELS / "tiny-gpt.toml").read_bytes())
    assert load_model(path).hidden == 256
    assert load_model(str(path)).hidden == 256


def test_folders_devices_and_large_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is a directory without a config"):
        load_model(str(tmp_path))
    with pytest.raises(ValueError, match="is not a file"):
        load_model(os.devnull)
    (tmp_path / "large.toml").write_bytes(b"#" * (5 * 2**20))
    with pytest.raises(ValueError, match="is larger than"):
        load_model(tmp_path / "large.toml")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama3.1-405b"),
        ("llama31_405b", "llama3.1-405b"),
        ("Nemotron-4-340B-Base", "nemotron4-340b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16", "nemotron3-nano-30b-a3b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("qwen 2.5 7b instruct", "qwen2.5-7b"),
        ("Qwen 2 57B A14B", "qwen2-57b-a14b"),
        ("DeepSeek-V3 (671B)", "deepseek-v3"),
        ("Nemotron-H-56B-Base-8K", "nemotronh-56b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("mistralai/Mistral-Large-Instruct-2407", "mistral-large-123b"),
        ("EleutherAI/pythia-6.9b", "pythia-6.9b"),
        ("LLaMA 65B", "llama-65b"),
    ],
)
def test_variants_have_the_sizes_of_their_model(written, name):
    assert load_model(written).name == name


@pytest.mark.parametrize("written", ["deepseek-v4", "qwen3-80b", "llama3-instruct", "llama-70b"])
def test_a_variant_is_not_another_size_or_version(written):
    with pytest.raises(ValueError, match="--model"):
        load_model(written)


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("Qwen3_Next_80B", "qwen3-next-80b-a3b"),
        ("DeepSeek-V3.2-Exp", "deepseek-v3.2"),
        ("llama-1-7b", "llama2-7b"),
        ("LLaMA 1 65B", "llama-65b"),
        ("Llama 8x70B", "llama3-8x70b"),
    ],
)
def test_names_as_papers_write_them(written, model):
    assert load_model(written).name == model
