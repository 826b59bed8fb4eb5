"""What an export writes for each version of Megatron-LM, and what it refuses or leaves out with a note."""

from __future__ import annotations

from dataclasses import replace

import pytest
from guide_rows import plans
from megatron_lm_jobs import H100, MUON, job_of

from costmodel.layout import expand
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_lm
from executor.export.exported import Job
from executor.export.megatron_lm_arguments import LEGACY_LAYOUT
from executor.export.megatron_lm_names import version_of


@pytest.mark.parametrize(
    ("plan", "workload", "way_out"),
    [
        (Plan(dp=8, micro_batch=4), {"packed": False, "mean_length": 800}, "--packed --micro-batch 1"),
        (Plan(dp=8), {"packed": False}, "--to megatron-bridge"),
        (
            Plan(dp=8, micro_batch=4),
            {"mean_length": 800},
            "--micro-batch 1 --seq-len 16384 --global-batch 16",
        ),
    ],
    ids=str,
)
def test_its_fine_tuning_packs_and_takes_one_pack(plan, workload, way_out):
    job = job_of("llama3-8b", plan)
    tuned = replace(job, workload=Workload(4096, 64, "sft", **workload))
    with pytest.raises(ValueError, match=way_out) as refused:
        megatron_lm.export(tuned)
    assert "\n" not in str(refused.value)
    megatron_lm.export(replace(tuned, workload=replace(tuned.workload, task="pretrain")))


@pytest.mark.parametrize(
    ("model", "task"), [("llama3-8b", "pretrain"), ("nemotronh-8b", "pretrain"), ("llama3-8b", "sft")]
)
def test_the_loader_builds_no_mask_of_every_token_by_every_other(model, task):
    """17 GB on each GPU at 131,072 tokens, which no prediction has; fine-tuning of 0.17 and 0.18 stops at one."""
    job = job_of(model, Plan(dp=8))
    given = megatron_lm.user_arguments(replace(job, workload=Workload(4096, 64, task)))
    assert given["--no-create-attention-mask-in-dataloader"] is True


def test_a_flag_that_the_version_lacks_is_noted_and_left_out():
    plan = Plan(dp=8, ep=8, settings={"flash_attention_version": "3"})
    old = megatron_lm.export(job_of("qwen3-30b-a3b", plan, version="0.17"))
    new = megatron_lm.export(job_of("qwen3-30b-a3b", plan))
    assert new.settings["--flash-attention-version"] == "3"
    assert "--flash-attention-version" not in old.settings
    assert any("--flash-attention-version" in note for note in old.notes)


BY_LAYER = {
    "--optimizer": "muon",
    "--use-distributed-optimizer": True,
    LEGACY_LAYOUT: True,
    "--fp8-param-gather": True,
}
OVERLAP = "--overlap-param-gather"


@pytest.mark.parametrize(
    ("version", "flags", "noted"),
    [
        ("0.16", {"--optimizer": "dist_muon"}, ("--fp8-param-gather", OVERLAP)),
        ("0.17", {"--optimizer": "dist_muon", OVERLAP: True}, ("--fp8-param-gather",)),
        ("0.18", BY_LAYER | {OVERLAP: True}, ()),
        ("0.19", BY_LAYER | {OVERLAP: True}, ()),
    ],
)
def test_muon_in_the_words_of_each_version(version, flags, noted):
    """Tensors are dealt out one by one, as predicted; what a version refuses with that is left out, with a note."""
    exported = megatron_lm.export(job_of("llama3-8b", MUON, version=version))
    names = {*BY_LAYER, OVERLAP}
    assert {name: value for name, value in exported.settings.items() if name in names} == flags
    assert {note.split()[0] for note in exported.notes if note.startswith("--")} == set(noted)


@pytest.mark.parametrize(
    ("version", "refuses"), [("0.16", True), ("0.17", True), ("0.18", False), ("0.19", False)]
)
def test_muon_on_every_rank_overlaps_no_gradients_before_0_18(version, refuses):
    plan = replace(MUON, zero_stage=0, overlap_grad_reduce=True, fp8_param_gather=False)
    exported = megatron_lm.export(job_of("llama3-8b", plan, version=version))
    flag = "--overlap-grad-reduce"
    assert (flag in exported.settings) != refuses
    assert any(note.startswith(flag) for note in exported.notes) == refuses


@pytest.mark.parametrize(
    ("text", "name"), [("", "0.19"), ("0.17.1", "0.17"), ("0.25", "0.19"), ("0.2", "0.16")]
)
def test_the_nearest_version_is_taken(text, name):
    version, note = version_of(text)
    assert version.name == name
    assert bool(note) == (text in ("0.25", "0.2"))


@pytest.mark.parametrize("ends", [{"first_stage_layers": 24}, {"last_stage_layers": 2}])
def test_stages_in_a_hybrids_pattern_are_said_once(ends):
    """Megatron-Core refuses the layers of an end beside a pattern that is parted by |."""
    plan = Plan(pp=2, vpp=2, dp=4, ep=4, **ends)
    flags = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
    said = megatron_lm.export(job_of("nemotron3-nano-30b-a3b", plan)).settings
    assert "|" in said["--hybrid-layer-pattern"]
    assert not set(flags) & set(said)
    plain = megatron_lm.export(job_of("nemotron3-nano-30b-a3b", replace(plan, vpp=1))).settings
    assert "|" not in plain["--hybrid-layer-pattern"]
    assert set(flags) & set(plain)


def test_only_newer_checkouts_take_stages_of_a_hybrid():
    with pytest.raises(ValueError, match=r"--vpp 13: .*--target-version 0\.17"):
        megatron_lm.export(job_of("nemotronh-8b", Plan(pp=4, vpp=13, dp=2), version="0.16"))


def test_adapters_are_refused_with_the_way_out():
    job = replace(job_of("llama3-70b", Plan(dp=8)), workload=Workload(4096, 32, "lora"))
    with pytest.raises(ValueError, match="megatron-bridge"):
        megatron_lm.export(job)


def test_settings_for_benchmarks_stay_out_unless_asked_for():
    plan = Plan(dp=8, ep=8, settings={"moe_router_force_load_balancing": True})
    usual = megatron_lm.export(job_of("qwen3-30b-a3b", plan))
    benchmark = megatron_lm.export(job_of("qwen3-30b-a3b", plan, benchmark=True))
    for flag in ("--moe-router-force-load-balancing", "--mock-data"):
        assert flag not in usual.command
        assert flag in benchmark.command
    assert "--no-check-for-nan-in-loss-and-grad" not in usual.command
    assert any("benchmarks" in note for note in usual.notes)


def test_what_the_guides_leave_to_recipes_is_written_out():
    rows = {(model, plan.pp): (plan, workload) for model, _, plan, workload in plans()}
    plan, workload = rows["deepseek-v3", 16]
    exported = megatron_lm.export(Job(plan, workload, load_model("deepseek-v3"), H100))
    layout = expand(exported.settings["--pipeline-model-parallel-layout"])
    assert len(layout) == 16
    assert sum(stage.count("t") for stage in layout) == 61
    plan, workload = rows["llama3.1-405b", 8]
    exported = megatron_lm.export(Job(plan, workload, load_model("llama3.1-405b"), H100))
    assert "--account-for-embedding-in-pipeline-split" in exported.command


@pytest.mark.parametrize("version", ["0.16", "0.17", "0.18", "0.19"])
@pytest.mark.parametrize(("stage", "whole"), [(2, True), (3, False)])
def test_a_model_whose_parameters_are_sharded_is_never_whole_on_a_gpu(version, stage, whole):
    """70B takes 141 GB in 16 bits, before anything is sharded."""
    plan = Plan(dp=64, fsdp=True, zero_stage=stage, gradient_accumulation_fusion=False)
    job = replace(job_of("llama3-70b", plan), version=version)
    assert ("--init-model-with-meta-device" in megatron_lm.export(job).command) is not whole
