"""What the software of a published run did where its row says nothing: kernels, overlaps, losses, graphs."""

from __future__ import annotations

import json

import pytest
from published_rows import NEMO, VTRAIN, case


def test_old_stacks_write_scores_and_do_not_overlap():
    plan = case(VTRAIN).plan
    assert plan.attention_backend == "unfused"
    assert plan.recompute == "full"
    assert not plan.overlap_grad_reduce
    assert not plan.sequence_parallel


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


@pytest.mark.parametrize(("date", "fused"), [("2024-12", False), ("2025-06", True), ("2026", True)])
def test_torchtitan_compiles_its_loss_since_2025(date, fused):
    flags = json.dumps({"torch_compile": True})
    row = case(NEMO, source="torchtitan benchmarks", container="", date=date, fsdp="1", other_flags=flags)
    assert row.plan.fused_cross_entropy == fused


@pytest.mark.parametrize(
    ("words", "recompute", "layers"),
    [("selective layer", "full", 16), ("selective op", "selective", 0), ("", "selective", 0)],
)
def test_selective_recompute_by_layer_is_of_every_second_one_as_a_whole(words, recompute, layers):
    """torchtitan 0.1.0, config_manager.py: selective_ac_option is "2" where nothing is said."""
    said = {"recompute_granularity": "selective", "recompute_modules": words, "fsdp": "1"}
    row = NEMO | {"source": "torchtitan docs", "container": "", "date": "2024-08", "pp": "1", "vp": ""}
    found = case(row, model="llama3-8b", **said).plan
    assert (found.recompute, found.recompute_num_layers) == (recompute, layers)
    assert ("ops" in found.recompute_modules) == (recompute == "selective")


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
    ("recipe", "flags", "size"),
    [
        ("v0.5.0:gpt_oss", "{}", 64_000_000),  # no overlap set up: Megatron-Core's, by its 64 ranks
        ("v0.5.0:llama3", '{"bucket_size": 134217728}', 0),  # as NVIDIA's recipes have it
        ("v0.5.0:llama3", '{"bucket_size": 768000000}', 768_000_000),
        ("", "{}", 0),
    ],
)
def test_buckets_of_a_resolved_recipe_that_says_none_are_megatron_cores(recipe, flags, size):
    run = {"tp": "1", "pp": "1", "gpus": "64", "gbs": "128", "dp": "64"}
    assert case(NEMO, **run, recipe_key=recipe, other_flags=flags).plan.bucket_size == size


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


CARD = NEMO | {"source": "Megatron-Bridge verification card", "container": "nemo:26.06", "precision": "bf16"}


@pytest.mark.parametrize("said", ["te", "native"])
def test_whose_fused_loss_runs_is_as_the_row_says(said):
    """11 of 32 cards run Megatron-Core's own, and were told with Transformer Engine's."""
    told = case(CARD, other_flags=json.dumps({"cross_entropy_fusion_impl": said}))
    assert told.plan.cross_entropy_fusion_impl == said
    unsaid = case(CARD, other_flags=json.dumps({"cross_entropy_fusion_impl": "fast"}))
    assert unsaid.plan.cross_entropy_fusion_impl == "te"


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        ("HEAD:llama3_8b_peft_1gpu_h100_bf16_config", False),
        ("HEAD:llama3_8b_sft_8gpu_h100_bf16_config", True),
        ("HEAD:moonlight_16b_sft_8k_config", False),
        ("HEAD:moonlight_16b_sft_8gpu_h100_bf16_8k_config", False),
        ("HEAD:moonlight_16b_pretrain_16gpu_h100_bf16_config", True),
        ("", True),
    ],
)
def test_recipes_that_do_not_fuse_the_loss_are_known_by_their_function(function, fused):
    flags = json.dumps({"cross_entropy_fusion_impl": "te"})
    assert case(CARD, recipe_key=function, other_flags=flags).plan.fused_cross_entropy == fused


@pytest.mark.parametrize(
    ("source", "container", "loss", "vboost"),
    [
        ("NeMo docs performance 25.04", "nemo:25.04", "te", True),
        ("NeMo docs performance 25.07", "nemo:25.07", "te", True),
        (
            "NeMo docs performance 25.02",
            "nemo:25.02",
            "te",
            False,
        ),  # of its release only Megatron-Core's exists
        ("DGXC benchmarking recipes 25.05", "nemo:25.04.01", "native", False),
        ("Megatron-Bridge perf summary 25.09", "nemo:25.09", "te", False),
    ],
)
def test_nemos_own_page_ran_its_performance_scripts(source, container, loss, vboost):
    plan = case(NEMO, source=source, container=container).plan
    assert (plan.cross_entropy_fusion_impl, plan.vboost) == (loss, vboost)


def test_nemos_performance_scripts_keep_mxfp8_parameters_and_gather_before_the_step():
    page = NEMO | {"source": "NeMo docs performance 25.07", "container": "nemo:25.07"}
    plan = case(page, precision="mxfp8", fp8_param_gather="", system="dgx-b200").plan
    assert (plan.fp8_param_gather, plan.reuse_grad_buf, plan.overlap_param_gather) == (True, True, False)
    assert case(page, precision="fp8-cs").plan.overlap_param_gather


def test_nemos_performance_scripts_under_fsdp_do_not_fuse_the_accumulation():
    page = NEMO | {
        "source": "NeMo docs performance 25.07",
        "container": "nemo:25.07",
        "tp": "1",
        "pp": "1",
        "vp": "1",
    }
    sharded = case(page, fsdp="1").plan
    assert (sharded.fsdp, sharded.gradient_accumulation_fusion) == (True, False)
    assert case(page).plan.gradient_accumulation_fusion


@pytest.mark.parametrize(("flags", "fused"), [({}, False), ({"gradient_accumulation_fusion": True}, True)])
def test_resolved_recipes_switch_fused_accumulation_off_under_fsdp(flags, fused):
    row = NEMO | {
        "source": "Megatron-Bridge perf summary 26.04",
        "container": "nemo:26.04",
        "recipe_key": "v0.4.0:llama3_70b_pretrain_config_gb200_fp8_cs_v2",
        "other_flags": json.dumps({"apply_rope_fusion": True} | flags),
    }
    sharded = case(row, fsdp="64", tp="1", pp="1", vp="1").plan
    assert (sharded.fsdp, sharded.gradient_accumulation_fusion) == (True, fused)
    assert case(row).plan.gradient_accumulation_fusion


@pytest.mark.parametrize("said", [True, False])
def test_resolved_recipes_without_fused_experts_and_fp8_attention_have_neither(said):
    """Those of DeepSeek-V3 on GB200 name one and not the other, whatever most recipes of the release have."""
    row = NEMO | {
        "source": "Megatron-Bridge perf summary 26.06",
        "container": "nemo:26.06",
        "model": "deepseek-v3",
        "system": "dgx-gb200-nvl72",
        "precision": "mxfp8",
        "ep": "8",
    }
    unsaid = case(row).plan
    assert (unsaid.expert_mlp_fusion, unsaid.fp8_attention) == (True, True)
    names = ("use_transformer_engine_op_fuser", "fp8_dot_product_attention")
    flags = {"apply_rope_fusion": True} | dict.fromkeys(names * said, True)
    resolved = case(row, recipe_key="v0.5.0:deepseek_v3", other_flags=json.dumps(flags)).plan
    assert (resolved.expert_mlp_fusion, resolved.fp8_attention) == (said, said)


@pytest.mark.parametrize(("container", "kept"), [("nemo:26.02", False), ("nemo:26.04", True)])
def test_recipes_in_nvfp4_keep_their_parameters_so_since_26_04(container, kept):
    """Whatever the column of FP8 parameters says."""
    row = NEMO | {"precision": "nvfp4", "system": "dgx-b200", "container": container, "fp8_param_gather": "0"}
    assert case(row, source="Megatron-Bridge perf summary").plan.fp8_param_gather == kept
    alone = {"fsdp": "1", "tp": "1", "pp": "1", "vp": "1"}
    assert not case(row, source="Megatron-Bridge perf summary", **alone).plan.fp8_param_gather


@pytest.mark.parametrize(
    ("step", "router", "bound"), [(2, False, False), (3, True, False), (7, True, False), (8, True, True)]
)
def test_an_optimisation_history_has_what_its_steps_had_by_then(step, router, bound):
    """Each row of a source that prints its changes one by one runs what came up to it; other notes say nothing."""
    row = {
        "source": "Megatron-LM DeepSeek-V3 GB200 optimisation history",
        "container": "Megatron-LM dev 2025-10",
        "model": "deepseek-v3",
        "system": "dgx-gb200-nvl72",
        "ep": "8",
    }
    plan = case(NEMO, **row, notes=f"step {step} of 13 of a cumulative optimisation history").plan
    assert (plan.moe_router_fusion, plan.cpu_binding) == (router, bound)
    plan = case(NEMO, **row, notes=f"mean of step {step} of 13").plan
    assert (plan.moe_router_fusion, plan.cpu_binding) == (True, True)
