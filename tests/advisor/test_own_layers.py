"""Advice for layers that Megatron-Bridge writes itself names nothing that they refuse."""

from __future__ import annotations

import pytest

import hardware_db
from advisor.rules import violations
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload

H100 = hardware_db.load_cluster("dgx-h100")
WAITS = {"host_percent": 40, "tp_percent": 12, "tp_overlap_gain": 3, "memory_percent": 50}
PLANS = {
    "gemma4-31b": Plan(tp=4, dp=16, sequence_parallel=True),
    "gemma4-26b-a4b": Plan(tp=2, dp=32, ep=8, sequence_parallel=True),
    "llama3-70b": Plan(tp=4, dp=16, sequence_parallel=True),
}
# What a plain model is advised to try, and who may not.
ADVISED = [
    ("host_bound", "--cuda-graph", {"llama3-70b"}),
    ("tp_exposed", "--tp-comm-overlap", {"llama3-70b", "gemma4-26b-a4b"}),
    ("tp_exposed", "--cp", {"llama3-70b"}),
    ("tp_exposed", "--pp", {"llama3-70b", "gemma4-26b-a4b"}),
]


@pytest.mark.parametrize(("rule", "way", "models"), ADVISED)
def test_ways_out_lead_to_what_the_layers_take(rule, way, models):
    told = {
        name: {
            each.id: each for each in violations(load_model(name), Workload(4096, 64), H100, plan, 64, WAITS)
        }
        for name, plan in PLANS.items()
    }
    assert {name for name, found in told.items() if way in found[rule].way_out} == models
