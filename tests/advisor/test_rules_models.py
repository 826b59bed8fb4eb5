"""Rules whose message or way out depends on the parts of a model: biases, shared experts, dense layers."""

from __future__ import annotations

import pytest
from space_cases import cluster

from advisor.rules import Violation, violations
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload


def told(name: str, **knobs) -> dict[str, Violation]:
    found = violations(load_model(name), Workload(4096, 128), cluster(), Plan(dp=8, **knobs))
    return {each.id: each for each in found}


@pytest.mark.parametrize(
    ("model", "scope", "fusion", "says", "way"),
    [
        ("qwen2-57b-a14b", ("attn",), True, "attention without biases", "Leave attn out"),
        ("gpt-oss-20b", ("attn",), True, "attention without biases", "Leave attn out"),
        ("gpt-oss-20b", (), True, "attention without biases", "Add --no-delay-wgrad."),
        ("qwen2-57b-a14b", ("moe_router",), True, "", ""),
        ("deepseek-v2-lite", ("moe_router",), False, "router beside a shared", "Add --gradient-accumulation"),
        ("deepseek-v2-lite", ("moe_router",), True, "", ""),
        ("qwen3-30b-a3b", ("moe_router",), False, "", ""),
        ("qwen3-30b-a3b", ("attn",), False, "gradient_accumulation_fusion", "Add --gradient-accumulation"),
    ],
)
def test_delayed_weight_gradients_in_graphs_are_refused_for_what_the_graph_holds(
    model, scope, fusion, says, way
):
    """Biases of queries, keys and values alone were passed, and GPT-OSS was told the fusion that it had on."""
    knobs = {"overlap_moe_comm": True, "delay_wgrad": True, "cuda_graph": True, "cuda_graph_scope": scope}
    found = told(model, ep=8, gradient_accumulation_fusion=fusion, **knobs).get("delay_wgrad_graph")
    assert (found is not None) == bool(says)
    if found is not None:
        assert says in found.text
        assert found.way_out.startswith(way)
