"""What software stacks have: the facts are well formed, and the search, precisions, names and advice keep to them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from advisor.precisions import choose_precisions
from advisor.request import make_request
from advisor.rules import TOPICS, load_rules, rules_of, stack_rules, topic_rules, untrainable, violations
from advisor.rules.features import NEVER, UNTIL, lacked, load_features
from advisor.search import search
from advisor.sections import knob_table
from advisor.space import build_space, nothing_legal
from costmodel.knobs import KNOBS
from costmodel.model_registry import list_models, load_model
from costmodel.plan import Plan
from costmodel.stack import FLAGS, default_stack, families, load_stack
from hardware_db import resolve

RELEASES = [f"{name}-{release}" for name, family in families().items() for release in family["releases"]]
OLD = "nemo-24.05"


@pytest.mark.parametrize("feature", load_features(), ids=lambda feature: feature.name)
def test_facts_are_of_known_knobs_families_and_releases(feature):
    assert set(feature.knobs) <= set(KNOBS)
    assert set(feature.since) <= {*families(), "megatron", "dtensor", "other"}
    assert bool(feature.since) != (feature.flag in FLAGS)
    assert feature.severity in ("ERROR", "SILENT", "NOTE")
    for dated in feature.since.values():
        assert dated == NEVER or re.fullmatch(r"\d\d\.\d\d", dated.removeprefix(UNTIL))


@pytest.mark.parametrize("family", families())
def test_a_later_release_lacks_no_more_but_what_was_dropped(family):
    dropped = {
        feature.name for feature in load_features() if feature.dated(load_stack(family)).startswith(UNTIL)
    }
    absent = [lacked(f"{family}-{release}") for release in families()[family]["releases"]]
    broken = {"recompute_heads"}  # by Megatron-Core 0.18 alone
    assert all(later <= earlier | dropped | broken for earlier, later in pairwise(absent))


def test_the_newest_stack_lacks_what_megatron_never_had_or_has_since():
    never = {"recompute_ops", "pipeline_flushes"}
    since = {
        "whole_experts",
        "delta_exchanges",
        "recompute_heads",
        "sparse_latent_context",
        "offload_fused_experts",
    }
    assert lacked(default_stack()) == lacked(None) == never | since
    assert "overlap_moe_fsdp" in lacked("nemo-26.04.01") & lacked("mcore-26.03")


@pytest.mark.parametrize("stack", RELEASES)
def test_ways_out_name_a_stack_that_has_it(stack):
    absent = [feature for feature in load_features() if feature.lacked_by(load_stack(stack))]
    for feature, rule in zip(absent, stack_rules(stack), strict=True):
        named = re.search(r"--stack ([\w.-]+)$", rule.way_out[-1])
        assert named, rule.way_out
        assert not feature.lacked_by(load_stack(named[1]))


def ask(stack: str, model: str = "deepseek-v3", gpus: int = 256, gpu: str = "h100", **more):
    return make_request(model, gpus, gpu, stack=stack, **more)


@pytest.mark.parametrize("stack", [OLD, "nemo-25.04", "torchtitan", "torchtitan-24.08", "mcore-24.07"])
def test_no_plan_of_the_space_uses_what_the_stack_lacks(stack):
    request = ask(stack, "llama3-8b" if stack == "torchtitan-24.08" else "qwen3-30b-a3b", 16)
    for precision in request.precisions:
        space = build_space(request, precision)
        assert space.legal
        plans = [search_plan(space, row) for row in np.linspace(0, space.legal - 1, 40).astype(int)]
        for plan in plans:
            found = violations(request.model, request.workload, request.cluster, plan, stack=stack)
            assert not [each.id for each in found if each.severity == "ERROR"]


@pytest.mark.parametrize("stack", ["nemo-26.04", "nemo-26.06"])
def test_hybrids_are_recomputed_in_full_where_the_release_does_it(stack):
    """Megatron-Core 0.17.1, ssm/mamba_block.py, keeps everything; 0.18.2 acts."""
    space = build_space(ask(stack, "nemotronh-56b", 32), "bf16")
    plans = [search_plan(space, row) for row in np.linspace(0, space.legal - 1, 200).astype(int)]
    assert ("full" in {plan.recompute for plan in plans}) == (stack == "nemo-26.06")
    # Gated delta nets are none of these; 0.18 fails at their MTP heads.
    found = search(ask("nemo-26.04", "qwen3-next-80b-a3b", 64, pins=["recompute=full"]))
    assert found.best.plan.recompute == "full"


def test_full_recompute_that_does_nothing_is_told_with_the_release_that_has_it():
    request = ask("nemo-25.09", "nemotronh-8b", 8)
    plan = Plan(dp=8, recompute="full")
    found = violations(request.model, request.workload, request.cluster, plan, stack="nemo-25.09")
    (idle,) = (each for each in found if each.id == "stack_recompute_hybrid")
    assert idle.severity == "SILENT"
    assert "came with nemo-26.06" in idle.text
    assert idle.way_out.endswith("or --stack nemo-26.06.")


def search_plan(space, row):
    from costmodel.columns import plan_from_columns

    return plan_from_columns(space.some(np.array([row])), 0, space.precision)


def test_torchtitan_is_given_its_own_ways():
    best = search(ask("torchtitan", "llama3-8b", 64)).best.plan
    assert (best.fsdp, best.zero_stage) == (True, 3)
    assert best.grad_reduce_in_fp32
    best = search(ask("torchtitan")).best.plan
    assert best.fsdp or best.dp * best.cp == 1  # One replica has nothing to shard.
    assert best.moe_dispatcher == "alltoall"
    assert not any((best.overlap_moe_comm, best.delay_wgrad, best.cuda_graph))


def test_torchtitan_on_one_gpu_needs_no_shards():
    best = search(ask("torchtitan", "qwen3-8b", 1, "b300", seq_len=1024)).best
    assert best is None or not best.plan.fsdp
    assert build_space(ask("torchtitan", "llama3-8b", 1), "bf16").legal


@pytest.mark.parametrize(
    ("stack", "gpu", "recipes"),
    [
        (OLD, "b200", ("bf16", "fp8-delayed")),
        ("nemo-25.04", "b200", ("bf16", "fp8-cs", "mxfp8")),
        ("megatron-22.05", "h100", ("bf16",)),
        ("llm_foundry", "h100", ("bf16", "fp8-delayed")),
        ("torchtitan", "h100", ("bf16", "fp8-cs")),
    ],
)
def test_auto_precision_is_what_the_stack_has(stack, gpu, recipes):
    assert choose_precisions("auto", resolve(gpu, None)[0], stack)[0] == recipes


def test_named_precisions_that_a_stack_lacks_are_refused_with_a_way_out():
    said = nothing_legal(ask("nemo-25.04", "llama3-8b", 8, "b200", precision="nvfp4"))
    assert "nemo-25.04 has no NVFP4, which came with nemo-25.11" in said
    assert said.endswith("Try --precision bf16, or --stack nemo-25.11.")


def test_a_pin_that_a_stack_lacks_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"nemo-24.05 has no DeepEP.*--stack nemo-25.04\.$"):
        search(ask(OLD, "qwen3-30b-a3b", 64, pins=["moe_dispatcher=deepep", "ep=8"]))


@pytest.mark.parametrize(
    ("stack", "model", "gpu", "lacks", "way_out"),
    [
        ("nemo-24.07", "deepseek-v2", "h100", "multi-latent attention (MLA)", "nemo-24.12"),
        ("nemo-24.07", "deepseek-v3", "h100", "heads for multi-token prediction (MTP)", "nemo-25.04"),
        ("nemo-24.05", "nemotronh-8b", "h100", "Mamba layers", "nemo-24.07"),
        ("nemo-25.09", "gpt-oss-20b", "h100", "attention sinks", "nemo-25.11"),
        ("nemo-24.07", "llama3-70b", "b200", "kernels for Blackwell GPUs (CUDA 12.8)", "nemo-25.02"),
        ("nemo-25.04", "llama3-70b", "gb300", "kernels for Blackwell Ultra GPUs (CUDA 12.9)", "nemo-25.07"),
        ("nemo-24.07", "llama3-70b", "gb300", "kernels for Blackwell Ultra GPUs (CUDA 12.9)", "nemo-25.07"),
        ("llm_foundry", "mixtral-8x7b", "h100", "mixture of experts", "llm_foundry-24.05"),
    ],
)
def test_models_and_gpus_that_a_stack_cannot_train_are_refused_in_a_line(stack, model, gpu, lacks, way_out):
    with pytest.raises(ValueError, match=r"^[\w.-]+ has no [^\n]+\.$") as refused:
        search(ask(stack, model, 64, gpu))
    assert f"no {lacks}, which came with {way_out}" in str(refused.value)
    assert str(refused.value).endswith(f"--stack {way_out}.")
    request = ask(way_out, model, 64, gpu)
    assert build_space(request, request.precisions[0]).legal


def test_what_a_family_never_had_leads_to_another():
    with pytest.raises(
        ValueError, match=rf"^torchtitan-26.06 has no Mamba layers\..*--stack {default_stack()}\.$"
    ):
        search(ask("torchtitan", "nemotronh-8b", 64))


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("gpu", ["h100", "b200", "gb300", "rtx5090"])
def test_the_newest_stack_trains_every_model_on_every_generation(name, gpu):
    assert untrainable(load_model(name), resolve(gpu, None)[0], None) == ""


@pytest.mark.parametrize(
    ("stack", "title"), [(OLD, "NeMo"), ("nemo-25.07", "NeMo"), ("nemo-25.09", "Megatron-Bridge")]
)
def test_names_are_of_the_framework_that_the_release_had(stack, title):
    lines = knob_table({"tp": 4}, stack)
    assert f"in {title}" in lines[0]
    assert ("nemo-24.05 are not on file" in lines[-1]) == (stack == OLD)


def test_advice_about_transformer_engine_is_for_stacks_with_it():
    told = [
        rule
        for rule in load_rules()
        if re.search("Transformer Engine|NVTE_", rule.says + " ".join(rule.way_out))
    ]
    ids = {rule.id for rule in told if not rule.id.startswith("rocm")}
    assert ids
    assert ids <= {rule.id for rule in rules_of("nemo")}
    assert not ids & {rule.id for rule in rules_of("torchtitan")}


def test_rules_say_which_stacks_they_are_about():
    fields = set(load_stack("nemo").__dataclass_fields__)
    assert {rule.only for topic in TOPICS for rule in topic_rules(topic)} - {""} <= fields


def test_a_plan_is_judged_for_its_stack():
    request = ask("torchtitan", "llama3-8b", 8)
    setting = (request.model, request.workload, request.cluster, Plan(dp=8))
    assert "stack_distributed_optimizer" in {each.id for each in violations(*setting, stack="torchtitan")}
    assert not [each.id for each in violations(*setting) if each.id.startswith("stack_")]


def test_hybridep_came_to_automodel_with_its_release_of_april_2026():
    """nemo-automodel 0.4.0, models/common/utils.py, takes it as a dispatcher, 0.3.0 of March does not."""
    (hybrid,) = (feature for feature in load_features() if feature.name == "hybridep")
    assert hybrid.lacked_by(load_stack("automodel-25.10"))
    assert not hybrid.lacked_by(load_stack("automodel-26.04"))
