"""Laws of single terms of a step that compute: experts, attention, activations, MTP heads, waiting for the host."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from step_cases import H100, leaf, qwen

import hardware_db
from costmodel.family import compiled_family
from costmodel.model_registry import load_model
from costmodel.passes import chunk_times
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.symbols import INPUTS
from costmodel.timing.network import reduce_scatter_time
from costmodel.work import communication
from costmodel.workload import Workload

B200 = hardware_db.resolve("b200", None)[0]


@pytest.mark.parametrize(("precision", "launches"), [("bf16", 1), ("fp8-cs", 3)])
def test_each_expert_of_a_rank_is_a_launch_in_the_loop(precision, launches):
    for ep in (4, 8, 16):
        issued = qwen(ep=ep, precision=precision).values["experts_loops_forward"]
        assert issued == 2 * launches * 128 / ep  # two products for each of the rank's experts


def test_nvfp4_quantises_the_rows_of_all_experts_at_once():
    """Two kernels for the operand of each of two grouped products, in place of three for each expert."""
    plan, load = Plan(dp=16, ep=8, precision="nvfp4"), Workload(4096, 512)
    apart, together = (
        predict(load_model("qwen3-30b-a3b"), load, B200, plan, f"nemo-{release}").values
        for release in ("26.02", "26.06")
    )
    assert apart["experts_loops_forward"] == 2 * 4 * 128 / 8
    assert together["experts_loops_forward"] == 2 * 128 / 8
    assert together["experts_kernels_forward"] - apart["experts_kernels_forward"] == 2 * 2


def test_graphs_of_the_router_do_not_hold_the_loop_over_experts():
    eager = qwen(ep=8, precision="fp8-cs")
    router = qwen(ep=8, precision="fp8-cs", cuda_graph=True, cuda_graph_scope=("attn", "moe_router"))
    loops = 3 * eager.values["experts_loops_forward"] * 48 * eager.plan.num_microbatches(512)
    assert leaf(eager, "host_bound") > leaf(router, "host_bound") >= 0
    assert leaf(router, "launch_gaps") > loops * 1e-6  # a gap each, 1.2 us without a graph


@pytest.mark.parametrize(
    ("block", "model", "ep", "holds", "other"),
    [("delta", "qwen3-next-80b-a3b", 32, "attn", "mamba"), ("mamba", "nemotronh-8b", 1, "mamba", "attn")],
)
def test_a_recurrent_mixer_is_in_the_graphs_that_megatron_core_puts_it_in(block, model, ep, holds, other):
    """A gated delta net is its layer's attention, a Mamba mixer a layer of its own."""

    def gaps(**knobs: Any) -> float:
        found = predict(load_model(model), Workload(4096, 64), H100, Plan(dp=32, ep=ep, **knobs))
        return found.values[f"{block}_launch_gaps"]

    held, apart = (gaps(cuda_graph=True, cuda_graph_scope=(scope,)) for scope in (holds, other))
    assert held < apart == pytest.approx(gaps())


@pytest.mark.parametrize(("model", "slower"), [("nemotron4-15b", True), ("llama3-8b", False)])
def test_squared_relu_that_nothing_compiles_moves_more(model, slower):
    """NeMo 2 left its squared ReLU to PyTorch: 4 and 10 passes over FC2's input where a compiled one makes 2 and 3."""
    plain, compiled = (
        predict(load_model(model), Workload(4096, 64), H100, Plan(dp=8), stack).values
        for stack in ("nemo-25.02", "nemo-25.09")
    )
    passes = {"forward": (4, 2), "backward": (10, 3)}
    for direction, (apart, together) in passes.items():
        # A release's kernels have their own rate, which the norm's time shows.
        rate = plain[f"mlp_norm_{direction}"] / compiled[f"mlp_norm_{direction}"]
        ratio = plain[f"mlp_activation_{direction}"] / compiled[f"mlp_activation_{direction}"] / rate
        assert ratio == pytest.approx(apart / together if slower else 1)
    assert (plain["mlp_kernels_backward"] > compiled["mlp_kernels_backward"]) == slower


def test_a_step_that_waits_for_the_host_gains_nothing_from_its_network():
    """The host waits as much longer as the dispatch is quicker, with an MTP head too."""
    plan = Plan(dp=8, ep=8, etp=2, cp=2, zero_stage=0, overlap_grad_reduce=False)
    # From a tenth over a card's rate on gradients, which all cards of a node share, are bound by NVLink.
    slow, quick = (
        predict(
            load_model("qwen3-next-80b-a3b"),
            Workload(2048, 8),
            dataclasses.replace(
                H100, inter=dataclasses.replace(H100.inter, bandwidth=share * H100.inter.bandwidth)
            ),
            plan,
        )
        for share in (1.1, 2.2)
    )
    assert leaf(quick, "forward_dispatch") < 0.8 * leaf(slow, "forward_dispatch")
    assert quick.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


def test_one_expert_on_a_rank_is_a_plain_product():
    """Mixtral over 8 ranks: its grouped products run at the plain rate, those of two experts a rank slower."""
    predictions = {
        ep: predict(load_model("mixtral-8x7b"), Workload(4096, 64), H100, Plan(dp=8, ep=ep)) for ep in (8, 4)
    }
    assert predictions[8].values["grouped_scale"] < 1
    assert leaf(predictions[8], "forward_experts") < leaf(predictions[4], "forward_experts")


def test_experts_filled_to_their_capacity_are_plain_products():
    """Groups of one size lose nothing; uneven ones go at the grouped rate at most, with half a tile more."""
    uneven, filled = (
        leaf(qwen(ep=8, moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=padded), "forward_experts")
        for padded in (False, True)
    )
    x = qwen(ep=8).values
    tiles = x["b"] * x["s"] * x["topk"] * x["ep"] / x["E"] / 128
    # 1 %: the last wave, which ends anywhere too.
    assert filled < uneven <= 1.01 * filled / x["grouped_scale"] * (tiles + 0.5) / tiles


@pytest.mark.parametrize(
    ("model", "cluster", "apart"),
    [
        ("qwen3-next-80b-a3b", "gb200-nvl72", True),
        ("nemotron4-340b", "dgx-b200", True),
        ("qwen3-next-80b-a3b", "dgx-h100", False),
        ("qwen3-30b-a3b", "gb200-nvl72", False),
        ("deepseek-v3", "gb200-nvl72", False),
    ],
)
def test_wide_heads_took_flash_attention_2_on_blackwell(model, cluster, apart):
    """Heads of 192 and 256 before NeMo 26.06; latent attention's have kernels of their own."""
    sources = {
        release: predict(
            load_model(model),
            Workload(4096, 512),
            hardware_db.load_cluster(cluster),
            Plan(tp=8, dp=8),
            release,
        ).sources["attention_backward_fraction"]
        for release in ("nemo-26.04", "nemo-26.06")
    }
    assert ("FlashAttention-2" in sources["nemo-26.04"]) == apart
    assert "FlashAttention-2" not in sources["nemo-26.06"]


def deepseek(**knobs: Any) -> Prediction:
    return predict(load_model("deepseek-v3"), Workload(4096, 256), H100, Plan(dp=8, ep=8, **knobs))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_full_recompute_leaves_out_mtp_heads(recompute):
    """With method `block`, which plans are exported with, Megatron-Core runs heads without a checkpoint."""
    prediction = deepseek(recompute=recompute)
    values, repeated = prediction.values, recompute == "full"
    layers = {name: values[f"{name}_pace"] - values[f"{name}_mtp"] for name in ("mla", "mlp", "experts")}
    again = {name: values[f"{name}_backward_time"] for name in layers}
    plain = deepseek(recompute="none").values
    again = {name: again[name] - plain[f"{name}_backward_time"] for name in layers}
    wanted = 32 * sum(layers[name] * again[name] for name in layers)
    assert leaf(prediction, "recompute") == pytest.approx(wanted if repeated else 0, rel=1e-9)


def test_heads_stand_on_the_stage_that_the_layout_gives_them():
    """A head's projection and layer leave the last stage with it, its logits stay."""
    there, last = (
        deepseek(pp=4, pipeline_layout=text) for text in ("Et*15|t*15|t*31m|L", "Et*15|t*15|t*31|mL")
    )
    head = there.values["mtp_head_time"] + there.values["mla_time"] + there.values["experts_time"]
    assert head > there.values["mtp_projection"] > 0
    moved = last.values["last_stage_time"] - there.values["last_stage_time"]
    assert moved == pytest.approx(head, rel=1e-9)
    assert there.values["pace_stage_time"] - last.values["pace_stage_time"] == pytest.approx(head, rel=1e-9)
    forward, backward = chunk_times(there)
    assert forward[2][0] + backward[2][0] == pytest.approx(there.values["pace_stage_time"], rel=1e-9)


def test_waiting_for_the_host_begins_without_a_jump():
    """The last stage's MTP head keeps the host before the pace-setting stage waits, and is told from its start on."""
    plan = Plan(
        tp=2,
        pp=8,
        vpp=2,
        ep=64,
        dp=64,
        sequence_parallel=True,
        precision="fp8-cs",
        pipeline_layout="balanced",
        moe_dispatcher="hybridep",
        overlap_moe_comm=True,
        cuda_graph=True,
    )
    gb300 = hardware_db.resolve("gb300", None)[0]
    prediction = predict(load_model("deepseek-v3"), Workload(4096, 2048), gb300, plan)
    slower = np.exp(np.arange(-1.0, 1.0, 1e-3))
    held = {name: value for name, value in prediction.values.items() if name != "parameter_spread"}
    found = compiled_family(prediction.features).search(held | {"host_kernel": held["host_kernel"] * slower})
    slopes = np.diff(np.log(found["step_time"])) / 1e-3
    assert 0 < slopes.max() < 1
    assert slopes.min() > -1e-9


def test_the_longest_of_many_replicas_is_waited_for():
    """sqrt(2 ln dp / m) standard deviations of a sequence's attention, over the m sequences of a replica."""
    load = Workload(8192, 64 * 4, "sft", mean_length=1024, length_cv=1.0)
    found = predict(load_model("llama3-8b"), load, hardware_db.load_cluster("dgx-h100"), Plan(dp=64)).values
    cores = 32 * (found["attention_core_forward"] + found["attention_core_backward"])
    waited = found["document_spread"] * math.sqrt(2 * math.log(64) / 4)
    assert found["length_variance"] == pytest.approx(4 * cores * waited, rel=1e-4)


@pytest.mark.parametrize(
    ("cluster", "model", "precision", "gains"),
    [
        # TFLOP/s of cudnn-frontend's table at 8,192 tokens, FP8 over BF16.
        ("dgx-h200", "llama3-8b", "fp8-cs", (964 / 644, 430 / 541)),
        ("gb300-nvl72", "llama3-8b", "fp8-cs", (2897 / 1856, 1781 / 1435)),
        ("gb300-nvl72", "llama3-8b", "mxfp8", (2570 / 1856, 1404 / 1435)),
        ("gb300-nvl72", "deepseek-v3", "mxfp8", (2829 / 1825, 1780 / 1291)),
    ],
)
def test_attention_in_fp8_gains_what_its_kernels_were_measured_to(cluster, model, precision, gains):
    """By pass, format and heads: forward gains on every GPU, backward loses on Hopper, MLA gains in both."""
    sixteen, eight = (
        predict(
            load_model(model),
            Workload(8192, 8),
            hardware_db.load_cluster(cluster),
            Plan(dp=8, precision=precision, fp8_attention=on),
        ).values
        for on in (False, True)
    )
    prefix = "mla" if model == "deepseek-v3" else "attention"
    for name, gain in zip(("forward", "backward"), gains, strict=True):
        core = f"{prefix}_core_{name}"
        assert sixteen[core] / eight[core] == pytest.approx(gain, rel=0.08)


def test_ranks_that_are_not_bound_are_slow_as_the_slowest_of_as_many():
    """7 % on 64 GPUs, the middle of what was measured there; two GPUs lose a sixth of that."""
    for gpus, share in ((2, 0.07 / 6), (64, 0.07)):
        bound, loose = (
            predict(load_model("llama3-8b"), Workload(8192, gpus), H100, Plan(dp=gpus, cpu_binding=on)).values
            for on in (True, False)
        )
        assert loose["step_time"] - bound["step_time"] == pytest.approx(share * bound["synchronous_time"])


@pytest.mark.parametrize(("cluster", "longer"), [("gb200-nvl72", 2.0), ("dgx-b200", 1.0)])
def test_grace_issues_kernels_half_as_fast_where_ranks_are_not_bound(cluster, longer):
    bound, loose = (
        predict(
            load_model("qwen3-30b-a3b"),
            Workload(4096, 256),
            hardware_db.load_cluster(cluster),
            Plan(ep=8, dp=8, cpu_binding=on),
        )
        for on in (True, False)
    )
    for kind in ("forward", "backward"):
        name = f"host_issues_{kind}_pace"
        assert loose.values[name] == pytest.approx(longer * bound.values[name])
    assert (leaf(loose, "host_bound") > leaf(bound, "host_bound")) == (longer > 1)


@pytest.mark.parametrize(("last", "doublings"), [(0, 4), (5, 6)])
def test_only_the_slowest_stage_s_ranks_may_not_be_late(last, doublings):
    """Of 64 GPUs the jitter of all shows where stages are alike but for an embedding, of 16 beside long logits."""
    plan = Plan(pp=4, dp=16, micro_batch=2, last_stage_layers=last)
    found = predict(load_model("llama3-8b"), Workload(8192, 128), H100, plan).values
    share = doublings * found["straggler"]
    assert found["straggler_time"] == pytest.approx(share * found["synchronous_time"], rel=0.03)


def test_stages_exchange_and_keep_every_residual_stream():
    """Hyper-connections: the next stage mixes all of them, and so does a layer that is computed again."""
    model = load_model("deepseek-v4-flash")
    attention = model.compressed_attention
    assert attention is not None
    streams = attention.residual_streams - 1
    one = dataclasses.replace(model, compressed_attention=dataclasses.replace(attention, residual_streams=1))
    plan = Plan(pp=2, ep=32, dp=32, recompute="full")
    gb200 = hardware_db.load_cluster("gb200-nvl72")
    many, single = (predict(each, Workload(4096, 1024), gb200, plan).values for each in (model, one))
    hidden = 2 * 4096 * model.hidden
    assert 3 < many["pp_send_recv"] / single["pp_send_recv"] < 1 + streams  # a message has a latency besides
    kept = streams * hidden * model.num_layers / plan.pp
    assert many["memory_first"] - single["memory_first"] >= plan.pp * kept


def test_the_output_layer_s_reduction_hides_beside_its_weight_gradient():
    """Where that is deferred, the last stage waits for the reduce-scatter of every micro-batch."""
    plan = Plan(tp=8, pp=4, dp=2, sequence_parallel=True)
    at_once, late = (
        predict(
            load_model("llama3-8b"),
            Workload(8192, 64),
            H100,
            dataclasses.replace(plan, defer_embedding_wgrad=on),
        ).values
        for on in (False, True)
    )
    x = SimpleNamespace(**late)
    scatter = reduce_scatter_time(x, communication.tensor_parallel_bytes(x), 8, 8)
    assert late["output_tp"] - at_once["output_tp"] == pytest.approx(scatter)


def test_no_two_inputs_have_one_name():
    """Of two groups the later would take the place of the earlier without a word."""
    names = [entry.name for entry in INPUTS]
    assert sorted(names) == sorted(set(names))
