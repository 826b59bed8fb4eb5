"""The rule graph_dropout refuses what Megatron-Core 0.16's configuration does: every scope beside every module."""

from __future__ import annotations

from itertools import product

import pytest

from advisor.rules import load_rules
from advisor.rules.facts import PlanWords, facts
from costmodel.columns import plan_columns
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import kernel_fields, recompute_fields
from hardware_db import load_cluster

SCOPES = ((), ("attn",), ("mlp",), ("moe",), ("attn", "moe_router"), ("full_iteration",))
MODULES = ((), ("core_attn",), ("mlp",), ("moe",), ("layernorm",))
PADDED = {"moe_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
RULE = next(rule for rule in load_rules() if rule.id == "graph_dropout")


def said(plan: Plan, name: str) -> str:
    """What the configuration of 0.16 says to the plan's dropout, recompute and graphs, "" for nothing."""
    from megatron.core.transformer import TransformerConfig

    model = load_model(name)
    fields = kernel_fields(plan, model) | recompute_fields(plan, model, 2048)
    fields = {key: value for key, value in fields.items() if "fusion" not in key and "backend" not in key}
    if model.moe:
        fields |= {"num_moe_experts": 8, "moe_token_dispatcher_type": "alltoall", "moe_router_topk": 2}
        fields |= {
            "moe_expert_capacity_factor": plan.moe_capacity_factor or None,
            "moe_pad_expert_input_to_capacity": plan.moe_pad_expert_input_to_capacity,
            "moe_layer_freq": [0] * model.moe.dense_first_layers + [1],
        }
    layers = model.moe.dense_first_layers + 1 if model.moe else 2
    try:
        TransformerConfig(num_layers=layers, hidden_size=64, num_attention_heads=8, **fields)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("knobs", [{}, PADDED], ids=["dropless", "padded"])
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_dropout_is_refused_where_the_configuration_refuses_it(model, knobs):
    pytest.importorskip("megatron.core")
    for scope, modules in product(SCOPES, MODULES):
        plan = Plan(
            **knobs,
            dropout=True,
            cuda_graph=True,
            cuda_graph_scope=scope,
            recompute="selective",
            recompute_modules=modules,
        )
        words = facts(
            load_model(model), Workload(2048, 8), load_cluster("dgx-h100"), "bf16", plan_columns([plan])
        )
        answer = said(plan, model)
        if answer and "dropout" not in answer:
            continue
        assert bool(RULE.broken(PlanWords(words).single)) == bool(answer), (scope, modules, answer)
