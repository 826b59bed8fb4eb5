"""The most that activations take in a step, as the memory formulas have it, against live tensors of a trace."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from legal_plans import small

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.dryrun import dry_run
from executor.dryrun_tracer import Tracer
from executor.run import missing_software

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]
ALL = {"recompute": "full"}
MOE = {"recompute": "selective", "recompute_modules": ("moe",)}
EXPERTS = {"dp": 8, "ep": 8}
SPLIT = {"tp": 2, "sequence_parallel": True}
APART = {"gradient_accumulation_fusion": False}
ACTIVATIONS = {"recompute": "selective", "recompute_modules": ("moe_act",)}


@pytest.fixture(scope="module")
def tracer():
    with Tracer() as one:
        yield one


def peaks(tracer: Tracer, name: str, stage: int, **knobs: Any) -> tuple[float, float]:
    """Predicted and traced bytes of a stage in a step of eight layers."""
    model, plan = small(load_model(name), 8), Plan(micro_batch=1, **knobs)
    number = max(2 * plan.pp, 4)
    workload = Workload(4096, plan.dp * number)
    with tempfile.TemporaryDirectory() as folder:
        given = {"stages": [stage], "num_microbatches": number, "folder": Path(folder)}
        found = dry_run(plan, workload, model, **given, measure=tracer.stage).stages[0]
    return found.predicted.peak, found.counted.peak


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
        # Gradients of weights that no product adds to their buffer, of one layer, all experts and the output layer.
        ("llama3-70b", 0, {**SPLIT, "pp": 4, "cp": 2, "cp_comm_type": "a2a", "dp": 4, **APART}),
        ("qwen3-30b-a3b", 0, {**EXPERTS, "pp": 2, **ALL, **APART}),
        ("nemotronh-8b", 0, {**SPLIT, "tp": 8, "dp": 2, **APART}),
        # A table's gradient and its sum with the output layer's stand-in; by heads of the last stage.
        ("qwen2.5-0.5b", 0, {"dp": 8, **ALL}),
        ("glm-4.7-flash", 3, {**EXPERTS, **SPLIT, "tp": 2, "pp": 4, "cp": 4, "cp_comm_type": "all_gather"}),
        # Gradients that tensor-parallel ranks sum in one flat copy.
        ("deepseek-v2", 0, {**EXPERTS, **SPLIT, "tp": 8, "cp": 4, "cp_comm_type": "all_gather", **ALL}),
        # Rows times probabilities in FP32, and biases of experts.
        ("nemotron3-super-120b-a12b", 0, {**EXPERTS, "ep": 32, "dp": 32, "pp": 2, **ACTIVATIONS}),
        ("gpt-oss-20b", 0, {**EXPERTS, "pp": 2, **ALL}),
    ],
)
def test_peaks_are_those_of_live_tensors(tracer, name, stage, knobs):
    predicted, traced = peaks(tracer, name, stage, **knobs)
    assert predicted == pytest.approx(traced, rel=0.03)
