"""Rules: each fires where it should and not beside it; one definition serves a plan and a whole space."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.rules import SEVERITIES, legal_mask, load_rules, violations
from advisor.rules.facts import facts
from costmodel.columns import plan_columns
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload

LLAMA = load_model("llama3-70b")
WORKLOAD = Workload(8192, 128)


def cluster(generation: str = "hopper", domain: int = 8) -> SimpleNamespace:
    return SimpleNamespace(
        name="stub", domain_size=domain, gpu=SimpleNamespace(generation=generation, title=generation.upper())
    )


def told(plan: Plan, *, model=LLAMA, workload=WORKLOAD, on=None, gpus=0) -> dict:
    return {v.id: v for v in violations(model, workload, on or cluster(), plan, gpus)}


# A plan of the published kind: no rule but those of the environment and of plain 1F1B has a word on it.
GOOD = Plan(tp=4, pp=8, vpp=5, dp=2, sequence_parallel=True)

# rule -> (plan that breaks it, changes to the setting, the nearest plan that does not)
CASES = {
    "world": (GOOD, {"gpus": 60}, replace(GOOD, dp=2), {"gpus": 64}),
    "heads_over_tp": (replace(GOOD, tp=3), {}, GOOD, {}),
    "kv_heads_over_tp": (replace(GOOD, tp=6), {}, GOOD, {}),
    "kv_heads_replicated": (replace(GOOD, tp=16), {}, replace(GOOD, tp=8), {}),
    "ffn_over_tp": (replace(GOOD, tp=3), {}, GOOD, {}),
    "tp_beyond_domain": (replace(GOOD, tp=16), {}, replace(GOOD, tp=16), {"on": cluster(domain=72)}),
    "pp_layers": (replace(GOOD, pp=6, vpp=1), {}, replace(GOOD, pp=5, vpp=1), {}),
    "vpp_layers": (replace(GOOD, vpp=4), {}, GOOD, {}),
    "vpp_needs_pp": (replace(GOOD, pp=1), {}, replace(GOOD, pp=1, vpp=1), {}),
    "vpp_overlap_p2p": (
        replace(GOOD, pp=2, overlap_p2p=False),
        {},
        replace(GOOD, pp=4, overlap_p2p=False),
        {},
    ),
    "vpp_microbatches": (replace(GOOD, dp=32), {}, replace(GOOD, dp=16), {}),
    "few_microbatches": (replace(GOOD, dp=32, vpp=1), {}, replace(GOOD, dp=16, vpp=1), {}),
    "p2p_overlap_without_vpp": (replace(GOOD, vpp=1), {}, GOOD, {}),
    "account_without_pp": (Plan(account_loss=True), {}, Plan(), {}),
    "domain_straddled": (
        replace(GOOD, dp=16, pp=4),
        {"on": cluster("blackwell", 72)},
        replace(GOOD, dp=18, pp=4),
        {"on": cluster("blackwell", 72)},
    ),
    "ep_dense": (replace(GOOD, ep=2), {}, GOOD, {}),
    "batch_divides": (replace(GOOD, dp=3), {}, GOOD, {}),
    "sequence_over_cp": (replace(GOOD, cp=3), {}, replace(GOOD, cp=2), {}),
    "sequence_over_tp": (GOOD, {"workload": Workload(8190, 128)}, GOOD, {}),
    "position_table": (
        Plan(),
        {"model": load_model("gpt3-175b"), "workload": Workload(4096, 128)},
        Plan(),
        {"model": load_model("gpt3-175b"), "workload": Workload(2048, 128)},
    ),
    "sequence_parallel_needs_tp": (replace(GOOD, tp=1), {}, GOOD, {}),
    "tp_without_sequence_parallel": (replace(GOOD, sequence_parallel=False), {}, GOOD, {}),
    "a2a_heads": (
        replace(GOOD, cp=4, cp_comm_type="a2a"),
        {},
        replace(GOOD, cp=2, cp_comm_type="a2a"),
        {},
    ),
    "a2a_p2p_heads": (
        replace(GOOD, cp=8, cp_comm_type="a2a+p2p", cp_a2a_size=4),
        {},
        replace(GOOD, cp=8, cp_comm_type="a2a+p2p", cp_a2a_size=2),
        {},
    ),
    "a2a_p2p_size": (
        replace(GOOD, cp=8, cp_comm_type="a2a+p2p"),
        {},
        replace(GOOD, cp=8, cp_comm_type="a2a+p2p", cp_a2a_size=2),
        {},
    ),
    "cp_comm_type_without_cp": (replace(GOOD, cp_comm_type="a2a"), {}, GOOD, {}),
    "cp_narrow": (
        replace(GOOD, cp=2),
        {"workload": Workload(4096, 128)},
        replace(GOOD, cp=2),
        {},
    ),
    "tp_overlap_needs_sp": (replace(GOOD, tp_comm_overlap=True, sequence_parallel=False), {}, GOOD, {}),
    "tp_overlap_without_tp": (Plan(tp_comm_overlap=True), {}, replace(GOOD, tp_comm_overlap=True), {}),
    "tp_overlap_beyond_domain": (
        replace(GOOD, tp=16, tp_comm_overlap=True),
        {},
        replace(GOOD, tp=8, tp_comm_overlap=True),
        {},
    ),
    "gather_needs_sharding": (Plan(zero_stage=0), {}, Plan(zero_stage=0, overlap_param_gather=False), {}),
    "gather_needs_reduce": (Plan(overlap_grad_reduce=False), {}, Plan(), {}),
    "fsdp_overlap_forced": (
        Plan(fsdp=True, zero_stage=3, overlap_param_gather=False),
        {},
        Plan(fsdp=True, zero_stage=3),
        {},
    ),
    "fsdp_cuda_graph": (Plan(fsdp=True, zero_stage=3, cuda_graph=True), {}, Plan(cuda_graph=True), {}),
    "fsdp_with_pp": (Plan(fsdp=True, zero_stage=3, pp=2), {}, Plan(fsdp=True, zero_stage=3), {}),
    "fsdp_shard_divides": (
        Plan(fsdp=True, zero_stage=3, dp=8, fsdp_shard_size=3),
        {},
        Plan(fsdp=True, zero_stage=3, dp=8, fsdp_shard_size=4),
        {},
    ),
    "fsdp_shard_stage": (
        Plan(fsdp=True, zero_stage=2, dp=8, fsdp_shard_size=4),
        {},
        Plan(fsdp=True, zero_stage=3, dp=8, fsdp_shard_size=4),
        {},
    ),
    "shard_size_without_fsdp": (Plan(fsdp_shard_size=4), {}, Plan(), {}),
    "zero2_peak": (Plan(fsdp=True, zero_stage=2), {}, Plan(fsdp=True, zero_stage=3), {}),
    "precision_aware_needs_sharding": (
        Plan(zero_stage=0, precision_aware_optimizer=True),
        {},
        Plan(precision_aware_optimizer=True),
        {},
    ),
    "bf16_reduction_wide": (
        Plan(dp=128, grad_reduce_in_fp32=False),
        {},
        Plan(dp=64, grad_reduce_in_fp32=False),
        {},
    ),
    "recompute_layers_range": (
        replace(GOOD, recompute="full", recompute_num_layers=11),
        {},
        replace(GOOD, recompute="full", recompute_num_layers=10),
        {},
    ),
    "recompute_layers_mode": (
        replace(GOOD, recompute="selective", recompute_modules=("mlp",), recompute_num_layers=2),
        {},
        replace(GOOD, recompute="full", recompute_num_layers=2),
        {},
    ),
    "recompute_activation_dense": (
        replace(GOOD, recompute="selective", recompute_modules=("activation",)),
        {},
        replace(GOOD, recompute="selective", recompute_modules=("layernorm",)),
        {},
    ),
    "recompute_delayed_scaling": (
        replace(GOOD, recompute="selective", recompute_modules=("layernorm",), precision="fp8-delayed"),
        {},
        replace(GOOD, recompute="selective", recompute_modules=("layernorm",), precision="fp8-cs"),
        {},
    ),
    "recompute_flash": (
        replace(GOOD, recompute="selective", recompute_modules=("core_attn",)),
        {},
        replace(GOOD, recompute="selective", recompute_modules=("core_attn",), attention_backend="unfused"),
        {},
    ),
    "recompute_modules_unused": (replace(GOOD, recompute_modules=("mlp",)), {}, GOOD, {}),
    "recompute_modules_missing": (replace(GOOD, recompute="selective"), {}, GOOD, {}),
    "recompute_full_graph": (
        replace(GOOD, recompute="full", cuda_graph=True),
        {},
        replace(GOOD, recompute="selective", recompute_modules=("mlp",), cuda_graph=True),
        {},
    ),
    "graph_dropout": (
        replace(GOOD, recompute="selective", recompute_modules=("mlp",), cuda_graph=True, dropout=True),
        {},
        replace(GOOD, recompute="selective", recompute_modules=("mlp",), cuda_graph=True),
        {},
    ),
    "graph_registration": (replace(GOOD, cuda_graph=True), {}, GOOD, {}),
    "unfused_attention": (replace(GOOD, attention_backend="unfused"), {}, GOOD, {}),
    "fp8_generation": (replace(GOOD, precision="fp8-cs"), {"on": cluster("ampere")}, GOOD, {}),
    "block_formats_generation": (
        replace(GOOD, precision="mxfp8"),
        {},
        replace(GOOD, precision="mxfp8"),
        {"on": cluster("blackwell-ultra")},
    ),
    "blockwise_on_blackwell": (
        replace(GOOD, precision="fp8-sc"),
        {"on": cluster("blackwell")},
        replace(GOOD, precision="fp8-sc"),
        {},
    ),
    "quantised_weight_shapes": (
        replace(GOOD, precision="mxfp8"),
        {"model": load_model("tiny-gpt")},
        replace(GOOD, precision="fp8-cs"),
        {},
    ),
    "quantised_token_shapes": (
        replace(GOOD, precision="fp8-cs"),
        {"workload": Workload(1000, 128)},
        replace(GOOD, precision="fp8-cs"),
        {},
    ),
    "param_gather_needs_fp8": (
        Plan(fp8_param_gather=True),
        {},
        Plan(fp8_param_gather=True, precision="fp8-cs"),
        {},
    ),
    "param_gather_needs_sharding": (
        Plan(fp8_param_gather=True, precision="fp8-cs", zero_stage=0),
        {},
        Plan(fp8_param_gather=True, precision="fp8-cs"),
        {},
    ),
    "param_gather_mxfp8": (
        Plan(fp8_param_gather=True, precision="mxfp8"),
        {},
        Plan(fp8_param_gather=True, precision="fp8-cs"),
        {},
    ),
    "max_connections_one": (GOOD, {}, GOOD, {"on": cluster("blackwell")}),
    "max_connections_fsdp": (Plan(fsdp=True, zero_stage=3), {}, Plan(), {}),
    "finetune_cp_loss": (
        replace(GOOD, cp=2),
        {"workload": Workload(8192, 128, "sft")},
        replace(GOOD, cp=2),
        {},
    ),
}


@pytest.mark.parametrize("rule", [rule.id for rule in load_rules()])
def test_each_rule_fires_on_its_case_and_not_beside_it(rule):
    broken, setting, sound, other = CASES[rule]
    assert rule in told(broken, **setting)
    assert rule not in told(sound, **other)


@pytest.mark.parametrize("rule", [rule.id for rule in load_rules()])
def test_messages_are_one_line_with_numbers_and_a_way_out(rule):
    broken, setting, _, _ = CASES[rule]
    found = told(broken, **setting)[rule]
    line = found.line()
    assert "\n" not in line
    assert not set("{}[]") & set(line), line
    assert "np." not in line
    assert "array" not in line
    assert not line.rstrip(".").endswith("."), line
    assert found.severity in SEVERITIES
    assert found.source


def test_the_published_plan_of_llama_70b_breaks_no_rule():
    assert {v.severity for v in told(GOOD, gpus=64).values()} <= {"ENV"}


def test_errors_come_first_and_all_at_once():
    bad = Plan(tp=3, pp=7, vpp=2, dp=5, fp8_param_gather=True)
    found = violations(LLAMA, WORKLOAD, cluster(), bad, gpus=64)
    ranks = [SEVERITIES.index(v.severity) for v in found]
    assert ranks == sorted(ranks)
    assert {"world", "heads_over_tp", "vpp_layers", "batch_divides", "param_gather_needs_fp8"} <= {
        v.id for v in found
    }


def test_layers_that_do_not_divide_name_a_split_that_does():
    big = load_model("llama3.1-405b")
    found = told(Plan(tp=8, pp=16, dp=1, sequence_parallel=True), model=big)["pp_layers"]
    assert "126 layers" in found.text
    assert "--account-embedding --account-loss" in found.way_out
    accounted = Plan(tp=8, pp=16, sequence_parallel=True, account_embedding=True, account_loss=True)
    assert "pp_layers" not in told(accounted, model=big)


def test_numbers_of_the_message_are_those_of_the_plan():
    found = told(replace(GOOD, dp=3))["batch_divides"]
    assert "128 is not a multiple of micro_batch x dp = 1 x 3 = 3" in found.text
    assert "--global-batch 129" in found.way_out


plans = st.builds(
    Plan,
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 3, 4, 8]),
    vpp=st.sampled_from([1, 2, 5]),
    cp=st.sampled_from([1, 2, 3, 4]),
    dp=st.sampled_from([1, 2, 3, 8]),
    micro_batch=st.sampled_from([1, 2, 3]),
    precision=st.just("fp8-cs"),
    sequence_parallel=st.booleans(),
    cp_comm_type=st.sampled_from(["p2p", "all_gather", "a2a", "a2a+p2p"]),
    cp_a2a_size=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_num_layers=st.sampled_from([0, 2, 20]),
    recompute_modules=st.sampled_from([(), ("mlp",), ("activation", "layernorm")]),
    tp_comm_overlap=st.booleans(),
    overlap_p2p=st.booleans(),
    cuda_graph=st.booleans(),
    fp8_param_gather=st.booleans(),
    account_embedding=st.booleans(),
    account_loss=st.booleans(),
)


@given(st.lists(plans, min_size=1, max_size=8))
@settings(deadline=None)
def test_a_row_is_legal_exactly_when_its_plan_has_no_error(some):
    mask = legal_mask(LLAMA, WORKLOAD, cluster(), "fp8-cs", plan_columns(some))
    for legal, plan in zip(mask, some, strict=True):
        errors = [v for v in violations(LLAMA, WORKLOAD, cluster(), plan) if v.severity == "ERROR"]
        assert legal == (not errors)


@given(st.lists(plans, min_size=1, max_size=4), plans)
@settings(deadline=None)
def test_a_rule_depends_on_the_knobs_it_names_alone(some, other):
    """The search applies a rule as soon as its knobs are decided: other knobs may not change its verdict."""
    for rule in load_rules():
        mixed = [
            replace(
                plan, **{f.name: getattr(other, f.name) for f in fields(Plan) if f.name not in rule.knobs}
            )
            for plan in some
        ]
        before, after = (
            rule.broken(facts(LLAMA, WORKLOAD, cluster(), "fp8-cs", plan_columns(rows)))
            for rows in (some, mixed)
        )
        if "recompute_modules" not in rule.knobs or "recompute" in rule.knobs:
            assert np.array_equal(np.broadcast_to(before, len(some)), np.broadcast_to(after, len(some))), rule
