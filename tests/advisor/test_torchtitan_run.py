"""The run that a job file means: the same plan as of a row of measurements, options over it, and what is told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from torchtitan_jobs import EXPERTS, FLOAT8, SEVENTY, P, case, toml

from advisor.case import Case, read_case
from advisor.cli import advisor
from advisor.measurements.plans import row_plan
from advisor.measurements.rows import Row
from advisor.rules import violations
from costmodel.model_registry import load_model
from costmodel.plan import Plan

GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"
ROW = {
    "source": "torchtitan somewhere",
    "model": "llama3-70b",
    "precision": "bf16",
    "fsdp": "1",
    "seq_len": "8192",
}


@pytest.mark.parametrize(
    ("date", "said", "columns", "flags"),
    [
        ("2024-12", {}, {"gbs": "64", "mbs": "2", "dp": "32", "recompute_granularity": "selective"}, {}),
        (
            "2025-06",
            FLOAT8
            | {
                f"{P}tensor_parallel_degree": 8,
                f"{P}enable_async_tensor_parallel": True,
                "compile.enable": True,
            }
            | {"activation_checkpoint.mode": "full"},
            {"gbs": "8", "mbs": "2", "tp": "8", "tp_comm_overlap": "1", "precision": "fp8-tensorwise"}
            | {"recompute_granularity": "full"},
            {"torch_compile": True},
        ),
        (
            "2025-06",
            {f"{P}pipeline_parallel_degree": 4, f"{P}pipeline_parallel_schedule": "Interleaved1F1B"}
            | {
                "training.local_batch_size": 16,
                f"{P}pipeline_parallel_microbatch_size": 2,
                "compile.enable": True,
            },
            {"gbs": "128", "mbs": "2", "pp": "4", "vp": "2", "recompute_granularity": "selective"}
            | {
                "pp_layout": "E"
                + "t" * 10
                + "|"
                + "|".join(["t" * 11, *["t" * 10] * 5])
                + "|"
                + "t" * 9
                + "L"
            },
            {"torch_compile": True},
        ),
        (
            "2026-06",
            FLOAT8
            | {"quantize.linear.float8.recipe_name": "rowwise", f"{P}context_parallel_degree": 4}
            | {"activation_checkpoint.mode": "none", "training.local_batch_size": 1, "compile.enable": True},
            {"gbs": "8", "mbs": "1", "cp": "4", "precision": "fp8-rowwise", "recompute_granularity": "none"},
            {"torch_compile": True},
        ),
    ],
)
def test_the_plan_is_that_of_a_row_that_tells_of_the_same_run(date, said, columns, flags):
    """Of kernels, loss, recompute and precision both follow the release. The layout: 82 = 80 + 2 on 8 stages."""
    stack = f"torchtitan-{date[2:].replace('-', '.')}"
    found = case({"training.local_batch_size": 2} | SEVENTY | said, gpus=32, stack=stack)
    row = Row(ROW | {"date": date, "other_flags": json.dumps({"torch_compile": False} | flags)} | columns)
    plan, _ = row_plan(row, load_model("llama3-70b"), 32)
    assert found.plan == plan
    assert (found.stack, found.workload.global_batch) == (stack, row.count("gbs"))


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ({}, {"fsdp": True, "zero_stage": 3, "dp": 16, "fsdp_shard_size": 0, "micro_batch": 8}),
        ({f"{P}fsdp_reshard_after_forward": "never"}, {"fsdp": True, "zero_stage": 2}),
        ({f"{P}data_parallel_replicate_degree": 2}, {"dp": 16, "fsdp_shard_size": 8}),
        (
            {f"{P}data_parallel_replicate_degree": 2, f"{P}context_parallel_degree": 2},
            {"dp": 8, "fsdp_shard_size": 8},
        ),
        (
            {f"{P}data_parallel_replicate_degree": 16, f"{P}data_parallel_shard_degree": 1},
            {"fsdp": False, "zero_stage": 0, "dp": 16, "precision": "bf16"},
        ),
        ({f"{P}tensor_parallel_degree": 16}, {"fsdp": False, "precision": "fp32", "sequence_parallel": True}),
        ({"training.mixed_precision_param": "float32"}, {"precision": "fp32", "fsdp": True}),
        (
            FLOAT8
            | {GATHER: True, f"{P}context_parallel_degree": 16},  # which FSDP shards over, without shards
            {"fsdp": True, "precision": "fp8-cs", "fp8_param_gather": False},
        ),
        ({"model.converters": ["mx"]}, {"precision": "mxfp8"}),
        ({"model.converters": ["float8"], "float8.recipe_name": "rowwise"}, {"precision": "fp8-sc"}),
        (
            FLOAT8 | {GATHER: True},
            {"precision": "fp8-cs", "fp8_param_gather": True},
        ),
        ({GATHER: True}, {"precision": "bf16"}),
        ({"training.compile": True}, {"fused_cross_entropy": True, "rope_fusion": True}),
        ({"compile.enable": True}, {"fused_cross_entropy": True, "rope_fusion": True}),
        (
            {"compile.components": ["model"], "compile.enable": True},
            {"fused_cross_entropy": False, "rope_fusion": True},
        ),
        (
            {"compile.components": ["loss"], "compile.enable": True},
            {"fused_cross_entropy": True, "rope_fusion": False},
        ),
        ({"compile.components": ["loss"]}, {"fused_cross_entropy": False, "rope_fusion": False}),
        ({"training.enable_cpu_offload": True}, {"optimizer_offload": 100}),
        ({"activation_checkpoint.mode": "none"}, {"recompute": "none"}),
        ({"activation_checkpoint.mode": "full"}, {"recompute": "full", "recompute_num_layers": 0}),
        (
            {"activation_checkpoint.selective_ac_option": "2"},
            {"recompute": "full", "recompute_num_layers": 40},
        ),
        (
            {"activation_checkpoint.selective_ac_option": "1"},
            {"recompute": "full", "recompute_num_layers": 0},
        ),
        ({"activation_checkpoint.selective_ac_option": "99"}, {"recompute": "none"}),
        (
            {f"{P}pipeline_parallel_degree": 2, "training.global_batch_size": 128},
            {"pp": 2, "micro_batch": 1, "pipeline_flushes": 2, "account_loss": True},
        ),
        (
            {f"{P}pipeline_parallel_degree": 2, f"{P}pipeline_parallel_last_stage_less_layers": 3},
            {"pipeline_layout": "E" + "t" * 41 + "|" + "t" * 39 + "L"},
        ),
    ],
)
def test_keys_are_knobs(said, values):
    plan = case(SEVENTY | said, gpus=16).plan
    assert {name: getattr(plan, name) for name in values} == values


def test_files_of_0_1_0_0_2_0_and_0_2_2_are_of_their_months():
    forced = {"training.debug_moe_force_load_balance": False}
    assert case(SEVENTY | forced, gpus=16).stack == "torchtitan-25.10"
    assert case(SEVENTY | {"training.compile": True}, gpus=16).stack == "torchtitan-25.06"
    assert case(SEVENTY | {"compile.enable": True}, gpus=16).stack == "torchtitan-26.02"


def broken_rules(found: Case, stack: str | None = None) -> set[str]:
    """The rules that a case breaks, on its own stack or another."""
    broken = violations(
        found.model, found.workload, found.cluster, found.plan, found.gpus, stack=stack or found.stack
    )
    return {each.id for each in broken}


def test_gpt_oss_runs_as_of_the_patch_that_brought_it():
    """Its windows and attention sinks came with 0.2.2 of February 2026: features_models.toml."""
    said = {"model.name": "gpt_oss", "model.flavor": "20b", "training.seq_len": 8192}
    found = case(said, gpu="b200", gpus=64)
    parts = {"stack_window", "stack_window_pattern", "stack_attention_sinks"}
    assert broken_rules(found).isdisjoint(parts)
    assert broken_rules(found, "torchtitan-25.12") >= parts


def test_of_experts_sizes_routing_and_dispatcher_are_read():
    said = EXPERTS | {f"{P}expert_parallel_degree": 8, f"{P}expert_parallel_comm_backend": "deepep"}
    found = case(said, gpus=16)
    assert (found.plan.ep, found.plan.etp, found.plan.moe_dispatcher) == (8, 1, "deepep")
    assert found.workload.moe_imbalance == 1.04
    assert any("steered by a bias" in note for note in found.notes)
    assert case(said | {"debug.moe_force_load_balance": True}, gpus=16).workload.moe_imbalance == 1.0
    assert case(said, gpus=16, moe_imbalance=1.5).workload.moe_imbalance == 1.5
    whole = case(EXPERTS | {f"{P}tensor_parallel_degree": 4}, gpus=16).plan
    assert (whole.ep, whole.etp) == (1, 4)


def test_experts_of_a_model_that_an_option_names_are_steered_as_that_is():
    said = {f"{P}expert_parallel_degree": 8}
    assert case(said, gpus=16, model="deepseek-v3").workload.moe_imbalance == 1.04
    assert case(said, gpus=16, model="mixtral-8x7b").workload.moe_imbalance > 1.04


def test_gpus_are_the_product_else_the_least_that_the_degrees_allow():
    said = SEVENTY | {f"{P}tensor_parallel_degree": 4}
    assert case(said | {f"{P}data_parallel_shard_degree": 8}).gpus == 32
    least = case(said)
    assert least.gpus == 4
    assert "the least that the other degrees allow" in " ".join(least.notes)
    assert case(EXPERTS | {f"{P}expert_parallel_degree": 8, f"{P}tensor_parallel_degree": 2}).gpus == 8


def test_options_win_and_data_parallel_takes_up_the_rest():
    said = SEVENTY | {f"{P}tensor_parallel_degree": 4, f"{P}data_parallel_shard_degree": 8}
    found = case(said, tp=2)
    assert (found.plan.tp, found.plan.dp, found.gpus) == (2, 16, 32)
    found = case(said, dp=2, micro_batch=1, seq_len=1024, global_batch=6, model="llama3-8b")
    assert (found.plan.dp, found.gpus, found.plan.micro_batch) == (2, 8, 1)
    assert (found.workload.seq_len, found.workload.global_batch, found.model.name) == (1024, 6, "llama3-8b")


@pytest.mark.parametrize(
    ("said", "options", "told"),
    [
        (
            {f"{P}data_parallel_shard_degree": 16},
            {"gpus": 8},
            "--gpus 8 is not the product.*= 16.*Try --gpus 16",
        ),
        (
            {f"{P}tensor_parallel_degree": 8},
            {"gpus": 12},
            "not a multiple of replicate 1 x tensor 8.*Try --gpus 16",
        ),
        ({f"{P}tensor_parallel_degree": 0}, {}, "tensor_parallel_degree is 0"),
        ({f"{P}tensor_parallel_degree": 10**30}, {}, "from 1 to 1048576"),
        ({f"{P}data_parallel_shard_degree": -2}, {}, "data_parallel_shard_degree is -2"),
        ({"training.global_batch_size": 12}, {"gpus": 8}, "12 is not a multiple.*Try 64"),
        ({}, {"gpus": 8, "global_batch": 12}, "--global-batch 12 is not a multiple.*Try 64"),
        (
            {f"{P}pipeline_parallel_degree": 4, f"{P}pipeline_parallel_schedule": "1f1bb"},
            {},
            "Did you mean 1F1B",
        ),
        (
            {f"{P}pipeline_parallel_degree": 4, f"{P}pipeline_parallel_layers_per_stage": 3},
            {},
            "28 stages of 82.*Try 21",
        ),
        (
            {f"{P}pipeline_parallel_degree": 4, f"{P}pipeline_parallel_microbatch_size": 3},
            {},
            "8 is not a multiple.*9",
        ),
        ({f"{P}pipeline_parallel_degree": 64}, {"gpus": 64}, None),
        ({f"{P}pipeline_parallel_degree": 128}, {"gpus": 128}, "80 layers on 128 stages leave one without"),
        (
            {f"{P}pipeline_parallel_degree": 2, f"{P}pipeline_parallel_split_points": ["layers.90"]},
            {},
            "80 layers",
        ),
        (
            {f"{P}pipeline_parallel_degree": 2, f"{P}pipeline_parallel_split_points": ["4"]},
            {},
            "'4' is no layer",
        ),
        (
            {f"{P}pipeline_parallel_degree": 4, f"{P}pipeline_parallel_split_points": ["layers.9"]},
            {},
            "2 stages do not",
        ),
        (
            {f"{P}tensor_parallel_degree": 2, f"{P}enable_async_tensor_parallel": True},
            {},
            "Try compile.enable = true",
        ),
        (
            {
                f"{P}data_parallel_replicate_degree": 2,
                f"{P}data_parallel_shard_degree": 1,
                f"{P}tensor_parallel_degree": 2,
            },
            {},
            "is DDP, which torchtitan refuses",
        ),
        (EXPERTS | {f"{P}expert_parallel_degree": 8}, {"gpus": 4}, "does not divide the 4 ranks.*Try --ep 4"),
        (
            EXPERTS | {f"{P}expert_parallel_degree": 2, f"{P}expert_tensor_parallel_degree": 3},
            {},
            "takes 1 or",
        ),
        (EXPERTS | {f"{P}expert_parallel_comm_backend": "deepep"}, {"gpus": 4}, "Try expert_parallel_degree"),
        (
            FLOAT8
            | {
                "quantize.linear.float8.recipe_name": "rowwise",
                GATHER: True,
            },
            {"gpus": 4},
            "with recipe_name 'rowwise' is refused by torchtitan",
        ),
        ({"activation_checkpoint.selective_ac_option": "all"}, {}, "neither op nor a number"),
        ({"activation_checkpoint.selective_ac_option": "²"}, {}, "neither op nor a number"),
        ({"optimizer.name": "SGD"}, {}, "optimizer.name 'SGD' is none that torchtitan builds.*Try AdamW"),
        ({"optimizer.name": "Muon"}, {}, "optimizer.name 'Muon' is none"),
        ({"optimizer.name": "adam"}, {}, r"Try Adam\."),
        (
            {"training.seq_len": -4},
            {},
            "training.seq_len -4 is not a whole number.*Try training.seq_len 4096",
        ),
        ({}, {"gpus": 8, "dp": 3}, r"--gpus 8 is not --dp 3 x tensor 1 x .* = 3. Try --gpus 3, or --dp 8\."),
        (
            {f"{P}tensor_parallel_degree": 3},
            {"gpus": 8, "dp": 3},
            r"--gpus 8 is not --dp 3 x tensor 3 x .* = 9. Try --gpus 9\.",
        ),
        ({"model.flavor": "13B"}, {}, "model.flavor '13B' is none of llama3"),
    ],
)
def test_what_torchtitan_would_not_start_is_told_in_one_line(said, options, told):
    if told is None:
        assert case(SEVENTY | said, **options).plan.pp == 64
        return
    with pytest.raises(ValueError, match=told) as caught:
        case(SEVENTY | said, **options)
    assert "\n" not in str(caught.value)


def test_the_command_reads_predicts_and_saves(tmp_path):
    job, saved = tmp_path / "job.toml", tmp_path / "today.toml"
    job.write_text(toml(SEVENTY | {f"{P}tensor_parallel_degree": 8, "activation_checkpoint.mode": "full"}))
    said = ["check", "--from", "torchtitan", str(job), "--gpu", "h100", "--gpus", "256", "--save", str(saved)]
    done = CliRunner().invoke(advisor, [*said, "--json"], catch_exceptions=False)
    told = json.loads(done.output)
    assert done.exit_code == 0
    assert told["model"] == "llama3-70b"
    assert told["prediction"]["step_time_s"] > 0
    back = read_case(str(saved), {})
    assert (back.plan, back.stack) == (Plan(**told["plan"]), "torchtitan-26.02")
    assert back.workload.global_batch == 8 * 32


def test_a_file_without_its_framework_is_told_of_it(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(toml(SEVENTY))
    with pytest.raises(ValueError, match="say whose before it, as --from torchtitan"):
        CliRunner().invoke(advisor, ["check", "--from", str(job), "--gpu", "h100"], catch_exceptions=False)


def test_more_seconds_for_less_compiled():
    """The stack is torchtitan's: what nothing compiles takes longer there."""
    eager, compiled = (case(SEVENTY | {"compile.enable": on}, gpus=64) for on in (False, True))
    assert eager.predict().step_time_s > compiled.predict().step_time_s
    assert {eager.stack, compiled.stack} == {"torchtitan-26.02"}
