"""What settings move makes runs differ: named where they move the step, and nowhere else."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.columns import plan_columns
from costmodel.evidence import evidence_table, interval, nearest
from costmodel.evidence.effects import LEAST, effects, effects_text, read_effects
from costmodel.evidence.runs import Table
from costmodel.evidence.setting import setting_of
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db.evidence import Evidence, Setting

H100 = hardware_db.load_cluster("dgx-h100")
LLAMA = load_model("llama3-70b")
LORA = Workload(4096, 32, task="lora", mean_length=250, length_cv=0.5, lora_targets="qkv")
# The row megatron-bridge-perf-summary-26-06-0102.
ROW = Plan(tp=2, pp=4, vpp=20, sequence_parallel=True, precision="fp8-cs", grad_reduce_in_fp32=False)
STACK = "nemo-26.06"
DENSE = Plan(tp=4, pp=2, dp=1, sequence_parallel=True, recompute="selective", recompute_modules=("mlp",))
LOAD = Workload(8192, 16)


def setting(plan: Plan, workload: Workload, model=LLAMA) -> Setting:
    return setting_of(model, workload, H100, plan, STACK)


def published(described: Setting) -> Evidence:
    fixed = {"id": "run", "source": "tests", "date": "2026-01-31", "measured_step_time_s": 1.0}
    return Evidence(**asdict(described), **fixed, error=0.05, held_error=0.08)


def test_adapters_and_packing_are_differences():
    """The published run has adapters on QKV alone and packs documents of 250 tokens: it vouched for 1.4 times that."""
    same, other = (predict(LLAMA, load, H100, ROW, STACK) for load in (LORA, Workload(4096, 32, task="lora")))
    assert same.evidence[0].run.id == other.evidence[0].run.id == "megatron-bridge-perf-summary-26-06-0102"
    assert same.evidence[0].differences == ()
    assert other.evidence[0].differences == (
        "adapters on all instead of qkv",
        "whole sequences instead of packed documents of 250 tokens",
    )
    wide, narrow = (found.interval_high / found.interval_low for found in (other, same))
    assert wide > narrow * 1.01


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recompute_modules": ("layernorm",)}, "recompute layernorm instead of mlp"),
        ({"recompute": "full", "recompute_modules": ()}, "recompute full instead of mlp"),
        ({"tp_comm_overlap": True}, "with tp_comm_overlap"),
        ({"sequence_parallel": False}, "without sequence_parallel"),
        ({"attention_backend": "unfused"}, "attention_backend unfused instead of fused"),
        ({"offload_layers": 8}, "with offload"),
    ],
)
def test_what_moves_the_step_is_named_and_further_away(changes, named):
    table = Table((published(setting(DENSE, LOAD)),))
    query = setting(replace(DENSE, **changes), LOAD)
    (near,) = nearest(query, table=table)
    assert named in near.differences
    assert near.distance > 0.01
    back = Table((published(query),)).distances(setting(DENSE, LOAD))[0]
    assert near.distance == pytest.approx(back)


@pytest.mark.parametrize(
    "changes",
    [
        {"cp_comm_type": "a2a"},
        {"moe_router_fusion": False},
        {"delay_wgrad": True},
        {"fp8_param_gather": True},
    ],
)
def test_what_moves_nothing_is_no_difference(changes):
    table = Table((published(setting(DENSE, LOAD)),))
    (near,) = nearest(setting(replace(DENSE, **changes), LOAD), table=table)
    assert near.differences == ()
    assert near.distance == 0


def test_effects_are_ratios_of_predictions():
    found = effects(PlanArray(LLAMA, LORA, H100, ROW.precision, plan_columns([ROW]), STACK), ROW)
    step = predict(LLAMA, LORA, H100, ROW, STACK).step_time_s
    whole = predict(LLAMA, replace(LORA, mean_length=0, length_cv=0.0), H100, ROW, STACK).step_time_s
    text, effect = found["documents"]
    assert text == "packed-250-0.5"
    assert math.exp(effect) == pytest.approx(step / whole)
    assert all(abs(effect) >= LEAST for _, effect in found.values())
    assert "dropout" not in found


@given(
    st.dictionaries(
        st.sampled_from(["recompute", "documents", "etp"]),
        st.tuples(st.sampled_from(["mlp+layernorm", "full-12", "padded-250-0.5", "2"]), st.floats(-2, 2)),
    )
)
def test_effects_read_back(found):
    read = read_effects(effects_text(found))
    assert {name: text for name, (text, _) in read.items()} == {
        name: text for name, (text, _) in found.items()
    }
    assert all(read[name][1] == pytest.approx(effect, abs=1e-4) for name, (_, effect) in found.items())


def test_runs_on_file_say_what_moves_them():
    table = evidence_table()
    assert {"lora_targets", "documents", "tp_comm_overlap", "fp8_param_gather"} <= set(table.effects)
    assert {"recompute", "attention_backend", "cuda_graph_scope"} <= set(table.effects)


def test_a_prediction_that_is_not_judged_takes_no_evidence():
    judged, plain = (predict(LLAMA, LOAD, H100, DENSE, STACK, judged=each) for each in (True, False))
    assert plain.step_time_s == judged.step_time_s
    assert plain.memory == judged.memory
    assert (plain.evidence, plain.interval_low) == ((), plain.step_time_s)
    assert judged.interval_low < judged.step_time_s < judged.interval_high
    assert interval(setting(DENSE, LOAD)).basis == judged.interval_basis


def test_a_bucket_is_told_in_words():
    """Runs of GPT-OSS have Megatron-Core's own size, a plan the recipes'; 0 would say nothing."""
    plan = Plan(dp=64, ep=8, micro_batch=4, precision="bf16", moe_dispatcher="hybridep", cuda_graph=True)
    cluster = hardware_db.load_cluster("dgx-b300")
    found = predict(load_model("gpt-oss-120b"), Workload(4096, 1280), cluster, plan)
    told = [word for run in found.evidence for word in run.differences if "bucket" in word]
    assert set(told) == {"buckets of the recipes' size instead of 64,000,000"}
