"""Rules: each fires where it should and not beside it; one definition serves a plan and a whole space."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
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
