"""Laws of one rank's memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from hardware_db import load_cluster

GIB = 2**30


def run(model: str = "llama3-8b", cluster: str = "dgx-h100", seq_len: int = 8192, **knobs: Any) -> Prediction:
    plan = Plan(**knobs)
    batch = plan.dp * plan.micro_batch * max(4, 2 * plan.pp)
    return predict(load_model(model), Workload(seq_len, batch), load_cluster(cluster), plan)


def part(prediction: Prediction, name: str) -> float:
    return sum(each.value for each in prediction.memory.parts if each.name.endswith(f"_{name}"))


@pytest.mark.parametrize("segments", [True, False])
def test_allocated_reserved_and_device_contain_one_another(segments):
    """Device is reserved and context, reserved is allocated and what the allocator loses; the parts sum to device."""
    found = run(dp=8, expandable_segments=segments)
    assert found.allocated_bytes < found.reserved_bytes < found.peak_memory_bytes
    assert found.peak_memory_bytes == pytest.approx(sum(each.value for each in found.memory.parts))
    memory = found.to_dict()["memory"]
    assert memory["allocated_gib"] * GIB == pytest.approx(found.allocated_bytes)
    assert memory["reserved_gib"] * GIB == pytest.approx(found.reserved_bytes)
    assert memory["worst_rank_gib"] * GIB == pytest.approx(found.peak_memory_bytes)


def test_per_op_recompute_keeps_input_every_other_product_and_the_attention_output():
    """16 bits: input h, queries h, values k d, core output h and one of FC1's two halves f, with a log-sum-exp."""
    model = load_model("llama3-8b")
    found = run(dp=8, recompute="selective", recompute_modules=("ops",))
    elements = 3 * model.hidden + model.num_kv_heads * model.head_dim + model.ffn_hidden
    kept = found.values["attention_activation_bytes"] + found.values["mlp_activation_bytes"]
    assert kept == 8192 * (2 * elements + 4 * model.num_heads)


def test_recompute_orders_from_none_over_per_op_to_full():
    settings = (
        {},
        {"recompute": "selective", "recompute_modules": ("layernorm",)},
        {"recompute": "selective", "recompute_modules": ("ops",)},
        {"recompute": "full"},
    )
    peaks = [run(dp=8, **setting).allocated_bytes for setting in settings]
    assert peaks == sorted(peaks, reverse=True)


def test_overlapped_dispatch_holds_a_layer_more_not_a_micro_batch():
    sizes: dict[str, Any] = {"ep": 16, "dp": 16}
    without, beside = (
        run("qwen3-30b-a3b", seq_len=4096, overlap_moe_comm=overlap, **sizes) for overlap in (False, True)
    )
    one = part(without, "activations")
    assert 0 < part(beside, "activations") - one <= one / load_model("qwen3-30b-a3b").num_layers * (1 + 1e-9)


def test_fsdp_beside_stages_keeps_the_stage_gathered():
    shards: dict[str, Any] = {"fsdp": True, "zero_stage": 3, "recompute": "full"}
    alone, staged = run(dp=8, **shards), run(pp=2, dp=8, **shards)
    stage = staged.values[f"{staged.worst_stage}_stage_parameters"]
    assert part(staged, "gathered") == pytest.approx((2 + 4) * stage)
    assert part(alone, "gathered") < part(staged, "gathered")


def test_offloaded_layers_leave_as_soon_as_their_buffers_are_free():
    """Half of the layers in host memory: half of the activations; all of them: two layers' buffers."""
    whole, half, none_left = (part(run(dp=8, offload_layers=layers), "activations") for layers in (0, 16, 32))
    assert half == pytest.approx(whole / 2)
    assert none_left == pytest.approx(2 / 32 * whole)


def test_each_communicator_takes_buffers():
    """None with one GPU, one with data parallelism, two with tensor parallelism beside it."""
    contexts = [part(run(**sizes), "context") for sizes in ({}, {"dp": 8}, {"tp": 2, "dp": 4})]
    steps = [after - before for before, after in itertools.pairwise(contexts)]
    assert steps[0] == pytest.approx(steps[1])
    assert steps[0] == pytest.approx(contexts[0])


def test_graphs_of_one_micro_batch_share_what_eager_mode_holds():
    """Without stages graphs add little beside static buffers; with stages a pool for each micro-batch in flight."""
    alone = run("llama3-70b", "dgx-b200", tp=8, sequence_parallel=True, cuda_graph=True)
    staged = run("llama3-70b", "dgx-b200", tp=8, pp=4, vpp=5, sequence_parallel=True, cuda_graph=True)
    assert part(alone, "graphs") < 0.25 * part(alone, "activations")
    assert part(staged, "graphs") > 0.3 * part(staged, "activations")


@pytest.mark.parametrize("precision", ["fp8-cs", "mxfp8"])
def test_only_delayed_scaling_copies_the_attention_output(precision):
    model = with_overrides(load_model("llama3-8b"), {"num_layers": 4})
    plan = Plan(dp=8, precision=precision)
    workload = Workload(8192, 32)
    delayed, anew = (
        predict(model, workload, load_cluster("dgx-b200"), replace(plan, precision=kind)).values[
            "attention_activation_bytes"
        ]
        for kind in ("fp8-delayed", precision)
    )
    assert delayed > anew


def test_the_fullest_stage_between_may_be_the_worst():
    """DeepSeek-V3 with its dense layers on the first two stages: the third holds two expert layers more than they."""
    model = with_overrides(load_model("deepseek-v3"), {"mtp_layers": 0})
    plan = Plan(pp=8, vpp=4, ep=32, dp=32, precision="mxfp8", pipeline_layout="Et|(tt|)*30L")
    plan = replace(plan, recompute="selective", recompute_modules=("mlp",))
    prediction = predict(model, Workload(4096, 2048), load_cluster("gb200-nvl72"), plan)
    values = prediction.values
    assert values["fullest_stage"] == 2
    assert values["experts_fullest"] == values["experts_second"] + 2
    assert values["fullest_stage_in_flight"] < values["second_stage_in_flight"]
    assert prediction.worst_stage == "fullest"
    assert prediction.peak_memory_bytes == values["memory_fullest"] > values["memory_second"]
