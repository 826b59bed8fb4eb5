"""Megatron-LM's own parser takes what is exported and derives the plan from it, in each version that has one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from any_plan import any_job, is_legal
from guide_rows import plans
from megatron_lm_jobs import MUON, job_of

import hardware_db
from costmodel.model_registry import list_models, load_model
from costmodel.plan import Plan
from executor.export import megatron_lm
from executor.export.exported import Job
from executor.export.megatron_lm_names import version_of, versions

RANDOM_PLANS = 40


def exportable(job: Job) -> bool:
    """Whether Megatron-LM can be told the plan at all; graphed attention with dropout is a gap of our rules."""
    graphed_dropout = job.plan.dropout and job.plan.cuda_graph and job.plan.recompute == "selective"
    # The balancer may leave multi-token prediction before the last chunk, which Megatron refuses.
    heads_moved = job.model.mtp_layers and job.plan.pipeline_layout and job.plan.vpp > 1
    try:
        megatron_lm.export(job)
    except ValueError:
        return False
    return not graphed_dropout and not heads_moved


def test_the_parser_takes_random_legal_plans_and_derives_them(parser):
    from export_sweep import differences, parser_job

    dice = random.Random(5)
    jobs = [job for job in (any_job(dice.choice) for _ in range(RANDOM_PLANS)) if exportable(job)]
    assert len(jobs) > RANDOM_PLANS / 2
    answers = parser.parse_all([parser_job(job) for job in jobs])
    for job, answer in zip(jobs, answers, strict=True):
        assert not answer["refused"], f"{job.model.name} {job.plan}: {answer['refused']}"
        assert not differences(job, answer), f"{job.model.name} {job.plan}"


def test_the_parser_takes_every_model_of_the_catalogue_and_the_guides_rows(parser):
    from export_sweep import differences, parser_job

    jobs = [job_of(name, Plan(dp=8, ep=2 if load_model(name).moe else 1)) for name in list_models()]
    jobs += [
        Job(plan, workload, load_model(model), hardware_db.load_cluster(machine))
        for model, machine, plan, workload in plans()
    ]
    built = [job for job in jobs if job.model.compressed_attention is None and not job.model.custom_heads]
    ready = [job for job in built if job.workload.task != "lora"]
    for job, answer in zip(ready, parser.parse_all([parser_job(job) for job in ready]), strict=True):
        assert not answer["refused"], f"{job.model.name} {job.plan}: {answer['refused']}"
        assert not differences(job, answer), f"{job.model.name} {job.plan}"
        values = answer["values"]
        assert values["hidden_size"] == job.model.hidden
        assert values["num_layers"] == job.model.num_layers
        assert answer["config"]["num_moe_experts"] == (job.model.moe.num_experts if job.model.moe else None)


@pytest.mark.parametrize("name", ["0.17", "0.18"])
def test_older_versions_have_the_names_too(parser, name):
    from export_sweep import parser_job

    release = parser.WHEELS[name]
    try:
        parser.wheel_folder(release)
    except parser.NoParser as reason:
        pytest.skip(str(reason))
    dice = random.Random(6)
    jobs = [any_job(dice.choice, version=name) for _ in range(12)]
    jobs = [job for job in jobs if exportable(job)]
    for job, answer in zip(jobs, parser.parse_all([parser_job(job) for job in jobs], release), strict=True):
        assert "unrecognized arguments" not in answer["refused"], job.plan


def test_flags_that_versions_lack_are_those_that_their_parsers_lack(parser):
    lacked = {flag for version in versions() for flag in version.lacks}
    for name, release in parser.WHEELS.items():
        try:
            known = parser.flags_of(release)
        except parser.NoParser as reason:
            pytest.skip(str(reason))
        assert set(version_of(name)[0].lacks) == lacked - known - {"--optimizer-cuda-graph"}
        assert set(megatron_lm.user_arguments(job_of("llama3-8b", Plan(dp=8)))) <= known


@pytest.mark.parametrize("version", [each for each in versions() if each.name != "0.16"], ids=str)
def test_transformer_engines_loss_is_written_where_the_parser_takes_it(parser, version):
    from export_sweep import parser_job

    release = parser.WHEELS[version.name]
    try:
        parser.wheel_folder(release)
    except parser.NoParser as reason:
        pytest.skip(str(reason))
    job = job_of("llama3-8b", Plan(dp=8), version=version.name)
    flags = megatron_lm.export(job).settings
    assert flags.get("--cross-entropy-fusion-impl") == ("te" if version.te_loss else None)
    assert flags["--cross-entropy-loss-fusion"]
    assert "--cross-entropy-fusion-impl" not in megatron_lm.export(replace(job, native_loss=True)).settings
    given = parser_job(job)
    told = given | {"arguments": [*given["arguments"], "--cross-entropy-fusion-impl", "te"]}
    taken, with_te = parser.parse_all([given, told], release)
    assert not taken["refused"]
    assert ("cross entropy" in with_te["refused"]) != version.te_loss


@pytest.mark.parametrize("name", ["0.17", "0.18", "0.19"])
def test_the_parser_takes_muon(parser, name):
    from export_sweep import parser_job

    release = parser.WHEELS[name]
    try:
        parser.wheel_folder(release)
    except parser.NoParser as reason:
        pytest.skip(str(reason))
    plans = [MUON, replace(MUON, zero_stage=0, overlap_grad_reduce=True, fp8_param_gather=False)]
    jobs = [job_of("llama3-8b", plan, version=name) for plan in plans]
    for answer in parser.parse_all([parser_job(job) for job in jobs], release):
        assert not answer["refused"]


def test_the_generator_makes_legal_plans_of_many_kinds():
    dice = random.Random(1)
    jobs = [any_job(dice.choice) for _ in range(30)]
    assert all(is_legal(job.model, job.workload, job.cluster, job.plan) for job in jobs)
    assert len({job.model.family for job in jobs}) >= 4
    assert {job.plan.fsdp for job in jobs} == {True, False}
