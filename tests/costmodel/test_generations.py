"""The same plan on a later generation of the same make of node takes no longer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from family_cases import unjudged
from hypothesis import given
from law_cases import GENTLE, LLAMA, plans

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload

NODES = [
    hardware_db.load_cluster(name) for name in ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300")
]
# Constants of generations are fitted apart, and a stage's slack moves a simulated pipeline.
SAME = 1.05


def times(model, workload: Workload, plan: Plan) -> list[float]:
    return [unjudged(model, workload, node, replace(plan, precision="bf16")).step_time_s for node in NODES]


@given(plans())
@GENTLE
def test_no_plan_is_slower_on_later_nodes(drawn):
    plan, workload = drawn
    found = times(LLAMA, workload, plan)
    assert all(later < SAME * earlier for earlier, later in pairwise(found)), found


@pytest.mark.parametrize("model", ["llama3.1-405b", "nemotronh-56b"])
def test_one_rank_a_node_reduces_as_quickly_on_blackwell(model):
    """TP8 leaves one data-parallel rank on each node, with a card of 400 Gbit/s on Hopper's and on Blackwell's."""
    found = times(
        load_model(model), Workload(2048, 64), Plan(tp=8, dp=32, micro_batch=2, sequence_parallel=True)
    )
    assert found[3] < found[2]
