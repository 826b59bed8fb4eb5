"""Kernels that frameworks run beside products and fused streams, as read in their sources: who pays for which."""

from __future__ import annotations

from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.timeline import simulate
from costmodel.work import experts
from costmodel.workload import Workload

H100, B200 = (hardware_db.resolve(name, None)[0] for name in ("h100", "b200"))


def run(
    model: str,
    cluster: hardware_db.Cluster = H100,
    work: Workload | None = None,
    stack: str | None = None,
    **knobs: Any,
) -> Prediction:
    work = work or Workload(4096, 512)
    return predict(load_model(model), work, cluster, Plan(**knobs), stack)


def leaf(prediction: Prediction, name: str) -> float:
    return sum(term.value for term in prediction.time.leaves() if term.name == name)


def test_clamps_move_the_bytes_of_their_kernels():
    """Forward 8 widths a row where SwiGLU moves 3, backward 15 (30 bytes) where it moves 5; no other model clamps.

    Where nothing was profiled. On Hopper they wait for multiprocessors, as long as so many copies of heads.
    """
    found = run("gpt-oss-120b", B200, ep=8, dp=8).values
    # An activation function runs at the rate of a copy.
    slower = found["contiguous_fraction"] / found["elementwise_fraction"]
    assert found["experts_clamp_forward"] == pytest.approx(
        found["experts_activation_forward"] * 8 / 3 * slower
    )
    assert found["experts_clamp_backward"] == pytest.approx(
        # Forward, for backward the activation function can wait for the multiprocessors.
        found["experts_activation_forward"] * 15 / 3 * slower
    )
    hopper = run("gpt-oss-120b", ep=8, dp=8).values
    rows = hopper["b"] * hopper["s"] * hopper["topk"]
    cycles = (
        hopper["head_copy_cycles"] * rows * hopper["fe"] / (hopper["sm_cycles"] * hopper["release_scale"])
    )
    for way, copies in zip(("forward", "backward"), experts.CLAMP_COPIES, strict=True):
        assert hopper[f"experts_clamp_{way}"] == pytest.approx(copies * cycles)
    assert run("qwen3-30b-a3b", ep=8, dp=8).values["experts_clamp_forward"] == 0


def test_recompute_of_the_activation_clamps_again():
    knobs: dict[str, Any] = {"ep": 8, "dp": 8}
    again = run("gpt-oss-120b", recompute="selective", recompute_modules=("moe_act",), **knobs).values
    both = again["experts_clamp_forward"] + again["experts_activation_forward"]
    assert again["experts_recompute"] == pytest.approx(both)
    assert run("gpt-oss-120b", **knobs).values["experts_recompute"] == 0


def test_biases_of_experts_cost_kernels_for_each_expert():
    """Two forward and six backward for each local expert, of FC2 alone; 28 and 40 bytes an element."""
    many, few = (run("gpt-oss-120b", ep=ep, dp=16).values for ep in (4, 16))
    more = 128 / 4 - 128 / 16
    assert many["experts_kernels_forward"] - few["experts_kernels_forward"] == pytest.approx(2 * more)
    assert many["experts_kernels_backward"] - few["experts_kernels_backward"] == pytest.approx(6 * more)
    assert many["experts_expert_bias_backward"] == pytest.approx(
        many["experts_expert_bias_forward"] * 40 / 28
    )


@pytest.mark.parametrize(
    ("precision", "dispatcher", "padded"),
    [
        ("bf16", "alltoall", False),
        ("fp8-cs", "alltoall", True),
        ("fp8-cs", "deepep", True),
        ("fp8-cs", "hybridep", False),
    ],
)
def test_rows_are_filled_up_for_quantised_products(precision, dispatcher, padded):
    found = run("qwen3-30b-a3b", ep=8, dp=8, precision=precision, moe_dispatcher=dispatcher).values
    # Two copies of rows of 2,048, read and written, where SwiGLU moves three times rows of 768.
    # An activation function runs at the rate of a copy.
    slower = found["contiguous_fraction"] / found["elementwise_fraction"]
    moved = found["experts_activation_forward"] * 4 * 2048 / (3 * 768) * slower
    assert found["experts_padding_forward"] == pytest.approx(padded * moved)


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep", "hybridep"])
def test_the_host_stops_with_every_dispatcher(dispatcher):
    """Forward waits by itself, where a capacity factor lets the lead of one pass help the other."""
    knobs: dict[str, Any] = {"ep": 8, "dp": 8, "moe_dispatcher": dispatcher}
    dropless = run("qwen3-30b-a3b", **knobs)
    padded = run("qwen3-30b-a3b", moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True, **knobs)
    assert leaf(dropless, "forward_wait") > 0
    assert leaf(padded, "forward_wait") == 0
    assert dropless.values["host_wait_forward"] > padded.values["host_wait_forward"]


def test_frozen_weights_spare_the_copies_that_their_gradients_would_read():
    """Hopper's FP8 keeps a copy for each direction, of which adapters need one; Blackwell's has one, BF16 none."""

    def quantising(cluster: hardware_db.Cluster, precision: str, task: str) -> float:
        found = run("llama3-8b", cluster, Workload(4096, 64, task), dp=8, precision=precision)
        return leaf(found, "backward_quantise")

    assert quantising(H100, "fp8-delayed", "lora") == pytest.approx(
        quantising(H100, "fp8-delayed", "sft") * 3 / 4
    )
    assert quantising(B200, "fp8-cs", "lora") == pytest.approx(quantising(B200, "fp8-cs", "sft"))
    assert quantising(H100, "bf16", "lora") == 0


def test_a_loss_of_megatron_core_moves_fp32_logits():
    """40 bytes of a logit, 10 in Triton, 52 not fused; 8 more of them are held. Until NeMo 25.02 there is no other."""

    def loss(stack: str, fused: bool, whose: str = "te") -> tuple[float, float]:
        plan = Plan(dp=8, fused_cross_entropy=fused, cross_entropy_fusion_impl=whose)
        found = predict(load_model("llama3-8b"), Workload(8192, 64), H100, plan, stack).values
        return found["loss_time"] * found["release_scale"], found["memory_first_logits"]

    (native, held), (triton, least) = loss("nemo-25.09", True, "native"), loss("nemo-25.09", True)
    eager = loss("nemo-25.09", False)[0]
    assert loss("nemo-25.04", True) == pytest.approx((triton, least))
    for whose in ("te", "native"):
        assert loss("nemo-25.02", True, whose) == pytest.approx((native, held))
        assert loss("torchtitan-26.06", True, whose) == loss("torchtitan-26.06", True)
    assert native == pytest.approx(triton * 40 / 10)
    assert eager == pytest.approx(triton * 52 / 10)
    assert held - least == pytest.approx(8 * 8192 * 128256)


def test_mamba_copies_where_a_micro_batch_has_several_sequences():
    """The projection's output and the scan's, beside the convolution that reads and writes as much of its own."""
    one, two = (
        run("nemotronh-56b", work=Workload(8192, 64), tp=8, micro_batch=size).values for size in (1, 2)
    )
    mamba = load_model("nemotronh-56b").mamba
    assert mamba is not None
    inner = mamba.num_heads * mamba.head_dim / 8
    shared = 2 * max(mamba.num_groups / 8, 1) * mamba.state_dim
    wide = 2 * inner + shared + mamba.num_heads / 8
    assert one["mamba_copies_forward"] == 0
    assert two["mamba_copies_forward"] == pytest.approx(
        two["mamba_convolution_forward"] * (wide + inner) / (inner + shared)
    )


@pytest.mark.parametrize(("stack", "elements"), [("nemo-26.04", 61440), ("nemo-26.06", 61440 - 2 * 8192)])
def test_a_gated_delta_net_copies_around_its_convolution(stack, elements):
    """Qwen3-Next, elements a token, and 8,192 more where a micro-batch has several sequences."""
    one, two = (
        run("qwen3-next-80b-a3b", stack=stack, ep=8, dp=8, micro_batch=size).values for size in (1, 2)
    )
    assert one["delta_copies_forward"] == pytest.approx(
        one["delta_convolution_forward"] * elements / (2 * 8192)
    )
    assert two["delta_copies_forward"] == pytest.approx(
        2 * one["delta_copies_forward"] * (elements + 8192) / elements
    )


def test_routers_in_fp32_cast_their_gradients():
    """16 bytes of each element of the input beside the 6 of an addition; Mixtral's eight experts stay in 16 bits."""
    for model, casts in (("deepseek-v3", 16), ("qwen3-30b-a3b", 16), ("mixtral-8x7b", 0)):
        found = run(model, ep=8, dp=8).values
        sums = 2 if load_model(model).moe.shared_expert_ffn else 1
        more = found["experts_routing_backward"] - found["experts_routing_forward"]
        assert more == pytest.approx(found["experts_joins_backward"] / sums * casts / 6)


def test_deepep_permutes_what_came_once_for_each_rank():
    """Over 8 ranks a token's 8 experts are on 8 (1 - (7/8)^8) of them: so many are read, 8 rows written."""
    once, copies = (
        run("qwen3-30b-a3b", ep=8, dp=8, moe_dispatcher=kind).values["experts_permute_forward"]
        for kind in ("deepep", "alltoall")
    )
    came = 8 * (1 - (7 / 8) ** 8)
    assert once / copies == pytest.approx((came + 8) / (1 + 8 + 2 * 8))


def test_recompute_of_experts_waits_again():
    """The repeated forward pass of the block asks for the counts once more, beside its products of uneven groups."""
    knobs: dict[str, Any] = {"ep": 8, "dp": 8}
    found = run("qwen3-30b-a3b", recompute="selective", recompute_modules=("moe",), **knobs)
    waits = leaf(found, "forward_wait")
    fixed = run(
        "qwen3-30b-a3b",
        recompute="selective",
        recompute_modules=("moe",),
        moe_capacity_factor=1.0,
        moe_pad_expert_input_to_capacity=True,
        **knobs,
    )
    uneven = sum(leaf(found, name) - leaf(fixed, name) for name in ("forward_experts", "forward_dispatch"))
    assert waits > 0
    assert leaf(found, "recompute") - leaf(fixed, "recompute") == pytest.approx(waits + uneven, rel=0.01)


@pytest.mark.parametrize(
    ("where", "precision", "share"),
    [
        # The norm writes the operand, and all of it is transposed behind.
        ("h100", "fp8-delayed", 1),
        # 3 of 4 bytes on a quarter of the tokens, and a transposition of all: 3/4 + 2 of 4.
        ("h100", "fp8-cs", (3 / 4 + 2) / 4),
        ("b200", "fp8-cs", 1 / 4),
        ("b200", "mxfp8", 1 / 4),
    ],
)
def test_gathered_operands_are_quantised_before_the_gather(where, precision, share):
    """Inputs of column-parallel layers under sequence parallelism, over those of a rank that has them whole."""
    cluster = hardware_db.resolve(where, None)[0]

    def elements(tp: int) -> float:
        sizes: dict[str, Any] = {"tp": tp, "dp": 8 // tp, "sequence_parallel": tp > 1}
        found = run("llama3-8b", cluster, Workload(8192, 8 * 4096), precision=precision, **sizes)
        values = found.values
        latency = values["all_reduce_low_latency"] + (tp - 1) * values["all_reduce_low_latency_per_rank"]
        # Less the exchange of a maximum by ranks that share one scale.
        return values["mlp_fc1_quantise_forward"] - values["joint_scale"] * (tp > 1) * latency

    # Many micro-batches, over which the weights' casts vanish.
    assert elements(4) == pytest.approx(share * elements(1), rel=0.02)


def on(stack: str, model: str = "llama3-8b", **knobs: Any) -> Prediction:
    return predict(load_model(model), Workload(8192, 64), H100, Plan(dp=8, **knobs), stack)


@pytest.mark.parametrize("stack", ["torchtitan-24.12", "automodel-26.04"])
def test_norms_that_nothing_compiles_are_rows_of_kernels(stack: str):
    """36 bytes an element forward and 92 backward, where a fused norm moves 4 and 6; 8 and 16 kernels for one."""
    fused, apart = on(stack), on(stack, bias_dropout_fusion=False)
    for name in ("attention_norm", "mlp_norm"):
        assert apart.values[f"{name}_forward"] == pytest.approx(fused.values[f"{name}_forward"] * 36 / 4)
        assert apart.values[f"{name}_backward"] == pytest.approx(fused.values[f"{name}_backward"] * 92 / 6)
    for way, kernels in (("forward", 7), ("backward", 15)):
        more = apart.values[f"mlp_kernels_{way}"] - fused.values[f"mlp_kernels_{way}"]
        assert more == pytest.approx(kernels)
    kept = 32 * 2 * 6 * 8192 * 4096  # layers, norms, bytes, tokens, width
    grown = apart.memory.value - fused.memory.value
    assert kept <= grown <= 1.1 * kept  # and what the allocator loses of it


@pytest.mark.parametrize("stack", ["nemo-26.06", "torchtitan-26.06", "llm_foundry-23.11"])
def test_norms_of_one_kernel_stay_so(stack: str):
    fused, apart = on(stack), on(stack, bias_dropout_fusion=False)
    assert apart.values["mlp_norm_backward"] == fused.values["mlp_norm_backward"]
    assert apart.memory.value == fused.memory.value


def test_a_bare_residual_addition_is_one_kernel_either_way():
    """A bias or dropout stands apart from it when not fused; Llama has neither."""
    assert on("nemo-26.06", bias_dropout_fusion=False).step_time_s == on("nemo-26.06").step_time_s
    gpt = [on("nemo-26.06", "gpt3-5b", bias_dropout_fusion=fused).values for fused in (True, False)]
    assert gpt[1]["mlp_residual_forward"] > gpt[0]["mlp_residual_forward"]
    assert gpt[1]["mlp_kernels_forward"] - gpt[0]["mlp_kernels_forward"] == pytest.approx(2)


def test_experts_with_biases_take_the_fused_residual_from_the_whole_model():
    """TEGroupedMLP refuses it: attention adds its bias apart (4 bytes an element more than 6), experts their own."""
    oss = [run("gpt-oss-20b", ep=8, dp=8, bias_dropout_fusion=fused) for fused in (True, False)]
    assert oss[0].step_time_s == oss[1].step_time_s
    grouped = oss[0].values
    attention, experts = (grouped[f"{block}_residual_forward"] for block in ("attention", "experts"))
    assert attention == pytest.approx(experts * 10 / 6)
    apart = run("gpt-oss-20b", ep=8, dp=8, moe_grouped_gemm=False).values
    assert apart["attention_residual_forward"] == apart["experts_residual_forward"] == experts


def test_the_host_launches_adapters():
    """Four kernels forward and eight backward for each adapted product: two of attention, two of the MLP."""

    def kernels(targets: str, rank: int = 16) -> dict[str, float]:
        work = Workload(4096, 64, "lora", lora_rank=rank, lora_targets=targets)
        return run("llama3-8b", work=work, dp=8).values

    few, many = kernels("qkv"), kernels("all")
    for way, number in (("forward", 4), ("backward", 8)):
        for block, more in (("attention", 1), ("mlp", 2)):
            name = f"{block}_kernels_{way}"
            assert many[name] - few[name] == pytest.approx(more * number)


def test_frozen_weights_take_no_gradients_from_the_host():
    """Against training all weights: one kernel less for each product of a block but the adapted ones' own."""
    adapters = Workload(4096, 64, "lora", lora_targets="qkv")
    frozen, trained = (run("llama3-8b", work=work, dp=8).values for work in (adapters, Workload(4096, 64)))
    assert trained["mlp_kernels_backward"] - frozen["mlp_kernels_backward"] == 2
    assert trained["attention_kernels_backward"] - frozen["attention_kernels_backward"] == 2 - 8
    assert trained["mlp_kernels_forward"] == frozen["mlp_kernels_forward"]


@pytest.mark.parametrize("grouped", [True, False])
def test_frozen_experts_launch_data_gradients_alone(grouped):
    """Spared: the router's product, two of each of 8 experts in a loop or by themselves, 3 kernels of each FC2 bias."""
    adapters = Workload(4096, 64, "lora", lora_targets="qkv")
    frozen, trained = (
        run("gpt-oss-20b", work=work, ep=4, dp=8, moe_grouped_gemm=grouped).values
        for work in (adapters, Workload(4096, 64))
    )
    spared = (trained["experts_launch_gaps"] - frozen["experts_launch_gaps"]) / trained["kernel_launch"]
    assert spared == pytest.approx(1 + 2 * 8 + 3 * 8)
    assert frozen["experts_expert_bias_backward"] * 2 == trained["experts_expert_bias_backward"] > 0


def filling(**knobs: Any) -> tuple[float, Prediction]:
    """What waiting for the host does not share with the number of micro-batches, on four stages."""
    few, many = (
        run("qwen3-30b-a3b", work=Workload(1024, 8 * count), pp=4, ep=8, dp=8, **knobs) for count in (8, 16)
    )
    return 2 * leaf(few, "host_bound") - leaf(many, "host_bound"), few


def test_a_pipeline_fills_through_one_halting_host_after_the_other():
    """Three stages are in front of the last. With capacities and overlapped exchanges hosts run ahead."""
    seconds, dropless = filling()
    assert seconds == pytest.approx(3 * dropless.values["host_wait_forward"])
    assert seconds > 0
    ahead, padded = filling(moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True, vpp=2)
    assert leaf(padded, "host_bound") > 0
    assert ahead == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("knobs", [{}, {"vpp": 2, "overlap_p2p": False}])
def test_exchanges_in_batches_stop_the_host_in_every_pass(knobs):
    """Megatron-Core synchronises after a batch of sends and receives: no pass lends its lead to another."""
    seconds, padded = filling(moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True, **knobs)
    assert seconds == pytest.approx(3 / knobs.get("vpp", 1) * padded.values["host_wait_forward"])
    assert seconds > 0


def test_a_dense_pipeline_waits_for_the_host_in_forward_passes_where_exchanges_stop_it():
    """Small layers: forward passes are issued more slowly than they run, backward passes lend them nothing."""
    waits = []
    for overlap in (True, False):
        work = Workload(1024, 256)
        waits.append(run("llama3-8b", work=work, pp=4, vpp=2, dp=8, overlap_p2p=overlap, precision="fp8-cs"))
    ahead, stopped = (leaf(prediction, "host_bound") for prediction in waits)
    assert stopped > ahead


def test_a_simulated_pipeline_fills_as_the_formula_says():
    """Halts leave no more unexplained than there is without them."""
    (_, dropless), (_, padded) = (
        filling(),
        filling(moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True),
    )
    assert simulate(dropless).residual == pytest.approx(simulate(padded).residual)


def test_permuting_rows_is_slower_on_blackwell_than_other_kernels():
    """0.50 against 0.67 of HBM (SimuMax's B200); on Hopper nobody says so."""
    hopper, blackwell = (run("qwen3-30b-a3b", cluster, ep=8, dp=8).values for cluster in (H100, B200))
    kinds = ("experts_permute_forward", "experts_routing_forward")
    relative = [values[kinds[0]] / values[kinds[1]] for values in (blackwell, hopper)]
    assert relative[0] / relative[1] == pytest.approx(0.67 / 0.50, rel=1e-3)


@pytest.mark.parametrize("cluster", [H100, B200])
def test_activations_and_additions_run_at_the_rate_of_a_copy(cluster):
    """Bytes over time of the residual addition (read two, write one) and of SwiGLU (read two, write one a column)."""
    found = predict(load_model("llama3-8b"), Workload(4096, 8), cluster, Plan(dp=8)).values
    scale = found["elementwise_scale"] * found["release_scale"] * found["hbm_bandwidth"]
    for stream, size in (("residual", 3 * 2 * 4096 * 4096), ("activation", 3 * 2 * 4096 * 14336)):
        rate = size / found[f"mlp_{stream}_forward"] / scale
        assert rate == pytest.approx(found["contiguous_fraction"])
        assert rate == pytest.approx(found["stream_fraction"]) != found["elementwise_fraction"]
