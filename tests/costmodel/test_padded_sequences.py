"""Unpacked fine-tuning: what its sequences are padded to, in time, memory, rules, texts and the search alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import advisor
from advisor.rules import violations
from costmodel.columns import plan_columns
from costmodel.formulas import explain_entry
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, evaluate_plans, padded_to_seq_len
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

H100 = load_cluster("dgx-h100")
MODEL = load_model("qwen3-30b-a3b")
LOAD = Workload(4096, 128, "sft", mean_length=250, length_cv=1.0, packed=False)
PLANS = {
    "free": Plan(dp=8),
    "stages": Plan(pp=2, dp=4),
    "experts": Plan(dp=8, ep=8),
    "graphs": Plan(dp=8, cuda_graph=True, cuda_graph_scope=("attn",)),
}


def test_the_longest_of_128_documents_is_3_deviations_above_the_mean():
    """sqrt(2 ln 128) = 3.115: 250 + 3.115 x 250 = 1029, rounded up to 16."""
    assert LOAD.longest == 1040
    assert LOAD.padded_to_longest().fill == pytest.approx(250 / 1040)
    assert LOAD.tokens_per_step == LOAD.padded_to_longest().tokens_per_step == 250 * 128


@given(
    mean=st.integers(1, 4096),
    cv=st.floats(0.01, 10),
    batch=st.integers(1, 4096),
)
def test_the_longest_is_between_mean_and_sequence_and_grows_with_the_batch(mean, cv, batch):
    load = Workload(4096, batch, "sft", mean_length=mean, length_cv=cv, packed=False)
    assert mean <= load.longest <= 4096
    assert load.longest <= replace(load, global_batch=2 * batch).longest


@pytest.mark.parametrize(
    "same",
    [{"packed": True}, {"length_cv": None}, {"mean_length": 0}, {"length_cv": 10.0}, {"task": "pretrain"}],
)
def test_where_nothing_shorter_is_known_a_step_is_that_of_full_sequences(same):
    load = replace(LOAD, **same)
    assert load.padded_to_longest() is load


@pytest.mark.parametrize("name", PLANS)
def test_rule_and_step_agree_on_who_pads_in_full(name):
    plan = PLANS[name]
    told = {each.id for each in violations(MODEL, LOAD, H100, plan)}
    full = bool(told & {"padded_full_length", "graph_padded"})
    assert full == bool(padded_to_seq_len(plan_columns([plan]))[0]) == (name != "free")
    found = predict(MODEL, LOAD, H100, plan)
    assert found.values["s"] == (4096 if full else 1040)
    assert any(("padded to 4,096" if full else "padded to 1,040") in each for each in found.assumptions)
    whole = predict(MODEL, replace(LOAD, mean_length=0, length_cv=0.0), H100, plan)
    assert found.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes, rel=1e-12)
    assert (found.step_time_s == pytest.approx(whole.step_time_s)) == full


def test_stages_of_an_encoder_pad_in_full_too():
    """They hand on tensors of one shape as the decoder's do."""
    plan = Plan(dp=4, encoder_pp=1)
    assert "padded_full_length" in {each.id for each in violations(MODEL, LOAD, H100, plan)}
    assert padded_to_seq_len(plan_columns([plan]))[0]


def test_the_search_counts_what_predict_counts():
    plans = list(PLANS.values())
    found = evaluate_plans(PlanArray(MODEL, LOAD, H100, "bf16", plan_columns(plans)))
    own = [predict(MODEL, LOAD, H100, plan) for plan in plans]
    assert found["step_time"] == pytest.approx(np.array([each.step_time_s for each in own]))
    assert found["peak_memory"] == pytest.approx(np.array([each.peak_memory_bytes for each in own]))
    assert found["model_flops"] == pytest.approx(np.array([each.values["model_flops"] for each in own]))


def test_terms_of_memory_are_told_with_the_numbers_they_were_counted_with():
    found = predict(MODEL, LOAD, H100, PLANS["free"])
    (term,) = [each for each in found.memory.parts if each.name == "memory_first_activations"]
    assert f"= {term.value:.6g} byte" in "\n".join(explain_entry(found, term.name))
    assert found.behind(term.name)["s"] == 4096
    assert found.behind("step_time")["s"] == 1040


def test_padding_that_is_told_is_the_padding_that_is_computed():
    asked = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--task", "sft", "--seq-len", "4096"]
    lengths = ["--global-batch", "128", "--mean-length", "250", "--length-cv", "1", "--no-packed"]
    text = CliRunner().invoke(advisor, ["predict", *asked, *lengths], catch_exceptions=False).output
    assert "padding (76.0 % of what" in " ".join(text.split())
    assert "sequences padded to 1,040 tokens" in " ".join(text.split())


def test_equal_documents_are_padded_to_their_own_length():
    assert replace(LOAD, length_cv=0.0).padded_to_longest().seq_len == 256


@pytest.mark.parametrize(
    ("mean", "cv", "fill"),
    [
        (8191, 0.0, 8191 / 8192),
        (4096, 0.0, 1.0),
        (4097, 0.0, 4097 / 8192),
        (8191, None, 8191 / 8192),
        (64, None, 1 - 64 / 16384),
        (64, 1.0, 1 - 2 * 64 / 16384),
    ],
)
def test_packs_are_filled_by_whole_documents(mean, cv, fill):
    assert Workload(8192, 8, "sft", mean_length=mean, length_cv=cv).fill == pytest.approx(fill)


@given(mean=st.integers(64, 8191), cv=st.floats(0, 3))
def test_a_pack_holds_one_document_at_least_and_more_as_they_get_shorter(mean, cv):
    packed = Workload(8192, 8, "sft", mean_length=mean, length_cv=cv)
    assert replace(packed, packed=False).fill <= packed.fill * (1 + 1e-12) <= 1 + 1e-9
    assert packed.fill >= 0.5 or mean > 4096 or cv > 0


@pytest.mark.parametrize(("mean", "cv"), [(8191, 0.5), (8000, 0.8), (6000, 0.4), (4000, 2.0), (1000, 3.0)])
@pytest.mark.parametrize("replicas", [8, 64])
def test_no_replica_has_more_work_than_packs_of_one_document_each(mean, cv, replicas):
    plan = Plan(dp=replicas)
    load = Workload(8192, 2 * replicas, "sft", mean_length=mean, length_cv=cv)
    documents, whole = (
        predict(MODEL, each, H100, plan).step_time_s for each in (load, replace(load, mean_length=0))
    )
    assert documents <= 1.02 * whole  # kernels take a little longer on short documents than their FLOPs
