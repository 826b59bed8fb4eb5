"""Pipelines of PyTorch: drained several times a step, stages that wait for messages, the host's time of DTensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hardware_db
from costmodel.host_waits import TENSOR_BACKWARD, TENSOR_FORWARD
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import schedule_correction
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]
SHARDED = Plan(pp=4, dp=16, zero_stage=3, fsdp=True, recompute="full")


def run(plan: Plan, stack: str = "torchtitan", model: str = "llama3-70b", **load: Any) -> Prediction:
    return predict(
        load_model(model), Workload(**{"seq_len": 4096, "global_batch": 512} | load), H100, plan, stack
    )


def leaf(prediction: Prediction, name: str) -> float:
    return sum(term.value for term in prediction.time.leaves() if term.name == name)


@pytest.mark.parametrize("vpp", [1, 2])
def test_each_flush_fills_and_drains_the_pipeline(vpp):
    once, often = (run(replace(SHARDED, vpp=vpp, pipeline_flushes=flushes)) for flushes in (1, 4))
    assert leaf(often, "pipeline_bubble") == pytest.approx(4 * leaf(once, "pipeline_bubble"))
    assert leaf(often, "pipeline_send_recv") > leaf(once, "pipeline_send_recv")
    assert leaf(often, "forward_linear") == leaf(once, "forward_linear")


def test_the_replay_drains_as_often_as_the_closed_form():
    """Of equal stages both say the same; here they differ by the ends of the model, once a flush."""
    once, often = (run(replace(SHARDED, pipeline_flushes=flushes)) for flushes in (1, 4))
    assert abs(schedule_correction(often)) <= 4 * abs(schedule_correction(once)) + 1e-9


def test_a_flush_of_few_micro_batches_keeps_no_more_of_them():
    """Eight micro-batches in all: two of each flush, where the first of four stages would keep four."""
    kept = [
        run(replace(SHARDED, pipeline_flushes=flushes), global_batch=128).values["first_stage_in_flight"]
        for flushes in (1, 2, 4)
    ]
    assert kept == [4, 4, 2]


def test_fsdp_reduces_in_each_flush_unless_the_loop_waits_for_the_last():
    """NeMo AutoModel's models with experts reduce once a step; PyTorch's stages in the last backward pass of each."""
    experts = replace(SHARDED, ep=16, moe_dispatcher="deepep", recompute="none")
    plans = {"llama3-70b": SHARDED, "qwen3-235b-a22b": replace(experts, pp=2, dp=32)}
    dense, mixture = (
        [
            leaf(run(replace(plan, pipeline_flushes=flushes), "automodel", model), "fsdp_exposed")
            for flushes in (1, 2, 4)
        ]
        for model, plan in plans.items()
    )
    assert dense[2] - dense[0] == pytest.approx(3 * (dense[1] - dense[0])) != 0
    assert mixture[0] == mixture[1] == mixture[2]


@pytest.mark.parametrize(("stack", "waits"), [("torchtitan-25.08", True), ("torchtitan-26.06", False)])
def test_interleaved_stages_of_older_pytorch_wait_for_their_messages(stack, waits):
    chunks = replace(SHARDED, vpp=2)
    hidden, shown = (run(replace(chunks, overlap_p2p=overlap), stack) for overlap in (True, False))
    assert (leaf(hidden, "pipeline_send_recv") == leaf(shown, "pipeline_send_recv")) == waits


@pytest.mark.parametrize(("task", "column"), [("pretrain", 0), ("lora", 1)])
def test_dtensor_takes_the_host_its_time_for_every_linear_layer(task, column):
    """Llama has seven: queries, keys, values, output; gate, up, down. What is recomputed goes forward again."""
    plan = Plan(tp=2, dp=4, zero_stage=3, fsdp=True)
    found = run(plan, "automodel", task=task).values
    without = run(replace(plan, tp=1, dp=8), "automodel", task=task).values
    for kind, each in (("forward", TENSOR_FORWARD), ("backward", TENSOR_BACKWARD)):
        kernels = sum(
            found[f"{block}_kernels_{kind}"] - without[f"{block}_kernels_{kind}"]
            for block in ("attention", "mlp")
        )
        added = found[f"host_issues_{kind}_pace"] - without[f"host_issues_{kind}_pace"]
        assert added == pytest.approx(80 * (7 * each[column] + kernels * found["host_kernel"]))
    again = run(replace(plan, recompute="full"), "automodel", task=task).values
    kernels = sum(
        again[f"{block}_kernels_backward"] - found[f"{block}_kernels_backward"]
        for block in ("attention", "mlp")
    )
    more = again["host_issues_backward_pace"] - found["host_issues_backward_pace"]
    assert more == pytest.approx(80 * (7 * TENSOR_FORWARD[column] + kernels * found["host_kernel"]))


def test_compiled_layers_spare_it():
    plan = Plan(tp=2, dp=4, zero_stage=3, fsdp=True)
    compiled, eager = (
        run(replace(plan, bias_dropout_fusion=fused)).values["host_issues_forward_pace"]
        for fused in (True, False)
    )
    assert eager > 80 * 7 * TENSOR_FORWARD[0] > compiled
