"""Rules: each fires where it should and not beside it; one definition serves a plan and a whole space."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import cluster

from advisor.rules import SEVERITIES, error_masks, left_out, load_rules, violations
from advisor.rules.facts import Facts, facts
from advisor.rules.layouts import layout_problem
from advisor.rules.predicted_words import UNPREDICTED
from advisor.rules.setting_words import DEFAULTS, UNSAID, setting_words
from costmodel.columns import ITEMS, plan_columns
from costmodel.knobs import KNOBS, SETTINGS
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.schedule import bubble_over_ideal
from costmodel.workload import Workload

LLAMA = load_model("llama3-70b")
WORKLOAD = Workload(8192, 128)


def told(plan: Plan, *, model=LLAMA, workload=WORKLOAD, on=None, gpus=0) -> dict:
    return {v.id: v for v in violations(model, workload, on or cluster(), plan, gpus)}


# A plan of the published kind: no rule but those of the environment and of plain 1F1B has a word on it.
GOOD = Plan(tp=4, pp=8, vpp=5, dp=2, sequence_parallel=True)


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


@pytest.mark.parametrize(
    ("dispatcher", "stack", "told"),
    [
        ("deepep", "nemo-26.06", {"flex_needs_ranks": "ERROR"}),
        ("deepep", "torchtitan-25.12", {}),
        ("hybridep", "nemo-26.06", {"hybridep_alone": "NOTE"}),
    ],
)
def test_a_dispatcher_without_partners_is_refused_where_the_framework_does(dispatcher, stack, told):
    """DeepEP alone was called worth knowing, and Megatron-Core stops at its construction."""
    model = load_model("qwen3-30b-a3b")
    plan = Plan(dp=8, ep=1, moe_dispatcher=dispatcher)
    found = violations(model, WORKLOAD, cluster(), plan, stack=stack)
    alone = {each.id: each.severity for each in found if each.id in ("flex_needs_ranks", "hybridep_alone")}
    assert alone == told


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
@pytest.mark.parametrize("ep", [8, 64])
def test_dispatchers_over_nvlink_are_neither_taken_nor_named_where_pcie_joins_gpus(dispatcher, ep):
    model, on = load_model("qwen3-30b-a3b"), cluster("ada", link="pcie4-no-p2p")
    plan = Plan(dp=64, ep=ep, dispatcher_sms=8)
    assert (
        told(replace(plan, moe_dispatcher=dispatcher), model=model, on=on)["dispatch_link"].severity
        == "ERROR"
    )
    found = violations(model, WORKLOAD, on, plan, predicted=UNPREDICTED | {"ep_percent": 20})
    assert {"ep_exposed" if ep == 8 else "ep_beyond_domain", "dispatcher_sms_unused"} <= {v.id for v in found}
    assert not any(name in v.way_out for v in found for name in ("deepep", "hybridep"))
    nvlink = violations(model, WORKLOAD, cluster(), plan, predicted=UNPREDICTED | {"ep_percent": 20})
    assert any(dispatcher in v.way_out for v in nvlink)


@pytest.mark.parametrize(
    ("split", "most"),
    [
        ({"pp": 8}, 10),
        ({"pp": 8, "vpp": 5}, 10),
        ({"pp": 4, "first_stage_layers": 14, "last_stage_layers": 26}, 26),
        ({"pp": 2, "pipeline_layout": "Et*46|t*34L"}, 46),
        ({"pp": 2, "vpp": 2, "pipeline_layout": "Et*20|t*25|t*20|t*15L"}, 50),
        ({"pp": 3, "pipeline_layout": "balanced"}, 27),
        ({"pp": 8, "vpp": 4, "pipeline_layout": "balanced"}, 12),
    ],
)
def test_layers_that_recompute_are_bounded_by_the_fullest_stage_however_they_are_split(split, most):
    plan = Plan(recompute="full", recompute_num_layers=most, **split)
    assert "recompute_layers_range" not in told(plan)
    found = told(replace(plan, recompute_num_layers=1000))["recompute_layers_range"]
    assert f"--recompute-num-layers {most}," in found.way_out
    assert "recompute_layers_range" in told(replace(plan, recompute_num_layers=most + 1))


@pytest.mark.parametrize(("pp", "dp"), [(2, 128), (4, 32), (4, 64), (8, 16), (8, 32), (8, 128)])
def test_the_bubble_of_a_pipeline_that_is_not_filled_is_that_of_the_formula(pp, dp):
    """128 sequences: of 4 stages and 4 micro-batches 3 slots of 7 are idle, of 4 and 2 three of 5."""
    micro_batches = 128 // dp
    found = told(Plan(pp=pp, dp=dp))
    over_ideal = bubble_over_ideal(pp, micro_batches)
    share = over_ideal / (1 + over_ideal)
    assert ("few_microbatches" in found) == (share >= 0.5)
    if share >= 0.5:
        shown = int(found["few_microbatches"].text.partition(": ")[2].partition(" %")[0])
        assert shown == pytest.approx(100 * share, abs=0.5)


@pytest.mark.parametrize("sizes", [{}, {"encoder_pp": 1}, {"encoder_tp": 2, "encoder_pp": 1}])
def test_the_rule_on_gpus_counts_them_as_the_plan_does(sizes):
    plan = Plan(tp=4, pp=4, dp=4, cp=2, sequence_parallel=True, **sizes)
    assert "world" not in told(plan, gpus=plan.world)
    assert f"--gpus {plan.world}." in told(plan, gpus=plan.world + 1)["world"].way_out


def test_numbers_of_the_message_are_those_of_the_plan():
    found = told(replace(GOOD, dp=3))["batch_divides"]
    assert "128 is not a multiple of micro_batch x dp = 1 x 3 = 3" in found.text
    assert "--global-batch 144" in found.way_out  # whole groups of 8 micro-batches, as vpp 5 needs them


plans = st.builds(
    Plan,
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 3, 4, 8]),
    vpp=st.sampled_from([1, 2, 5]),
    cp=st.sampled_from([1, 2, 3, 4]),
    ep=st.sampled_from([1, 2, 8, 12]),
    etp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 2, 3, 8, 16]),
    micro_batch=st.sampled_from([1, 2, 3, 8]),
    precision=st.just("fp8-cs"),
    sequence_parallel=st.booleans(),
    cp_comm_type=st.sampled_from(["p2p", "all_gather", "a2a", "a2a+p2p"]),
    cp_a2a_size=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_num_layers=st.sampled_from([0, 2, 20]),
    recompute_modules=st.sampled_from([(), ("mlp",), ("activation", "layernorm"), ("moe", "mla_up_proj")]),
    tp_comm_overlap=st.booleans(),
    overlap_p2p=st.booleans(),
    cuda_graph=st.booleans(),
    cuda_graph_scope=st.sampled_from([(), ("full_iteration",), ("attn",), ("moe_router", "moe_preprocess")]),
    fp8_param_gather=st.booleans(),
    account_embedding=st.booleans(),
    account_loss=st.booleans(),
    pipeline_layout=st.sampled_from(["", "", "balanced", "Et*40|t*40L"]),
    first_stage_layers=st.sampled_from([0, 0, 3]),
    vpp_group_size=st.sampled_from([0, 2, 8]),
    moe_dispatcher=st.sampled_from(["alltoall", "allgather", "deepep", "hybridep"]),
    moe_capacity_factor=st.sampled_from([0.0, 1.0]),
    moe_pad_expert_input_to_capacity=st.booleans(),
    overlap_moe_comm=st.booleans(),
    delay_wgrad=st.booleans(),
    shared_expert_overlap=st.booleans(),
    optimizer_instances=st.sampled_from([1, 2]),
    offload_layers=st.sampled_from([0, 4]),
    offload_modules=st.sampled_from([(), ("core_attn",), ("attn_proj",)]),
    max_connections=st.sampled_from([0, 1, 8]),
)
MODELS = [LLAMA] + [
    load_model(name) for name in ("qwen3-30b-a3b", "deepseek-v3", "nemotronh-8b", "qwen3-next-80b-a3b")
]


@given(st.sampled_from(MODELS), st.lists(plans, min_size=1, max_size=8))
@settings(deadline=None, max_examples=60)
def test_a_row_is_legal_exactly_when_its_plan_has_no_error(model, some):
    masks = error_masks(facts(model, WORKLOAD, cluster(), "fp8-cs", plan_columns(some)))
    broken = np.zeros(len(some), dtype=bool)
    for mask in masks.values():
        broken |= mask
    for refused, plan in zip(broken, some, strict=True):
        errors = [v for v in violations(model, WORKLOAD, cluster(), plan) if v.severity == "ERROR"]
        assert refused == bool(errors)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@given(st.lists(plans, min_size=12, max_size=12))
@settings(deadline=None, max_examples=settings().max_examples // 6)  # for each model
def test_a_rule_depends_on_the_knobs_it_names_alone(model, drawn):
    """The search applies a rule as soon as its knobs are decided: other knobs may not change its verdict."""
    # Every plan with the other knobs of every other one.
    own, others = (plan_columns(side) for side in zip(*permutations(drawn, 2), strict=True))

    @cache
    def mixed(kept: frozenset[str]) -> Facts:
        """Of rows that have these knobs of the first plan of each pair, and the others of the second."""
        rows = {name: own[name] if ITEMS.get(name, (name,))[0] in kept else others[name] for name in own}
        return facts(model, WORKLOAD, cluster(), "fp8-cs", rows)

    before = mixed(frozenset(KNOBS))
    for rule in load_rules():
        # Columns of modules hold those that act, which `recompute` decides.
        if "recompute_modules" not in rule.knobs or "recompute" in rule.knobs:
            verdicts = [rule.broken(each) for each in (before, mixed(frozenset(rule.knobs)))]
            assert np.array_equal(*np.broadcast_arrays(*verdicts)), rule


@pytest.mark.parametrize(("share", "warned"), [(None, True), (0.7, False), (0.8, True)])
def test_fixed_segments_are_told_where_memory_is_short_or_not_known(share, warned):
    plan = replace(GOOD, expandable_segments=False)
    words = {} if share is None else {"memory_percent": round(100 * share)}
    found = {v.id: v for v in violations(LLAMA, WORKLOAD, cluster(), plan, predicted=words)}
    assert ("segments_fixed" in found) == warned
    if share is not None and warned:
        assert "80 % of the device" in found["segments_fixed"].text
    registered = replace(plan, nccl_ub=True)
    assert "segments_fixed" not in told(registered)


@pytest.mark.parametrize(
    ("segment", "tp", "straddles"), [(0, 4, False), (64, 4, False), (72, 4, True), (0, 3, True)]
)
def test_a_stage_straddles_the_gpus_that_are_used_of_a_domain(segment, tp, straddles):
    plan = Plan(tp=tp, pp=4, vpp=5, dp=16, sequence_parallel=True, nvl_segment=segment)
    found = told(plan, on=cluster("blackwell", 72))
    assert ("domain_straddled" in found) == straddles
    if straddles:
        assert ("leave out --nvl-segment, which uses 64" in found["domain_straddled"].way_out) == (
            segment > 0
        )


@pytest.mark.parametrize(
    ("knobs", "on", "warned"),
    [
        ({"dp": 8}, "hopper", True),
        ({"dp": 8}, "blackwell", True),
        ({"dp": 8}, "ampere", False),
        ({"dp": 1}, "hopper", False),
        ({"dp": 8, "overlap_grad_reduce": False, "overlap_param_gather": False}, "hopper", False),
        ({"tp": 2, "sequence_parallel": True, "tp_comm_overlap": True}, "hopper", True),
        ({"dp": 8, "layernorm_sm_margin": 20}, "hopper", False),
    ],
)
def test_norms_on_all_sms_are_told_where_communication_overlaps(knobs, on, warned):
    plan = Plan(**{"layernorm_sm_margin": 0} | knobs)
    assert ("norm_margin" in told(plan, on=cluster(on))) == warned


@pytest.mark.parametrize(
    ("knobs", "refused"),
    [
        ({}, True),
        ({"moe_capacity_factor": 1.0}, True),
        ({"moe_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, False),
        ({"moe_dispatcher": "hybridep"}, True),
        (
            {
                "moe_dispatcher": "hybridep",
                "settings": (("moe_expert_rank_capacity_factor", 1.5),),
                "expert_mlp_fusion": True,
            },
            False,
        ),
        ({"cuda_graph_scope": ("attn", "moe_router")}, False),
        ({"cuda_graph": False}, False),
    ],
)
def test_a_whole_step_without_fixed_shapes_is_not_captured(knobs, refused):
    plan = Plan(**{"dp": 8, "ep": 8, "cuda_graph": True, "cuda_graph_scope": ("full_iteration",)} | knobs)
    found = told(plan, model=load_model("qwen3-30b-a3b"))
    assert ("graph_whole_dropless" in found) == refused
    dense = told(replace(plan, ep=1, moe_dispatcher="alltoall", moe_capacity_factor=0.0))
    assert "graph_whole_dropless" not in dense


def test_every_entry_of_the_table_is_a_rule_or_left_out_with_a_reason():
    """The table has C001 to C256, from the frameworks and guides, and F001 to F018, from the field."""
    table = {f"C{number:03d}" for number in range(1, 257)} | {f"F{number:03d}" for number in range(1, 19)}
    assert len(table) == 274
    cited = {entry for rule in load_rules() for entry in rule.cites}
    assert cited | set(left_out()) == table
    assert not cited & set(left_out())
    assert all(len(reason.split()) > 3 for reason in left_out().values())


def test_rules_have_one_name_each_a_known_severity_and_fields_of_the_plan():
    rules = load_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    known = {field.name for field in fields(Plan)} - {"settings"}
    for rule in rules:
        assert rule.severity in SEVERITIES
        assert set(rule.knobs) <= known, rule.id
        assert rule.source
        assert rule.says


def test_texts_do_not_count_one_of_what_is_one():
    texts = [text for rule in load_rules() for text in (rule.says, *rule.way_out)]
    assert not [text for text in texts if " the 1 " in text]  # "in the 1 graph"


def test_settings_of_a_plan_are_words_whatever_their_case_and_type():
    words = setting_words({"NCCL_GRAPH_REGISTER": "0", "Te_Rng_Tracker": "true", "variable_seq_lengths": 1})
    assert words["setting_nccl_graph_register"] == 0
    assert words["setting_te_rng_tracker"] == 1
    assert words["setting_variable_seq_lengths"]
    assert setting_words()["setting_nccl_graph_register"] == UNSAID


def test_words_of_settings_are_settings_of_the_catalogue():
    assert set(DEFAULTS) <= set(SETTINGS)


def test_a_setting_of_a_plan_silences_the_rule_that_asks_for_it():
    plan = replace(GOOD, cuda_graph=True)
    assert "graph_registration" in told(plan)
    assert "graph_registration" not in told(replace(plan, settings={"nccl_graph_register": False}))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Et*40|t*40L", ""),
        ("balanced", ""),
        ("", ""),
        ("Et*40|t*39L", "79 decoder layers"),
        ("Et*40|t*20|t*20L", "3 virtual stages"),
        ("t*40|t*40L", "start with the embedding"),
        ("Et*40|t*40", "end with the loss"),
        ("Et*40|t*40mL", "1 MTP heads"),
        ("Ex|t", "is not a layout"),
    ],
)
def test_layouts_are_checked_as_megatron_core_does(text, fault):
    found = layout_problem(LLAMA, text, 2, 1)
    assert fault in found
    assert bool(fault) == bool(found)


@pytest.mark.parametrize(
    ("text", "vpp", "fault"),
    [
        ("Et*30|t*31mL", 1, ""),
        ("Et*30m|t*31L", 1, "before the last decoder layer"),
        ("Et*15|t*15|t*31m|L", 2, "last chunk of a stage other than the first"),
        ("Et*15|t*15|t*15|t*16mL", 2, ""),
    ],
)
def test_mtp_heads_stand_on_the_last_chunk(text, vpp, fault):
    found = layout_problem(load_model("deepseek-v3"), text, 2, vpp)
    assert fault in found
    assert bool(fault) == bool(found)


@pytest.mark.parametrize(
    "uneven",
    [
        {"pipeline_layout": "balanced"},
        {"pipeline_layout": "Et*8|(t*10|)*6t*12L"},
        {"first_stage_layers": 8, "last_stage_layers": 12},
        {"account_embedding": True, "account_loss": True},
        {},
    ],
)
def test_bf16_ends_are_bounded_by_an_even_stage_however_layers_are_laid_out(uneven):
    """Megatron-Core 0.12 to 0.16, transformer_config.py: num_layers over pipeline sizes, whatever the layout."""
    plan = Plan(pp=8, precision="fp8-cs", bf16_end_layers=10, **uneven)
    assert "bf16_ends_range" not in told(plan)
    over = told(replace(plan, bf16_end_layers=11))["bf16_ends_range"]
    assert over.way_out == "Try --bf16-end-layers 10."


def test_a_batch_that_is_not_shared_out_is_told_once_and_in_whole_numbers():
    """19 sequences over 2 ranks were 9.5 micro-batches, of which three rules spoke."""
    plan = replace(GOOD, pp=8, vpp=5, dp=2)
    found = told(plan, workload=Workload(8192, 19))
    assert "batch_divides" in found
    assert not {"flushes_divide", "vpp_microbatches", "few_microbatches"} & set(found)
    assert not [each.text for each in found.values() if re.search(r"\d\.\d", each.text)]


@pytest.mark.parametrize(("ep", "whole", "wrapped"), [(32, 72, 92), (64, 52, 72)])
def test_weights_that_stand_on_a_gpu_before_fsdp_shards_them(ep, whole, wrapped):
    """DeepSeek-V3 by hand: 256 experts of 44.04M in 58 layers and in the MTP head, the rest 17.46B; dp 64."""
    plan = Plan(dp=64, ep=ep, fsdp=True, zero_stage=3)
    found = facts(load_model("deepseek-v3"), WORKLOAD, cluster(), "bf16", plan_columns([plan]))
    assert (found["base_gib"].item(), found["wrapped_gib"].item()) == (whole, wrapped)
