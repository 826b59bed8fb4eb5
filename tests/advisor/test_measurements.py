"""Rows of published measurements become plans."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from published_rows import MIXTURE, MPT, NEMO, case

from advisor.measurements.plans import NATURAL_SPREAD, natural_imbalance


def test_a_bridge_row():
    found = case(NEMO)
    assert (found.plan.tp, found.plan.pp, found.plan.vpp, found.plan.dp) == (4, 8, 5, 2)
    assert found.plan.tp_comm_overlap
    assert found.plan.fp8_param_gather
    assert not found.plan.grad_reduce_in_fp32
    assert found.measured_step_time_s == pytest.approx(128 * 8192 / (64 * 1619))
    assert found.stack == "nemo-25.09"
    assert found.assumptions


def test_two_times_that_differ_are_told_and_the_step_time_is_compared():
    """1619 tokens/s of 64 GPUs are a step of 10.12 s."""
    for seconds, told in (("10.1", False), ("14", True)):
        found = case(NEMO, step_time_s=seconds)
        assert found.measured_step_time_s == float(seconds)
        assert any("tokens_per_sec_per_gpu 10.12 s" in words for words in found.assumptions) == told


def test_fsdp_rows():
    plan = case(MPT).plan
    assert plan.fsdp
    assert plan.zero_stage == 3
    assert plan.recompute_num_layers == 0
    assert case(MPT, fsdp="4").plan.fsdp_shard_size == 4


def test_layers_of_virtual_stages_become_layers_of_the_stage():
    assert case(NEMO, recompute_granularity="full", recompute_num_layers="1").plan.recompute_num_layers == 5


def test_126_layers_count_embedding_and_loss():
    plan = case(NEMO, model="llama3.1-405b", gpus="128", gbs="64", tp="8", cp="2", vp="8").plan
    assert plan.account_embedding
    assert plan.account_loss


def test_what_of_a_model_is_not_counted_is_told():
    found = case(NEMO, model="qwen3.6-27b", tp="2", pp="1", vp="1")
    assert "not counted of the model: the encoder of images" in found.assumptions
    assert not any("not counted" in words for words in case(NEMO).assumptions)


def test_overrides_change_the_model():
    assert case(NEMO, model_overrides='{"num_layers": 40}').model.num_layers == 40


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [("fsdp", "maybe", "fsdp"), ("tp_comm_overlap", "userbuffers?", "tp_comm_overlap")],
)
def test_a_switch_that_is_neither_on_nor_off_counts_as_not_said_and_is_told(name, text, field):
    found, unsaid = (case(NEMO, **{name: value}) for value in (text, ""))
    assert getattr(found.plan, field) == getattr(unsaid.plan, field)
    assert f"{name} {text!r} is neither on nor off: taken as not said" in found.assumptions
    assert not any("neither on nor off" in words for words in unsaid.assumptions)


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("64", True),
        ("ZeRO-3", True),
        ("HSDP", True),
        ("full_shard", True),
        ("ddp", False),
        ("zero-1", False),
        ("0.0", False),
    ],
)
def test_sharding_in_words(text, on):
    found = case(NEMO, fsdp=text)
    assert found.plan.fsdp is on
    assert not any("neither" in words for words in found.assumptions)


@pytest.mark.parametrize(
    ("precision", "layers", "ends"),
    [("nvfp4(bf16 tail)", "27-31", 2), ("nvfp4(bf16 tail)", "28-31", 2), ("mxfp8", "27-31", 0)],
)
def test_layers_that_an_nvfp4_run_keeps_in_16_bits_are_shared_out_to_both_ends(precision, layers, ends):
    titan = {
        "model": "llama3-8b",
        "system": "b200-4gpu",
        "gpus": "4",
        "gbs": "128",
        "mbs": "32",
        "seq_len": "2048",
    }
    flags = json.dumps({"nvfp4_bf16_layers": layers, "torch_compile": True})
    found = case(
        titan
        | {"id": "run", "source": "torchtitan nvfp4.md (B200)", "fsdp": "1", "dp": "4", "step_time_s": "2.2"},
        precision=precision,
        other_flags=flags,
    )
    assert found.plan.bf16_end_layers == ends
    assert found.cluster.gpu.name == "gb200"


@pytest.mark.parametrize("gathers", [True, False])
def test_a_gather_in_8_bits_is_read_under_torchtitans_name(gathers):
    flags = json.dumps({"fsdp_float8_all_gather": gathers})
    row = {
        "source": "torchtitan benchmarks",
        "container": "",
        "fsdp": "1",
        "precision": "fp8-tensorwise(torchao)",
    }
    plan = case(NEMO | {"fp8_param_gather": ""}, **row, other_flags=flags).plan
    assert plan.precision == "fp8-cs"
    assert plan.fp8_param_gather == gathers


def test_a_bias_steered_by_load_keeps_pretraining_even_and_nothing_else():
    natural = {
        "gpus": "16",
        "tp": "1",
        "pp": "1",
        "vp": "",
        "ep": "8",
        "gbs": "1024",
        "moe_force_balance": "0",
    }
    loads = {
        (model, task): case(NEMO, **natural, model=model, task=task).workload.moe_imbalance
        for model in ("moonlight-16b-a3b", "qwen3-30b-a3b")
        for task in ("pretrain", "sft")
    }
    steered = loads.pop(("moonlight-16b-a3b", "pretrain"))
    assert 1 < steered < 1.1 < min(loads.values())
    assert len({loads[("qwen3-30b-a3b", task)] for task in ("pretrain", "sft")}) == 1


def test_loads_that_nobody_makes_alike_differ_less_where_a_rank_has_more_experts():
    assert natural_imbalance(128, 8, 1) == 1
    loads = [natural_imbalance(128, 8, ranks) for ranks in (2, 4, 8, 16, 32)]
    assert loads == sorted(loads)
    assert loads[2] == pytest.approx(1.75, abs=0.01)
    assert natural_imbalance(128, 4, 8) > natural_imbalance(128, 8, 8)


@pytest.mark.parametrize(
    ("experts", "chosen", "ranks", "most"), [(8, 8, 8, 1), (8, 4, 8, 2), (8, 7, 2, 8 / 7)]
)
def test_no_rank_has_a_token_more_often_than_it_can(experts, chosen, ranks, most):
    assert 1 <= natural_imbalance(experts, chosen, ranks) <= most + 0.005


def test_the_largest_of_some_normal_numbers_is_as_far_out_as_is_taken():
    random = np.random.default_rng(1)
    deviation = NATURAL_SPREAD * math.sqrt((128 / 8 - 1) / 16)
    drawn = random.normal(size=(20_000, 8)).max(axis=1).mean() * deviation
    assert natural_imbalance(128, 8, 8) - 1 == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize(
    ("written", "optimizer"),
    [
        ("dist_muon", "muon"),
        ("muon", "muon"),
        ("adam", "adam"),
        ("distributed_fused_adam", "adam"),
        ("", "adam"),
    ],
)
def test_the_optimizer_of_a_row(written, optimizer):
    assert case(NEMO, optimizer=written).plan.optimizer == optimizer


def test_replicas_of_shards_that_share_the_optimizer_state():
    flags = '{"num_distributed_optimizer_instances": 4, "outer_dp_sharding_strategy": "optim"}'
    plan = case(NEMO, fsdp="1", pp="1", vp="1", other_flags=flags).plan
    assert (plan.sharding_instances, plan.outer_dp_sharding_strategy) == (4, "optim")
    assert case(NEMO, fsdp="1", pp="1", vp="1").plan.outer_dp_sharding_strategy == "no_shard"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"precision": "FP8_CS"}, {"precision": "fp8-cs"}),
        ({"precision": "fp8-rowwise(torchao)"}, {"precision": "fp8-sc"}),
        ({"precision": "fp8-delayed (TE 2.9)"}, {"precision": "fp8-delayed"}),
        ({"precision": "fp8_mx", "system": "gb200"}, {"precision": "mxfp8", "system": "dgx-gb200-nvl72"}),
        ({"system": "h100"}, {"system": "dgx-h100"}),
        ({"task": "PEFT"}, {"task": "lora"}),
        ({"task": ""}, {"task": "pretrain"}),
        ({"sequence_parallel": "False"}, {"sequence_parallel": "0"}),
        ({"tp_comm_overlap": "off"}, {"tp_comm_overlap": "0"}),
        ({"fsdp": "no"}, {"fsdp": "0"}),
        ({"fsdp": "True", "pp": "1", "vp": "1"}, {"fsdp": "1", "pp": "1", "vp": "1"}),
        ({"cuda_graph": "false"}, {"cuda_graph": "0"}),
        (MIXTURE | {"moe_force_balance": "False"}, MIXTURE | {"moe_force_balance": "0"}),
    ],
)
def test_other_spellings_mean_the_same_run(written, read):
    ours, usual = case(NEMO, **written), case(NEMO, **read)
    assert (ours.plan, ours.workload, ours.cluster) == (usual.plan, usual.workload, usual.cluster)
