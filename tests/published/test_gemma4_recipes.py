"""The plans that Megatron-Bridge ships for Gemma 4 must fit and break no rule."""

from __future__ import annotations

import pytest

import hardware_db
from advisor.rules import violations
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload

H100 = hardware_db.load_cluster("dgx-h100")
# Megatron-Bridge 0.6.2, recipes/gemma4_vl/h100/gemma4_vl.py: 8 and 4 GPUs, 32 sequences of 4,096 tokens; the adapters
# fit "with substantial activation-memory headroom".
SHIPPED = [
    ("sft", 8, Plan(tp=4, dp=2, ep=8, sequence_parallel=True, recompute="full"), 0.95),
    ("lora", 4, Plan(tp=2, dp=2, ep=4, sequence_parallel=True), 0.7),
]


@pytest.mark.parametrize(("task", "gpus", "plan", "share"), SHIPPED)
def test_shipped_plans_fit_and_break_no_rule(task, gpus, plan, share):
    model, load = load_model("gemma4-26b-a4b"), Workload(4096, 32, task, packed=False, lora_rank=32)
    found = violations(model, load, H100, plan, gpus, {}, "nemo-26.08")
    assert [each.line() for each in found if each.severity == "ERROR"] == []
    values = predict(model, load, H100, plan, "nemo-26.08", judged=False).values
    assert values["peak_memory"] < share * values["gpu_memory"]
