"""Norms of the latents: where qk_norm says so, in counts, on ranks, in time and in what is exported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.amounts import rank_amounts
from costmodel.model_file import from_mapping, to_mapping
from costmodel.model_registry import list_models, load_model
from costmodel.model_spec import ModelSpec
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.megatron_model import model_fields
from hardware_db import load_cluster

LATENT = [name for name in list_models() if load_model(name).mla is not None]
# What a rank holds of sparse attention is not counted for a dry run.
BUILT = [name for name in LATENT if not load_model(name).sparse_attention]
COUNTED = ("params_published", "params_computed", "params_active_computed")


def without(name: str) -> ModelSpec:
    return replace(load_model(name), qk_norm=False, **dict.fromkeys(COUNTED))


@pytest.mark.parametrize("name", BUILT)
def test_counts_of_a_model_and_of_its_rank_lose_the_same_norms(name):
    """On one GPU a rank holds the whole model; Megatron-Core 0.16.1 has neither norm without qk_layernorm."""
    whole, bare = load_model(name), without(name)
    mla = whole.mla
    norms = whole.num_layers * ((mla.q_lora_rank or 0) + mla.kv_lora_rank)
    assert count_parameters(whole).total - count_parameters(bare).total == norms
    held = [
        sum(rank_amounts(Plan(), Workload(4096, 1), replace(model, mtp_layers=0), 0, 1).parameters.values())
        for model in (whole, bare)
    ]
    assert held[0] - held[1] == norms
    assert model_fields(bare)["qk_layernorm"] is False


@pytest.mark.parametrize("name", LATENT)
def test_bare_latents_take_less_time_and_memory(name):
    cluster = load_cluster("dgx-h100")
    plan, load = Plan(ep=8, dp=64), Workload(4096, 64)
    whole, bare = (predict(model, load, cluster, plan) for model in (load_model(name), without(name)))
    assert bare.step_time_s < whole.step_time_s
    assert bare.peak_memory_bytes < whole.peak_memory_bytes


def test_a_file_that_does_not_say_has_them_as_published_models_have():
    """It counted them in time and parameters, and exported none."""
    mapping = to_mapping(load_model("deepseek-v3"))
    del mapping["qk_norm"]
    assert from_mapping(mapping).qk_norm
    assert not from_mapping(mapping | {"qk_norm": False}).qk_norm
    assert not from_mapping(
        {key: value for key, value in to_mapping(load_model("llama3-8b")).items() if key != "qk_norm"}
    ).qk_norm
