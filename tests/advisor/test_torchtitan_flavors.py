"""Flavours of torchtitan's models: our model where its sizes are the same, else one of their own sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.torchtitan.flavors import flavor_of
from advisor.torchtitan.job import tables
from costmodel.model_registry import list_models, load_model
from costmodel.parameter_counts import count_parameters

FLAVORS = [
    (family, name)
    for family, found in tables("flavors")["models"].items()
    for name in found
    if name != "every"
]


@pytest.mark.parametrize(
    ("family", "flavor", "name"),
    [
        ("llama3", "8B", "llama3-8b"),
        ("llama3", "70B", "llama3-70b"),
        ("llama3", "405B", "llama3.1-405b"),
        ("llama3", "8B_flex", "llama3-8b"),
        ("llama4", "17bx128e_irope", "llama4-maverick"),
        ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("deepseek_v3", "236B", "deepseek-v2"),
        ("qwen3", "32B", "qwen3-32b"),
        ("qwen3", "235B-A22B", "qwen3-235b-a22b"),
        ("gpt_oss", "120b", "gpt-oss-120b"),
    ],
)
def test_a_flavour_with_a_models_sizes_is_that_model(family, flavor, name):
    assert flavor_of(family, flavor).model == load_model(name)


@pytest.mark.parametrize(
    ("family", "flavor"), [("deepseek_v3", "671B"), ("llama4", "17bx16e"), ("llama3", "debugmodel")]
)
def test_a_flavour_that_no_model_is_has_its_own_sizes(family, flavor):
    found = flavor_of(family, flavor)
    assert found.model.name == f"{family}-{flavor}"
    assert found.model.name not in list_models()
    assert "of its own sizes" in found.notes[0]


def test_deepseeks_flavour_is_the_published_model_without_its_mtp_head():
    ours = replace(load_model("deepseek-v3"), mtp_layers=0)
    assert count_parameters(flavor_of("deepseek_v3", "671B").model).total == count_parameters(ours).total


@pytest.mark.parametrize(
    ("family", "flavor", "billions"),
    # Names of the flavours say it, but llama4's, whose published totals are 109 and 400.
    [("llama4", "17bx16e", 109), ("llama4", "17bx128e", 400), ("llama3", "405B", 405), ("qwen3", "14B", 14)],
)
def test_flavours_count_what_their_names_say(family, flavor, billions):
    total = count_parameters(flavor_of(family, flavor).model).total
    assert total == pytest.approx(billions * 1e9, rel=0.06)


@pytest.mark.parametrize(("family", "flavor"), FLAVORS)
def test_every_flavour_is_a_model(family, flavor):
    assert count_parameters(flavor_of(family, flavor).model).total > 0


def test_other_attention_and_other_engines_are_told():
    assert "FlexAttention, and stays in each document" in flavor_of("deepseek_v3", "671B").notes[-1]
    assert "FlexAttention; the fused" in flavor_of("gpt_oss", "20b").notes[-1]
    for name in ("simple_fsdp.llama3", "llama3_simple_fsdp"):
        found = flavor_of(name, "8B")
        assert found.model == load_model("llama3-8b")
        assert found.notes[0].startswith(f"{name} is not modelled as simple_fsdp trains it")


@pytest.mark.parametrize(
    ("family", "flavor", "told"),
    [
        ("lama3", "8B", "Did you mean llama3"),
        ("flux", "flux-dev", "Known: llama3"),
        ("llama3", "8b", "Did you mean 8B"),
        ("llama3", "large", "It has debugmodel"),
        ("llama3", "every", "It has debugmodel"),
    ],
)
def test_an_unknown_flavour_is_told_with_what_there_is(family, flavor, told):
    with pytest.raises(ValueError, match=told):
        flavor_of(family, flavor)
