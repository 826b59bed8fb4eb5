"""The most that activations take in a step, as the memory formulas have it, against live tensors of a trace."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from legal_plans import small

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.dryrun import dry_run
from executor.dryrun_tracer import Tracer
from executor.run import missing_software
from hardware_db import load_cluster

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]
# What a step holds beside weights, gradients and optimizer state, fragments and contexts.
PARTS = ("activations", "logits", "workspace", "stand_ins")
# The loss is traced as Megatron-Core's own, not fused.
TRACED = {"fused_cross_entropy": False, "micro_batch": 1}
ALL = {"recompute": "full"}
MOE = {"recompute": "selective", "recompute_modules": ("moe",)}
EXPERTS = {"dp": 8, "ep": 8}
SPLIT = {"tp": 2, "sequence_parallel": True}


@pytest.fixture(scope="module")
def tracer():
    with Tracer() as one:
        yield one


def peaks(tracer: Tracer, name: str, stage: int, **knobs: Any) -> tuple[float, float]:
    """Predicted and traced bytes of a stage in a step of eight layers."""
    model, plan = small(load_model(name), 8), Plan(**TRACED, **knobs)
    number = max(2 * plan.pp, 4)
    workload = Workload(4096, plan.dp * number)
    where = "first" if stage == 0 else "last" if stage == plan.pp - 1 else "second"
    values = predict(model, workload, load_cluster("dgx-b200"), plan).values
    with tempfile.TemporaryDirectory() as folder:
        given = {"stages": [stage], "num_microbatches": number, "folder": Path(folder)}
        traced = dry_run(plan, workload, model, **given, measure=tracer.stage)
    return sum(values.get(f"memory_{where}_{part}", 0.0) for part in PARTS), traced.stages[0].counted.peak


@pytest.mark.parametrize(
    ("name", "stage", "knobs"),
    [
        ("llama3-8b", 0, {"dp": 8}),
        ("llama3-8b", 0, {"dp": 8, "pp": 2}),
        ("llama3-8b", 0, {"dp": 8, "pp": 2, **ALL}),
        ("llama3-70b", 1, {**SPLIT, "tp": 4, "pp": 4, "vpp": 2, "dp": 8}),
        # The gradient of the embedding, when little else is left.
        ("llama3-8b", 0, {"dp": 8, "pp": 2, "cp": 4}),
        # Rows of experts as they were sent, as they came, and results in both orders.
        ("qwen3-30b-a3b", 0, {**EXPERTS, "pp": 2}),
        ("qwen3-30b-a3b", 0, {**EXPERTS, "pp": 2, **ALL}),
        ("qwen3-30b-a3b", 0, {**EXPERTS, **SPLIT, "etp": 2, "pp": 2}),
        ("qwen3-30b-a3b", 0, {**EXPERTS, "pp": 2, "moe_dispatcher": "allgather"}),
        ("mixtral-8x7b", 0, {**EXPERTS, "pp": 2}),
        ("deepseek-v3", 1, {**EXPERTS, "pp": 4}),
        ("deepseek-v3", 1, {**EXPERTS, "pp": 4, **MOE}),
        ("deepseek-v3", 3, {**EXPERTS, "pp": 4, **ALL}),
    ],
)
def test_peaks_are_those_of_live_tensors(tracer, name, stage, knobs):
    predicted, traced = peaks(tracer, name, stage, **knobs)
    assert predicted == pytest.approx(traced, rel=0.04)
