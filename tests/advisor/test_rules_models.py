"""Rules whose message or way out depends on the parts of a model: biases, shared experts, dense layers."""

from __future__ import annotations

import pytest
from space_cases import cluster

from advisor.rules import Violation, violations
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload


def told(name: str, task: str = "pretrain", stack: str | None = None, **knobs) -> dict[str, Violation]:
    plan, workload = Plan(dp=8, **knobs), Workload(4096, 128, task)
    found = violations(load_model(name), workload, cluster(), plan, stack=stack)
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


@pytest.mark.parametrize(("stack", "refused"), [("mcore-26.08", False), ("mcore-26.05", True), (None, True)])
def test_a_micro_batch_takes_several_packs_where_the_core_joins_them(stack, refused):
    """Megatron-LM with core 0.19 was refused with the words that it was not."""
    found = told("llama3-8b", "sft", stack, micro_batch=2)
    assert ("packed_micro_batch" in found) == refused


def test_dense_mlps_are_no_way_out_of_a_model_without_them():
    modules = {"recompute": "selective", "recompute_modules": ("layernorm",), "precision": "fp8-delayed"}
    assert "modules mlp" in told("llama3-8b", **modules)["recompute_delayed_scaling"].way_out
    assert "modules mlp" not in told("qwen3-30b-a3b", ep=8, **modules)["recompute_delayed_scaling"].way_out
