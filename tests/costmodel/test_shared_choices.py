"""Layers that share the tokens which an indexer picked stay on one virtual stage: GLM-5.2 as its config.json has it."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from advisor.rules.facts import facts
from advisor.rules.layouts import layout_problem
from costmodel.columns import plan_columns
from costmodel.layout import edge_chunks, even_chunks, plan_layout
from costmodel.model_registry import load_model
from costmodel.model_tables import Indexer
from costmodel.plan import Plan
from costmodel.shared_choices import inseparable, parted
from costmodel.workload import Workload
from hardware_db import load_cluster

GLM52 = load_model("glm-5.2")
# Of Megatron-Bridge 0.6.2, recipes/glm/h100/glm5.py.
RECIPES = {
    (
        13,
        2,
    ): "Et|t||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|ttttmL",
    (13, 1): "Etttttt|tttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttt|tttt|tttt|tttt|ttttmL",
}


def shared(interval: int, offset: int):
    indexer = Indexer(heads=32, head_dim=128, topk=2048, interval=interval, offset=offset)
    return dataclasses.replace(GLM52, indexer=indexer)


def test_the_layers_that_pick_are_those_of_the_checkpoint():
    """indexer_types: three full layers, then one of four."""
    types = ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3
    assert [GLM52.indexer.picks(index) for index in range(78)] == [kind == "full" for kind in types]
    assert GLM52.picking_layers == types.count("full") == 21


def test_groups_hold_every_layer_once():
    assert inseparable(GLM52) == (1, 1, *[4] * 19)
    assert inseparable(load_model("deepseek-v3.2")) == (1,) * 61
    assert inseparable(load_model("llama3-8b")) == (1,) * 32


@pytest.mark.parametrize(("pp", "vpp"), RECIPES)
def test_layouts_of_megatron_bridge_are_taken(pp, vpp):
    assert not layout_problem(GLM52, RECIPES[pp, vpp], pp, vpp)


def test_a_layout_that_parts_a_group_is_not():
    moved = RECIPES[13, 1].replace("|tttttttt|tttttttt|", "|ttttttttt|ttttttt|", 1)
    assert "shares the tokens" in layout_problem(GLM52, moved, 13, 1)


@settings(deadline=None)
@given(
    pp=st.integers(1, 26),
    vpp=st.integers(1, 3),
    interval=st.integers(1, 6),
    offset=st.integers(1, 8),
)
def test_the_balancer_parts_no_group(pp, vpp, interval, offset):
    model = shared(interval, offset)
    chunks = plan_layout(model, pp, vpp, text="balanced").chunks
    sizes = [chunks[stage][chunk].layers for chunk in range(vpp) for stage in range(pp)]
    assert sum(sizes) == 78
    assert not parted(model, sizes)


@settings(deadline=None, max_examples=300)
@given(
    pp=st.sampled_from([1, 2, 3, 4, 6, 8, 13, 20, 26]),
    vpp=st.sampled_from([1, 2, 3]),
    interval=st.integers(1, 6),
    offset=st.integers(1, 8),
    ends=st.tuples(st.booleans(), st.booleans()) | st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_the_rule_knows_every_split_that_parts_a_group(pp, vpp, interval, offset, ends):
    model = shared(interval, offset)
    even = isinstance(ends[0], bool)
    sizes = even_chunks(78, pp, vpp, *ends) if even else edge_chunks(78, pp, vpp, *ends)
    assume(sizes is not None and (even or (pp > 1 and vpp == 1 and all(ends))))
    names = ("account_embedding", "account_loss") if even else ("first_stage_layers", "last_stage_layers")
    plan = Plan(pp=pp, vpp=vpp, **dict(zip(names, ends, strict=True)))
    words = facts(model, Workload(4096, 64), load_cluster("dgx-h100"), "bf16", plan_columns([plan]))
    assert bool(words["choice_parted"]) == parted(model, sizes)
