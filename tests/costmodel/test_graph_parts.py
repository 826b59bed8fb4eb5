"""What CUDA graphs capture where no scope is named: the parts that are priced are the parts that are said."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hardware_db
from advisor.rules import violations
from costmodel.graph_parts import captured_parts
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload

GRAPHS = Plan(dp=8, ep=8, cuda_graph=True)
BESIDE = (
    {},
    {"overlap_moe_comm": True},
    {"recompute": "selective", "recompute_modules": ("moe",)},
    {"moe_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
    {"moe_capacity_factor": 1.0},
    {"moe_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True, "overlap_moe_comm": True},
)


@pytest.mark.parametrize(
    "name", ["mixtral-8x7b", "qwen3-next-80b-a3b", "deepseek-v2", "nemotron3-nano-30b-a3b"]
)
@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_parts_are_priced_as_an_empty_scope_and_legal(name, beside):
    model, workload = load_model(name), Workload(4096, 64)
    cluster = hardware_db.load_cluster("dgx-h100")
    plan = replace(GRAPHS, **beside)
    parts = captured_parts(plan, model)
    said = replace(plan, cuda_graph_scope=parts)
    assert parts
    assert ("moe" in parts) == (plan.moe_pad_expert_input_to_capacity and not plan.overlap_moe_comm)
    empty, named = (predict(model, workload, cluster, each) for each in (plan, said))
    assert named.step_time_s == pytest.approx(empty.step_time_s, rel=1e-12)
    assert named.memory.value == pytest.approx(empty.memory.value, rel=1e-12)
    empty_breaks, named_breaks = (
        {each.id for each in violations(model, workload, cluster, one) if each.severity == "ERROR"}
        for one in (plan, said)
    )
    assert named_breaks <= empty_breaks


def test_parts_of_a_plan():
    assert captured_parts(GRAPHS, load_model("mixtral-8x7b")) == ("attn", "moe_router", "moe_preprocess")
    assert captured_parts(
        replace(GRAPHS, moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True),
        load_model("mixtral-8x7b"),
    ) == (
        "attn",
        "moe",
    )
    deep = load_model("deepseek-v2")
    assert "mlp" in captured_parts(GRAPHS, deep)
    assert "mlp" not in captured_parts(replace(GRAPHS, overlap_moe_comm=True), deep)
    assert captured_parts(replace(GRAPHS, ep=1), load_model("llama3-8b")) == ()
    assert captured_parts(replace(GRAPHS, cuda_graph_scope=("attn",)), deep) == ("attn",)
