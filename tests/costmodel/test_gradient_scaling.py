"""Gradients multiplied by one over their ranks before they are reduced."""

from __future__ import annotations

from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload

B200 = hardware_db.resolve("b200", None)[0]
FSDP = {"fsdp": True, "zero_stage": 3}
BF16, FP32 = {"grad_reduce_in_fp32": False}, {"grad_reduce_in_fp32": True}


def run(stack: str, model: str = "llama3-8b", batch: int = 64, **knobs: Any) -> Prediction:
    plan = Plan(**({"dp": 8} | BF16 | knobs))
    return predict(load_model(model), Workload(8192, batch), B200, plan, stack)


def moved(found: Prediction, seconds: float) -> float:
    """Bytes that so many seconds of plain streams move."""
    values = found.values
    return (
        seconds
        * values["stream_fraction"]
        * values["tuned_stream_scale"]
        * values["hbm_bandwidth"]
        * values["release_scale"]
    )


@pytest.mark.parametrize(
    ("stack", "knobs", "bytes_each"),
    [
        # Megatron-LM multiplies every gradient once a step: read and written.
        ("mcore-26.03", BF16, 4),
        ("mcore-26.03", FP32, 8),
        ("mcore-26.03", {"calculate_per_token_loss": True}, 0),
        ("mcore-26.03", {"dp": 1, "tp": 8}, 0),
        # NeMo's reductions average; kernels on registered buffers cannot.
        ("nemo-26.06", BF16, 0),
        ("nemo-26.06", {"nccl_ub": True}, 4),
        ("deepspeed", BF16, 0),
    ],
)
def test_data_parallelism_scales_once_a_step(stack, knobs, bytes_each):
    few, many = (run(stack, batch=batch, **knobs) for batch in (64, 128))
    term = few.values["gradient_scaling"]
    assert term == pytest.approx(many.values["gradient_scaling"])
    assert moved(few, term) == pytest.approx(bytes_each * few.values["dp_parameters"], rel=1e-6)


def test_experts_fewer_ranks_are_made_up_for():
    """NeMo averages over the ranks of the reduction, of which experts have fewer."""
    found = run("nemo-26.06", "qwen3-30b-a3b", ep=8)
    assert moved(found, found.values["gradient_scaling"]) == pytest.approx(4 * found.values["edp_parameters"])
    assert run("nemo-26.06", "qwen3-30b-a3b").values["gradient_scaling"] == 0


@pytest.mark.parametrize(
    ("stack", "knobs", "bytes_each"),
    [
        # Megatron's FSDP multiplies whole gradients in every backward pass, where NCCL cannot on the way.
        ("nemo-26.06", BF16, 4),
        ("nemo-26.06", FP32, 0),
        ("mcore-26.03", BF16, 4),
        ("mcore-26.03", {"calculate_per_token_loss": True}, 0),
        ("nemo-26.06", {"fsdp_implementation": "torch"}, 0),
        ("torchtitan", BF16, 0),
        # PyTorch's first FSDP divides in any format, before and after.
        ("llm_foundry", BF16, 4),
        ("llm_foundry", FP32, 8),
    ],
)
def test_fsdp_scales_in_every_backward_pass(stack, knobs, bytes_each):
    for batch, passes in ((64, 8), (128, 16)):
        found = run(stack, batch=batch, **FSDP, **knobs)
        parameters = passes * found.values["dp_parameters"]
        assert moved(found, found.values["fsdp_scaling"]) == pytest.approx(bytes_each * parameters, rel=1e-3)
        assert found.values["gradient_scaling"] == 0


def test_a_loss_by_tokens_spares_fsdp_its_scaling():
    scaled, bare = (run("nemo-26.06", **FSDP, calculate_per_token_loss=on) for on in (False, True))
    spared = scaled.values["fsdp_exposed"] - bare.values["fsdp_exposed"]
    assert spared == pytest.approx(scaled.values["fsdp_scaling"])
