"""Rows of published measurements become plans, or are skipped with a reason."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.measurement_plans import NATURAL_SPREAD, natural_imbalance
from advisor.measurements import Case, Row, Skip, read_rows, row_case, stack_of

NEMO = {
    "id": "bridge-70b",
    "source": "Megatron-Bridge perf summary 25.09",
    "container": "nemo:25.09",
    "task": "pretrain",
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": "64",
    "precision": "fp8-cs",
    "gbs": "128",
    "mbs": "1",
    "seq_len": "8192",
    "fsdp": "0",
    "tp": "4",
    "pp": "8",
    "cp": "1",
    "vp": "5",
    "tokens_per_sec_per_gpu": "1619",
    "tp_comm_overlap": "1",
    "sequence_parallel": "1",
    "fp8_param_gather": "1",
    "grad_reduce_in_fp32": "0",
}
MIXTURE = {"model": "qwen3-30b-a3b", "gpus": "8", "tp": "1", "pp": "1", "ep": "8", "vp": "1"}
VTRAIN = {
    "id": "vtrain",
    "source": "vTrain ground truth (multi)",
    "container": "Megatron-DeepSpeed (2023)",
    "model": "gpt-h8192-l48-a64",
    "system": "a100-80g-cluster",
    "gpus": "512",
    "precision": "fp16",
    "gbs": "1536",
    "mbs": "4",
    "seq_len": "2048",
    "fsdp": "0",
    "tp": "8",
    "pp": "8",
    "step_time_s": "20.0",
}
MPT = {
    "id": "mpt",
    "source": "llm-foundry MPT benchmarks",
    "container": "MosaicML llm-foundry (FSDP1, flash-attn 2)",
    "model": "mpt-7b",
    "system": "a100-40g (MosaicML)",
    "gpus": "8",
    "precision": "bf16",
    "gbs": "64",
    "mbs": "8",
    "seq_len": "2048",
    "fsdp": "1",
    "tp": "1",
    "pp": "1",
    "recompute_granularity": "full",
    "recompute_num_layers": "all",
    "step_time_s": "10",
}


def case(values, **changes) -> Case:
    found = row_case(Row(values | changes))
    assert isinstance(found, Case), found
    return found


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


def test_old_stacks_write_scores_and_do_not_overlap():
    plan = case(VTRAIN).plan
    assert plan.attention_backend == "unfused"
    assert plan.recompute == "full"
    assert not plan.overlap_grad_reduce
    assert not plan.sequence_parallel


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


def test_overrides_change_the_model():
    assert case(NEMO, model_overrides='{"num_layers": 40}').model.num_layers == 40


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "mixtral-9x9b"}, "mixtral-9x9b"),
        ({"model": "mixtral-8x7b", "ep": "64", "etp": "4"}, "pp x ep x etp"),
        ({"pp_layout": "Ett|x"}, "not a layout"),
        ({"tp": "", "pp": "", "fsdp": ""}, "layout"),
        ({"tokens_per_sec_per_gpu": ""}, "step time"),
        ({"gbs": "127"}, "127"),
        ({"system": "abacus"}, "abacus"),
        ({"precision": "int3"}, "int3"),
        ({"tp": "3"}, "not a multiple"),
        ({"seq_len": "-4"}, "seq_len '-4' is not a whole number above 0"),
        ({"gbs": "-128"}, "gbs '-128' is not a whole number above 0"),
        ({"tp": "1.5"}, "tp '1.5' is not a whole number above 0"),
        (
            {"tokens_per_sec_per_gpu": "", "step_time": "9.5"},
            "step_time_s and tokens_per_sec_per_gpu hold no number. Is column 'step_time' meant as step_time_s?",
        ),
        ({"step_time_s": "abc"}, "step_time_s 'abc' is not a number above 0"),
        ({"step_time_s": "-4"}, "step_time_s '-4' is not a number above 0"),
        ({"gbs": ""}, "gbs not stated"),
        ({"system": ""}, "no system"),
        ({"model_overrides": "num_layers: 40"}, "model_overrides"),
        ({"other_flags": "[1]"}, "other_flags"),
    ],
)
def test_rows_that_cannot_be_expressed_say_why(changes, words):
    found = row_case(Row(NEMO | changes))
    assert isinstance(found, Skip)
    assert words in found.reason
    assert found.id == "bridge-70b"


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


def test_nemo_1_left_the_loss_unfused():
    old = case(NEMO, source="NeMo docs performance", container="nemo:24.07")
    assert not old.plan.fused_cross_entropy
    assert any("loss not fused" in words for words in old.assumptions)
    assert case(NEMO, source="NeMo docs performance", container="nemo:24.09").plan.fused_cross_entropy
    # A release that nobody names counts as the newest.
    assert case(NEMO, source="somebody's blog", container="nemo:main").plan.fused_cross_entropy


# A row of NeMo 2 of which only the layout is printed.
NEMO2 = {name: text for name, text in NEMO.items() if name not in ("tp_comm_overlap", "vp")} | {
    "source": "DGXC benchmarking recipes 25.02",
    "container": "nemo:24.12",
    "precision": "bf16",
}


def test_adapters_of_nemo_2_have_no_overlap_and_no_sharded_optimizer():
    plan = case(NEMO2, task="lora", tp="2", pp="4", seq_len="4096").plan
    off = (
        plan.tp_comm_overlap,
        plan.overlap_grad_reduce,
        plan.overlap_param_gather,
        plan.fused_cross_entropy,
    )
    assert not any(off)
    assert plan.zero_stage == 0
    assert not plan.overlap_p2p
    assert case(NEMO2, task="lora", tp="2", pp="4", seq_len="4096", container="nemo:25.02").plan.overlap_p2p
    for other in ({"task": "sft"}, {"task": "lora", "container": "nemo:26.06"}):
        assert case(NEMO2, tp="2", pp="4", **other).plan.tp_comm_overlap
    stated = case(NEMO2, task="lora", tp="2", pp="4", tp_comm_overlap="1", overlap_grad_reduce="1").plan
    assert stated.tp_comm_overlap
    assert stated.overlap_grad_reduce


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"container": "nemo:25.02"}, 1.0),
        ({"container": "nemo:25.02", "moe_token_drop": "dropless"}, 0.0),
        ({"container": "nemo:25.02", "moe_token_drop": "cf=1.5"}, 1.5),
        ({"container": "nemo:25.02", "model": "qwen3-30b-a3b"}, 0.0),
        ({"container": "nemo:24.05"}, 0.0),
    ],
)
def test_recipes_of_nemo_2_drop_tokens_where_their_rows_do_not_say(changes, factor):
    row = NEMO2 | {"model": "mixtral-8x7b", "tp": "1", "pp": "1", "ep": "8"} | changes
    assert case(row).plan.moe_capacity_factor == factor


def test_nemos_first_deepseek_recipe_is_read_as_it_came():
    row = NEMO2 | {"model": "deepseek-v3", "tp": "2", "pp": "4", "ep": "64", "gpus": "256", "gbs": "2048"}
    first = case(row, container="nemo:25.04.01", system="dgx-gb200-nvl72")
    plan = first.plan
    assert (plan.recompute, plan.rope_fusion, plan.attention_backend) == ("full", False, "unfused")
    assert not plan.tp_comm_overlap
    assert any("NeMo 2.3's DeepSeek-V3" in words for words in first.assumptions)
    assert case(row, container="nemo:25.04.01").plan.attention_backend == "fused"  # Hopper
    later = case(row, container="nemo:25.09", system="dgx-gb200-nvl72").plan
    assert (later.rope_fusion, later.attention_backend) == (True, "fused")
    assert later.recompute != "full"


def test_rows_without_kernels_of_others_run_pytorchs():
    """NeMo AutoModel's table says "-" where nothing but PyTorch's own kernels ran."""
    plan = case(NEMO, source="NeMo AutoModel performance summary", other_flags='{"kernels": "-"}').plan
    assert not any((plan.rope_fusion, plan.bias_activation_fusion, plan.bias_dropout_fusion))
    plan = case(NEMO, source="NeMo AutoModel performance summary", other_flags='{"kernels": "TE"}').plan
    assert plan.rope_fusion
    assert plan.bias_dropout_fusion
    # Its dense MLPs compute activation and gate apart with Transformer Engine too.
    assert not plan.bias_activation_fusion


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


@pytest.mark.parametrize(("date", "fused"), [("2024-12", False), ("2025-06", True), ("2026", True)])
def test_torchtitan_compiles_its_loss_since_2025(date, fused):
    flags = json.dumps({"torch_compile": True})
    row = case(NEMO, source="torchtitan benchmarks", container="", date=date, fsdp="1", other_flags=flags)
    assert row.plan.fused_cross_entropy == fused


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


@pytest.mark.parametrize(("fsdp", "stated", "wide"), [("0", "", True), ("1", "", False), ("1", "1", True)])
def test_megatrons_fsdp_reduces_gradients_in_16_bits_unless_a_row_says_otherwise(fsdp, stated, wide):
    row = {"source": "Megatron-MoE-ModelZoo best practice", "container": "Megatron-LM dev", "fsdp": fsdp}
    plan = case(NEMO | {"pp": "1", "vp": ""}, **row, grad_reduce_in_fp32=stated).plan
    assert plan.fsdp == (fsdp == "1")
    assert plan.grad_reduce_in_fp32 == wide


def test_runs_in_fp16_reduced_gradients_in_fp16():
    """Megatron-LM before Megatron-Core: FP32 only for bfloat16, or where asked for."""
    for source in ("Narayanan 2021 Table 1", "Korthikanti 2022 Table 5"):
        assert not case(VTRAIN, source=source, container="").plan.grad_reduce_in_fp32


def test_runs_of_a_recipe_have_its_graphs_and_formats_where_they_say_nothing():
    experts = {
        "model": "qwen3-30b-a3b",
        "gpus": "16",
        "gbs": "1024",
        "seq_len": "4096",
        "tp": "1",
        "pp": "1",
        "vp": "",
    }
    source = {"source": "Megatron-Bridge skills A/B measurements", "container": "main"}
    unsaid, stated = (case(NEMO, **experts, **source, cuda_graph=text) for text in ("", "none"))
    assert unsaid.plan.cuda_graph_scope == ("moe_router", "moe_preprocess")
    assert unsaid.stack == "nemo-26.06"
    assert not stated.plan.cuda_graph
    assert case(NEMO, **source, fp8_param_gather="").plan.fp8_param_gather
    assert not case(NEMO, **source, fp8_param_gather="0").plan.fp8_param_gather


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


LAUNCHER = (
    "interleaving per launcher conf (llama2-13b VP10, llama3-70b VP5, gpt3-175b VP12 in later revisions)"
)


@pytest.mark.parametrize(
    ("changes", "vpp"),
    [
        ({"notes": LAUNCHER}, 5),
        ({"notes": LAUNCHER, "vp": "2"}, 2),
        ({"notes": LAUNCHER, "model": "gpt3-175b"}, 1),
        ({"notes": LAUNCHER, "model": "llama2-7b"}, 1),
        # 80 layers over 32 stages.
        ({"notes": LAUNCHER, "pp": "32", "tp": "1", "gpus": "32", "gbs": "32"}, 1),
        ({"recipe_match": "partial: mbs row=2 recipe=1, vp row=1 recipe=5"}, 5),
        ({"recipe_match": "partial: vp row=3 recipe=1"}, 1),
        ({"source": "Megatron-LM README 2024 weak scaling (image)", "container": "Megatron-Core 0.8"}, 10),
        ({}, 1),
    ],
)
def test_virtual_stages_that_a_table_leaves_out(changes, vpp):
    found = case(NEMO, **{"vp": ""} | changes)
    assert found.plan.vpp == vpp
    named = any("virtual stages" in words for words in found.assumptions)
    assert named == (vpp > 1 and "vp" not in changes)


def test_resolved_recipes_name_what_is_on():
    experts = {"model": "qwen3-30b-a3b", "tp": "1", "pp": "1", "ep": "8", "gpus": "8", "seq_len": "4096"}
    recipe = {"recipe_key": "v0.5.0:qwen3", "recompute_granularity": "selective"}
    named = '{"apply_rope_fusion": true, "moe_router_fusion": true, "fp8_output_proj": true}'
    bare, full = (case(NEMO, **experts, **recipe, other_flags=flags).plan for flags in ("{}", named))
    assert (bare.rope_fusion, bare.moe_router_fusion, bare.fp8_output) == (False, False, False)
    assert (full.rope_fusion, full.moe_router_fusion, full.fp8_output) == (True, True, True)
    # An empty list of modules recomputes nothing; without a recipe nobody knows that it is empty.
    assert full.recompute == "none"
    unsaid = case(NEMO, **experts, recompute_granularity="selective", other_flags="{}").plan
    assert (unsaid.recompute, unsaid.recompute_modules) == ("selective", ("core_attn",))
    assert unsaid.rope_fusion
    assert unsaid.moe_router_fusion


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


def test_stacks():
    assert stack_of(Row(VTRAIN)) == "deepspeed-23.06"
    assert stack_of(Row(MPT)) == "llm_foundry-23.11"
    assert stack_of(Row({"source": "somebody's blog"})).startswith("mcore-")


@pytest.mark.parametrize(
    ("container", "date", "stack", "attention"),
    [
        ("Megatron-DeepSpeed (2022)", "", "deepspeed-22.06", "unfused"),
        ("megatron-deepspeed", "2021-12", "deepspeed-21.12", "unfused"),
        ("Megatron-DeepSpeed", "2024-05", "mcore-24.05", "fused"),
        ("Megatron-LM 2021", "", "megatron-21.06", "unfused"),
        ("Megatron-LM", "2022-11", "megatron-22.11", "unfused"),
        ("Megatron-LM", "2024-11", "mcore-24.11", "fused"),
        ("PyTorch FSDP, torch 2.3", "2024-03", "torchtitan-24.03", "fused"),
        ("MaxText", "2025-03", "jax-25.01", "fused"),
        ("NVIDIA NEMO 25.04", "", "nemo-25.04", "fused"),
        ("Megatron-LM (Nemotron)", "2024-05", "mcore-24.05", "fused"),
    ],
)
def test_software_is_known_by_its_name_where_nothing_is_known_of_the_source(
    container, date, stack, attention
):
    row = VTRAIN | {"source": "somebody's paper", "container": container, "date": date}
    found = case(row)
    assert (found.stack, found.plan.attention_backend) == (stack, attention)


@pytest.mark.parametrize(
    ("model", "task", "cp", "flags", "comm"),
    [
        ("gpt-oss-20b", "pretrain", "2", {}, "a2a"),
        ("gpt-oss-20b", "pretrain", "1", {}, "p2p"),
        ("gpt-oss-20b", "pretrain", "2", {"cp_comm_type": "p2p"}, "p2p"),
        ("qwen3-30b-a3b", "sft", "2", {}, "p2p"),
        ("nemotron3-nano-4b", "sft", "2", {}, "a2a"),
        ("nemotron3-nano-4b", "pretrain", "2", {}, "p2p"),
    ],
)
def test_heads_are_exchanged_where_sinks_or_a_recipe_want_it(model, task, cp, flags, comm):
    layout = {
        "gpus": "8",
        "tp": "1",
        "pp": "1",
        "vp": "",
        "gbs": "64",
        "precision": "bf16",
        "seq_len": "32768",
    }
    row = layout | {"model": model, "task": task, "cp": cp, "other_flags": json.dumps(flags), "ep": ""}
    assert case(NEMO, **row, container="nemo:26.06").plan.cp_comm_type == comm


@pytest.mark.parametrize(
    ("source", "container", "recipe", "stack"),
    [
        (
            "Megatron-Bridge verification card",
            "pytorch:26.04-py3",
            "HEAD:moonlight_16b_sft_8k_config",
            "nemo-26.08",
        ),
        ("Megatron-Bridge verification card", "nemo:26.10", "HEAD:moonlight_16b_sft_8k_config", "nemo-26.10"),
        ("Megatron-Bridge verification card", "nemo:26.06", "", "nemo-26.06"),
        (
            "Megatron-Bridge perf summary 26.04",
            "nemo:26.04",
            "v0.4.0:moonlight_16b_sft_8k_config",
            "nemo-26.04",
        ),
    ],
)
def test_cards_of_a_repository_head_have_the_release_that_it_became(source, container, recipe, stack):
    row = Row({"source": source, "container": container, "recipe_key": recipe})
    assert stack_of(row) == stack


@given(st.dictionaries(st.sampled_from(list(NEMO)), st.text(max_size=12)))
def test_no_row_ends_in_a_traceback(changes):
    assert isinstance(row_case(Row(NEMO | changes)), Case | Skip)


def test_reading(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\ufeff" + ",".join(NEMO) + "\n" + ",".join(NEMO.values()) + "\n", encoding="utf-8")
    assert case(read_rows(path)[0].values).plan.tp == 4


@pytest.mark.parametrize(("sign", "name"), [(";", ";"), ("\t", "tabs"), ("|", "|")])
def test_another_separator_is_named(tmp_path, sign, name):
    path = tmp_path / "rows.csv"
    path.write_text(sign.join(NEMO) + "\n" + sign.join(NEMO.values()) + "\n", encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read_rows(path)
    assert f"separated by {name}: save it with commas" in str(caught.value)


@pytest.mark.parametrize("header", ["model,gpus", "model", "a;b,model", "model;x,gpus"])
def test_a_table_with_commas_is_told_what_it_lacks(tmp_path, header):
    """It was told to save with commas what had them: the header was looked at between them."""
    path = tmp_path / "rows.csv"
    path.write_text(header + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.csv lacks the columns id, .*Columns needed: id, model, "):
        read_rows(path)


@pytest.mark.parametrize("text", ["", "\ufeff", "\n\n"])
def test_an_empty_table_is_told_as_what_it_is(tmp_path, text):
    """It was told that it lacks columns."""
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"rows\.csv is empty\. Name a CSV file with a header line, columns id, "
    ):
        read_rows(path)


def test_a_row_with_more_cells_than_the_header_is_skipped(tmp_path):
    """An unquoted 8,192 shifted every cell behind it, and the row was predicted so."""
    path = tmp_path / "rows.csv"
    shifted = ",".join((NEMO | {"seq_len": "8,192"}).values())
    short = ",".join(list(NEMO.values())[:-1])
    path.write_text("\n".join([",".join(NEMO), shifted, short]) + "\n", encoding="utf-8")
    first, second = read_rows(path)
    found = row_case(first)
    assert isinstance(found, Skip)
    assert found.reason.startswith(f"{len(NEMO) + 1} cells, {len(NEMO)} columns")
    assert isinstance(row_case(second), Case)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", bytes(range(256))])
def test_broken_tables_end_in_one_line(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.csv") as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")
