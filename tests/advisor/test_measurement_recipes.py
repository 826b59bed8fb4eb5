"""What recipes of a release say where a published row does not: only what is empty, and the note tells it."""

from __future__ import annotations

import pytest

from advisor.measurements import Case, row_case
from advisor.measurements.rows import Row

EXPERTS = {
    "id": "run",
    "source": "somebody's cluster",
    "container": "nemo:26.06",
    "model": "qwen3-235b-a22b",
    "system": "gb300-nvl72",
    "gpus": "256",
    "precision": "mxfp8",
    "gbs": "8192",
    "mbs": "1",
    "seq_len": "4096",
    "tp": "1",
    "pp": "4",
    "vp": "12",
    "ep": "32",
    "step_time_s": "10",
}


def case(**changes: str) -> Case:
    found = row_case(Row(EXPERTS | changes))
    assert isinstance(found, Case), found
    return found


def test_experts_in_racks_have_the_release_s_exchange_and_graphs():
    found = case()
    assert (found.plan.moe_dispatcher, found.plan.overlap_moe_comm, found.plan.cuda_graph_scope) == (
        "hybridep",
        True,
        (),
    )
    assert found.plan.expert_mlp_fusion
    assert any("HybridEP" in each and "one graph" in each for each in found.assumptions)
    before = case(container="nemo:26.02").plan
    assert (before.moe_dispatcher, before.overlap_moe_comm) == ("hybridep", False)
    assert before.cuda_graph_scope == ("attn", "moe_router", "moe_preprocess")


def test_what_a_row_states_stands_and_is_not_told_as_assumed():
    stated = case(container="nemo:26.02", moe_dispatcher="alltoall", cuda_graph="none", moe_a2a_overlap="0")
    assert (stated.plan.moe_dispatcher, stated.plan.cuda_graph) == ("alltoall", False)
    assert not any("HybridEP" in each for each in stated.assumptions)


@pytest.mark.parametrize(
    ("changes", "dispatcher"),
    [
        ({"container": "nemo:25.09"}, "alltoall"),
        (
            {
                "container": "nemo:26.02",
                "model": "gpt-oss-120b",
                "gpus": "64",
                "ep": "64",
                "pp": "1",
                "vp": "",
            },
            "alltoall",
        ),
        ({"container": "Megatron-LM", "date": "2026-06"}, "alltoall"),
        ({"system": "8x B300"}, "hybridep"),
        ({"system": "DGX H100", "precision": "fp8-cs", "container": "nemo:26.02"}, "alltoall"),
        ({"system": "GB300 NVL72", "model": "Qwen/Qwen3-235B-A22B"}, "hybridep"),
        ({"ep": "1", "model": "llama3-70b", "vp": "4"}, "alltoall"),
    ],
)
def test_recipes_are_of_a_release_a_machine_and_a_model_however_written(changes, dispatcher):
    assert case(**changes).plan.moe_dispatcher == dispatcher


def test_a_dispatcher_that_nobody_says_is_told():
    told = "dispatcher of experts not stated: all-to-all"
    assert told in case(container="Megatron-LM", date="2026-06").assumptions
    assert told not in case().assumptions
    assert told not in case(container="Megatron-LM", moe_dispatcher="alltoall").assumptions


def test_an_overlap_that_needs_virtual_stages_is_left_out_without_them():
    found = case(vp="1", pp="8", model="qwen3-30b-a3b", gpus="64", gbs="512", ep="8")
    assert not found.plan.overlap_moe_comm
    assert not found.plan.delay_wgrad


def test_beside_grace_what_does_not_fit_under_fsdp_is_offloaded():
    dense = {"model": "llama3-70b", "gpus": "64", "gbs": "128", "mbs": "2", "seq_len": "8192", "fsdp": "64"}
    layout = {"pp": "1", "vp": "", "ep": "", "precision": "fp8-cs"}
    rack = case(**dense, **layout, system="gb200-nvl72").plan
    assert rack.offload_layers > 0
    assert rack.recompute == "none"
    node = case(**dense, **layout, system="dgx-b200").plan
    assert node.offload_layers == 0


def test_fine_tuning_routes_by_its_data():
    tuned = case(task="sft", container="nemo:26.06")
    assert tuned.workload.moe_imbalance > 1
    assert case(task="sft", moe_force_balance="1").workload.moe_imbalance == 1
    assert case().workload.moe_imbalance == 1


def test_a_source_does_not_take_the_words_of_the_one_it_is_like():
    """vTrain's entry came before, and took rows of every word that Megatron-DeepSpeed's has."""
    found = case(
        container="GPT-NeoX",
        date="2022-04",
        system="a100",
        precision="fp16",
        model="llama3-8b",
        gpus="8",
        ep="",
        pp="1",
        vp="",
    )
    assert found.stack == "deepspeed-22.04"
    assert found.plan.recompute == "full"


@pytest.mark.parametrize(
    ("changes", "checked"),
    [
        ({}, False),
        ({"container": "nemo:25.04"}, True),
        ({"source": "Megatron-Bridge verification card"}, True),
        ({"other_flags": '{"check_for_nan_in_grad": true}'}, True),
        ({"container": "mcore"}, True),
        ({"container": "Megatron-MoE-ModelZoo"}, False),
    ],
)
def test_performance_scripts_check_nothing_for_nan(changes, checked):
    assert case(**changes).plan.check_for_nan_in_grad == checked


def test_gpt3_s_maxima_stay_inside_since_nemo_25_04():
    gpt = {
        "model": "gpt3-175b",
        "system": "dgx-h100",
        "precision": "fp8-delayed",
        "ep": "",
        "vp": "6",
        "tp": "4",
    }
    later, before = (case(**gpt, container=f"nemo:{release}").plan for release in ("25.04", "25.02"))
    assert (later.tp_only_amax_red, before.tp_only_amax_red) == (True, False)


@pytest.mark.parametrize(
    ("container", "precision", "on"),
    [
        ("nemo:25.09", "mxfp8", True),
        ("nemo:25.07", "mxfp8", False),
        ("nemo:25.09", "fp8-cs", False),
        ("Megatron-MoE-ModelZoo", "mxfp8", False),
    ],
)
def test_norms_of_mxfp8_are_cudnns_since_megatron_bridge(container, precision, on):
    assert case(container=container, precision=precision, system="dgx-b200").plan.cudnn_norms == on


@pytest.mark.parametrize(
    ("changes", "word", "told"),
    [
        ({}, "experts in", True),
        ({"model": "llama3-70b", "ep": ""}, "experts in", False),
        ({"model": "nemotronh-56b", "ep": "", "pp": "1", "vp": "1", "tp": "4"}, "graphs of", True),
        ({"precision": "bf16"}, "in 8 bits", False),
        ({"precision": "mxfp8"}, "in 8 bits", True),
    ],
)
def test_recipes_of_experts_and_formats_are_told_where_they_act(changes, word, told):
    found = case(**{"container": "nemo:25.11"} | changes)
    assert any(word in words for words in found.assumptions) == told


@pytest.mark.parametrize(
    ("system", "ep", "dispatcher", "graphs"),
    [
        ("dgx-b200", "16", "alltoall", None),
        ("dgx-gb200-nvl72", "64", "hybridep", ("moe_router", "moe_preprocess")),
        ("dgx-gb300-nvl72", "64", "hybridep", None),
    ],
)
def test_kimi_runs_what_its_recipes_ship(system, ep, dispatcher, graphs):
    """In Megatron-Bridge 0.6.2 none of them overlaps the exchange, fuses experts or has attention in FP8."""
    plan = case(model="kimi-k2", system=system, ep=ep, pp="4", vp="4", gbs="2048").plan
    assert plan.moe_dispatcher == dispatcher
    assert (plan.cuda_graph_scope if plan.cuda_graph else None) == graphs
    assert (plan.overlap_moe_comm, plan.expert_mlp_fusion, plan.fp8_attention) == (False, False, False)
