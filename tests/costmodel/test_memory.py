"""Laws of one rank's memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from costmodel.amounts import rank_amounts
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


def test_overlapped_dispatch_has_its_rows_beside_the_layer_computed():
    """Rows as sent and as received, 16 bits of h for each of topk copies, to the experts and back.

    Alone they are there in the forward pass, and the larger of both passes counts.
    """
    model = load_model("qwen3-30b-a3b")
    sizes = {"model": model.name, "pp": 2, "vpp": 2, "ep": 4, "dp": 4, "seq_len": 4096}
    apart, beside = (run(**sizes, overlap_moe_comm=on) for on in (False, True))
    assert model.moe is not None
    forward = 2 * 2 * model.hidden * 2 * 4096 * model.moe.topk
    backward = part(beside, "workspace") - forward
    rows = 2 * 4096 * model.moe.topk
    # FC1's gradient of rows, or rows and their gradient without FC2's input, beside the gradient that came in.
    assert backward == 2 * 4096 * model.hidden + rows * max(
        2 * model.moe.expert_ffn, 2 * model.hidden - model.moe.expert_ffn
    )
    assert part(apart, "workspace") == max(backward, forward)


def test_pytorchs_fsdp_beside_stages_keeps_the_stage_gathered_and_megatrons_does_not():
    shards: dict[str, Any] = {"fsdp": True, "zero_stage": 3, "recompute": "full"}
    for stack in ("torchtitan", "nemo"):
        plans = (Plan(dp=8, **shards), Plan(pp=2, dp=8, **shards))
        alone, staged = (
            predict(load_model("llama3-8b"), Workload(8192, 64), load_cluster("dgx-h100"), plan, stack)
            for plan in plans
        )
        stage = staged.values[f"{staged.worst_stage}_stage_parameters"]
        if stack == "nemo":
            assert part(staged, "gathered") < (2 + 4) * stage / 2
        else:
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


WITH_HEADS = (
    "deepseek-v3",
    "nemotron3-super-120b-a12b",
    "nemotron3.5-lightning-30b-a3b",
    "qwen3-next-80b-a3b",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"recompute": "full"},
    {"recompute": "selective", "recompute_modules": ("moe",)},
    {"recompute": "none"},
)


def both(model: str, stage: int, **knobs: Any) -> tuple[dict[str, float], Any]:
    """Values of a step, and amounts of a rank of one of its stages; the router in FP32, gated delta nets as in 0.16."""
    plan = Plan(dp=2, **knobs)
    spec, workload = load_model(model), Workload(4096, 64)
    spec = replace(spec, moe=replace(spec.moe, router_dtype="fp32"))
    stack = "nemo-26.04" if spec.gated_delta else None
    values = predict(spec, workload, load_cluster("dgx-b200"), plan, stack).values
    return values, rank_amounts(plan, workload, spec, stage)


@pytest.mark.parametrize("model", [*WITH_HEADS, "qwen3-30b-a3b", "kimi-k2"])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each["recompute"])
def test_activations_are_those_that_a_rank_is_counted_to_keep(model, setting):
    """Full recompute leaves out MTP heads, and every recomputed expert block keeps one set of maps."""
    for tp, pp, vpp in ((1, 1, 1), (1, 4, 1), (2, 2, 2)):
        for stage, name in ((0, "first"), (pp - 1, "last")):
            values, counted = both(model, stage, tp=tp, pp=pp, vpp=vpp, sequence_parallel=tp > 1, **setting)
            wanted = counted.peak - counted.saved.get("output", 0)
            assert values[f"memory_{name}_activations"] == pytest.approx(wanted, rel=1e-9)


def test_maps_of_dispatchers_are_held_once_whatever_is_in_flight():
    _, first = both("qwen3-30b-a3b", 0, pp=4, recompute="full")
    assert first.peak == 4 * first.saved["layer"] + first.saved["dispatcher"]


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "nemotron3-super-120b-a12b"])
@pytest.mark.parametrize("pp", [1, 4])
def test_gathered_tokens_stand_once_in_a_buffer_of_all_layers(model, pp):
    """Megatron-Core 0.16.1, token_dispatcher.py, use_global_buffer: tokens of all expert ranks."""
    plan = {"pp": pp, "dp": 8, "ep": 8, "recompute": "none"}
    found, moved = (
        run(model, seq_len=4096, moe_dispatcher="allgather", **plan),
        run(model, seq_len=4096, **plan),
    )
    spec = load_model(model)
    buffer = 8 * 4096 * (spec.moe.latent_size or spec.hidden) * 2
    assert part(found, "activations") - part(moved, "activations") == pytest.approx(buffer, rel=1e-9)
    # Results before their reduction are as large: a workspace that holds no less.
    assert part(found, "workspace") >= buffer - part(found, "logits")


def test_shared_experts_beside_the_dispatch_keep_what_they_gather():
    """Megatron-Core 0.16.1, shared_experts.py, pre_forward_comm: whole sequences, which no pass gathers again."""
    plan = {"tp": 2, "dp": 8, "ep": 8, "sequence_parallel": True}
    spec = load_model("deepseek-v3")
    amounts = [
        rank_amounts(Plan(**plan, shared_expert_overlap=beside), Workload(4096, 64), spec, 0)
        for beside in (False, True)
    ]
    plain, beside = (each.saved["experts"] for each in amounts)
    blocks = spec.num_layers - spec.moe.dense_first_layers + spec.mtp_layers
    assert beside - plain == blocks * 4096 * spec.hidden * 2
    again = [
        sum(
            one.total_bytes
            for one in each.messages
            if (one.operation, one.phase) == ("all_gather", "backward")
        )
        for each in amounts
    ]
    assert again[0] - again[1] == 8 * blocks * 4096 * spec.hidden * 2


@pytest.mark.parametrize(("model", "tables"), [("llama3-8b", 1), ("glm-4.7-flash", 2)])
def test_gradients_of_the_embedding_stand_at_the_end_of_a_backward_pass(model, tables):
    """Dense, when little else is left; heads of MTP on the same stage make a second, to which it is added."""
    found = run(model, seq_len=64, fused_cross_entropy=True, recompute="full")
    table = 2 * load_model(model).vocab * load_model(model).hidden
    passing = part(found, "workspace") + part(found, "logits")
    assert (tables - 0.1) * table < passing < (tables + 0.1) * table


@pytest.mark.parametrize(("precision", "element"), [("bf16", 2), ("fp32", 4)])
def test_scores_are_kept_in_the_activations_format(precision, element):
    spec, workload = load_model("llama3-8b"), Workload(4096, 4)
    written, fused = (
        rank_amounts(Plan(precision=precision, attention_backend=kind), workload, spec, 0).saved["attention"]
        for kind in ("unfused", "fused")
    )
    assert written - fused == spec.num_layers * element * spec.num_heads * 4096**2


@pytest.mark.parametrize("model", WITH_HEADS)
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_all_heads_of_a_stage_share_one_copy_of_the_embedding(model, pp):
    values, counted = both(model, pp - 1, pp=pp)
    assert values["last_stage_parameters"] == pytest.approx(counted.parameters["dense"], rel=1e-4)


def test_heads_before_the_last_stage_are_there_and_their_logits_are_not():
    """Megatron-Core's MTP block is where the layout has it, the loss and the output layer of its heads on the last."""
    layout = "Et*15|t*15|t*31m|L"
    values, last = both("deepseek-v3", 3, pp=4, pipeline_layout=layout)
    fullest, before = both("deepseek-v3", 2, pp=4, pipeline_layout=layout)
    assert fullest["fullest_stage"] == 2
    assert values["last_stage_parameters"] == pytest.approx(last.parameters["dense"], rel=1e-4)
    assert values["fullest_stage_parameters"] == pytest.approx(before.parameters["dense"], rel=1e-4)
    assert values["memory_fullest_activations"] == pytest.approx(before.peak, rel=1e-9)
    assert "output" not in before.flops
    assert "mtp_proj" in before.flops
    _, plain = both("deepseek-v3", 3, pp=4, pipeline_layout="Et*15|t*15|t*30|t*1mL")
    assert last.flops["output"] == plain.flops["output"]


@pytest.mark.parametrize("setting", [{"recompute": "full"}, {"offload_layers": 32}])
def test_gradients_that_queue_are_not_made_room_for_by_activations_that_are_not_there(setting):
    """Megatron's FSDP reduces 5 layers of 8B at a time; of longer sequences no room comes back that none had taken."""
    sizes: dict[str, Any] = {"dp": 8, "fsdp": True, "zero_stage": 3}
    short, long = (run(seq_len=seq_len, **sizes, **setting) for seq_len in (4096, 4096 + 256))
    assert part(short, "gathered") > part(run(seq_len=4096, **sizes), "gathered")
    assert long.peak_memory_bytes > short.peak_memory_bytes
