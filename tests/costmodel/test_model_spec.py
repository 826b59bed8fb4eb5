"""What a model spec accepts, derives and refuses."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.model_file import from_mapping, read_toml, to_mapping, with_overrides
from costmodel.model_registry import list_models, load_model
from costmodel.model_spec import ModelSpec

UNHURRIED = settings(deadline=None)

SMALL = {"name": "small", "num_layers": 2, "hidden": 64, "ffn_hidden": 128, "num_heads": 4, "vocab": 100}


@pytest.mark.parametrize("name", list_models())
def test_round_trip(name):
    spec = load_model(name)
    assert from_mapping(tomllib.loads(tomli_w.dumps(to_mapping(spec)))) == spec


def test_head_size_and_kv_heads_follow_when_absent():
    spec = from_mapping(SMALL)
    assert (spec.head_dim, spec.num_kv_heads, spec.family) == (16, 4, "dense")


@UNHURRIED
@given(vocab=st.integers(1, 2**24), step=st.one_of(st.none(), st.integers(1, 2048)), tp=st.integers(1, 64))
def test_padded_vocab_is_the_next_multiple(vocab, step, tp):
    padded = from_mapping(SMALL | {"vocab": vocab, "vocab_divisible_by": step}).padded_vocab(tp)
    multiple = (step or 128) * tp
    assert padded % multiple == 0
    assert vocab <= padded < vocab + multiple


@pytest.mark.parametrize(
    ("name", "tp", "padded"),
    [
        ("llama3.1-405b", 2, 128_256),  # note of the source
        ("llama3.1-405b", 4, 128_512),
        ("gpt3-175b", 1, 51_200),  # fixed by the source, where the rule would give 50,304
        ("gpt3-175b", 8, 51_200),
        ("deepseek-v3", 1, 129_280),
        ("moonlight-16b-a3b", 1, 163_840 + 1_280),
    ],
)
def test_padded_vocab_of_sources(name, tp, padded):
    assert load_model(name).padded_vocab(tp) == padded


def test_fixed_padded_vocab_still_splits_over_tp():
    assert load_model("gpt3-175b").padded_vocab(3) == 51_201


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_layers": 0}, "num_layers 0 is not a whole number from 1 to 10000"),
        ({"num_layers": 10**9}, "num_layers 1000000000"),
        ({"num_layers": -2}, "num_layers -2"),
        ({"num_layers": "2"}, "num_layers '2'"),
        ({"num_layers": 2.0}, "num_layers 2.0"),
        ({"num_layers": True}, "num_layers True"),
        ({"num_layers": float("nan")}, "num_layers nan"),
        ({"num_layers": None}, "num_layers is missing"),
        ({"num_heads": 0}, "num_heads 0"),
        ({"num_heads": -4}, "num_heads -4"),
        ({"num_heads": 5}, "hidden 64 is not a multiple of num_heads 5. Give head_dim"),
        ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"hidden": []}, "hidden []"),
        ({"gated": "yes"}, "gated 'yes' is not true or false"),
        ({"gated": 1}, "gated 1 is not true or false"),
        ({"norm": "BatchNorm"}, "norm 'BatchNorm' is not known"),
        ({"activation": "tanh"}, "activation 'tanh' is not known"),
        ({"name": ""}, "name '' is empty"),
        ({"name": 5}, "name 5 is not a text"),
        ({"note": "x" * 20_000}, "is not a text"),
        ({"vocab_padded": 99}, "vocab_padded 99 is below vocab 100"),
        ({"family": "moe"}, "family 'moe' does not fit"),
        ({"layer_pattern": "MMM"}, "layer_pattern has 3 letters for num_layers 2"),
        ({"layer_pattern": "MX"}, "layer_pattern has 'X'"),
        ({"layer_pattern": "M-"}, "need each other"),
        ({"layer_pattern": "*E"}, "no table [moe]"),
        ({"moe": 5}, "moe 5 is not a table"),
        ({"moe": {"num_experts": 8}}, "moe.topk is missing"),
        (
            {"moe": {"num_experts": 8, "topk": 9, "expert_ffn": 4}},
            "moe.topk 9 is more than moe.num_experts 8",
        ),
        ({"moe": {"num_experts": 8, "topk": 2, "expert_ffn": 0}}, "moe.expert_ffn 0"),
        ({"moe": {"num_experts": 8, "topk": 2, "expert_fn": 4}}, "Did you mean expert_ffn?"),
        ({"num_layer": 2}, "num_layer is not a key of a model. Did you mean num_layers?"),
        ({"n_layer": 2}, "n_layer is not a key of a model. Did you mean num_layers?"),
        ({"num_experts": 8}, "num_experts is not a key of a model. Write num_experts in a table [moe]."),
        ({"num_experts_per_tok": 2}, "Write topk in a table [moe]."),
        ({"window": 128}, "Write window in a table [sliding_window] or [compressed_attention]."),
    ],
)
def test_refuses_in_one_line(change, says):
    with pytest.raises(ValueError) as error:
        from_mapping(SMALL | change)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)


@UNHURRIED
@given(st.dictionaries(st.sampled_from([field.name for field in fields(ModelSpec)]), anything, max_size=6))
def test_anything_gives_a_spec_or_a_value_error(change):
    refused = False
    try:
        assert from_mapping(SMALL | change).layer_counts()
    except ValueError:
        refused = True
    assert refused or all(type(value) is not float for value in change.values())


def test_specs_do_not_change():
    with pytest.raises(FrozenInstanceError):
        load_model("tiny-gpt").hidden = 3


def test_sparse_layers_by_rule():
    maverick, deepseek = load_model("llama4-maverick"), load_model("deepseek-v3")
    assert maverick.layer_kinds()[:4] == ("attention + mlp", "attention + experts") * 2
    assert [kind.endswith("experts") for kind in deepseek.layer_kinds()] == [False] * 3 + [True] * 58


def test_hybrid_layers_by_pattern():
    assert load_model("nemotronh-8b").layer_counts() == {"mamba": 24, "mlp only": 24, "attention only": 4}
    assert load_model("qwen3-next-80b-a3b").layer_counts() == {"gated delta": 36, "attention + experts": 12}


def test_overrides_of_recipes():
    spec = load_model("gpt3-175b")
    changed = with_overrides(spec, {"layers": 4, "hidden_size": 1024, "num_attention_heads": 16})
    assert (changed.num_layers, changed.hidden, changed.num_heads) == (4, 1024, 16)
    assert (changed.head_dim, changed.num_kv_heads) == (64, 16), "they followed before, so they follow"
    assert changed.params_computed is None
    assert with_overrides(spec, {}) is spec


def test_override_of_the_vocabulary_frees_its_padding():
    assert with_overrides(load_model("gpt3-175b"), {"vocab": 100_000}).padded_vocab(1) == 100_096


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        ({"dense_first_layers": 1}, "dense_first_layers", 1),
        ({"first_k_dense_replace": 1}, "dense_first_layers", 1),
        ({"moe.experts": 128}, "num_experts", 128),
        ({"moe.dense_first_layers": 2}, "dense_first_layers", 2),
    ],
)
def test_overrides_of_experts_in_any_tables_words(overrides, field, value):
    assert getattr(with_overrides(load_model("deepseek-v3"), overrides).moe, field) == value


def test_overrides_keep_a_head_size_of_its_own():
    assert with_overrides(load_model("qwen3-30b-a3b"), {"hidden": 1024}).head_dim == 128


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"num_layer": 4}, "Did you mean num_layers?"),
        ({"num_layers": 0}, "num_layers 0"),
        ({"moe.topk": 2}, "has no table [moe]"),
        ({"first_dense_layers": 1}, "has no table [moe]"),
        ("num_layers=4", "are not names with values"),
        ({"family": "moe"}, "family is not a key"),
    ],
)
def test_overrides_refused(overrides, says):
    with pytest.raises(ValueError) as error:
        with_overrides(load_model("llama3-8b"), overrides)
    assert says in str(error.value)


def test_user_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("num_layers = 2\nhidden = 64\nffn_hidden = 128\nnum_heads = 4\nvocab = 100\n")
    assert read_toml(path) == replace(from_mapping(SMALL), name="mine")
