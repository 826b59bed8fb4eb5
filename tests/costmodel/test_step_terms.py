"""Laws of single terms of a step: gradients added to their buffer, loops over experts, starts of passes."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hardware_db
from costmodel.amounts import rank_amounts
from costmodel.family import compiled_family
from costmodel.model_registry import load_model
from costmodel.passes import chunk_times
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.timing.network import domain_time
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]


def llama(**knobs: Any) -> Prediction:
    return predict(load_model("llama3-8b"), Workload(8192, 64), H100, Plan(dp=8, **knobs))


def qwen(**knobs: Any) -> Prediction:
    return predict(load_model("qwen3-30b-a3b"), Workload(4096, 512), H100, Plan(dp=16, **knobs))


def leaf(prediction: Prediction, name: str) -> float:
    return sum(term.value for term in prediction.time.leaves() if term.name == name)


def test_weight_gradients_pay_for_what_their_buffer_moves():
    wide, narrow = (llama(grad_reduce_in_fp32=fp32) for fp32 in (True, False))
    products = ("forward_linear", "backward_linear_dgrad")
    assert all(leaf(wide, name) == pytest.approx(leaf(narrow, name)) for name in products)
    assert leaf(wide, "backward_linear_wgrad") > leaf(narrow, "backward_linear_wgrad")
    assert leaf(narrow, "backward_linear_wgrad") > leaf(narrow, "backward_linear_dgrad")


def test_gradients_added_by_a_kernel_of_their_own_cost_more():
    fused, split = (llama(gradient_accumulation_fusion=fusion) for fusion in (True, False))
    assert leaf(split, "backward_linear_wgrad") < leaf(fused, "backward_linear_wgrad")
    assert split.step_time_s > fused.step_time_s


@pytest.mark.parametrize(("precision", "launches"), [("bf16", 1), ("fp8-cs", 3)])
def test_each_expert_of_a_rank_is_a_launch_in_the_loop(precision, launches):
    for ep in (4, 8, 16):
        issued = qwen(ep=ep, precision=precision).values["experts_loops_forward"]
        assert issued == 2 * launches * 128 / ep  # two products for each of the rank's experts


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


def test_every_pass_of_a_virtual_stage_has_a_start():
    whole, halves = (llama_of_four_stages(vpp) for vpp in (2, 4))
    passes = [2 * (64 * each.plan.vpp + 3) for each in (whole, halves)]
    started = [leaf(each, "pipeline_starts") for each in (whole, halves)]
    assert started[1] / started[0] == pytest.approx(passes[1] / passes[0])
    assert leaf(llama(), "pipeline_starts") == 0


def llama_of_four_stages(vpp: int, dp: int = 2) -> Prediction:
    return predict(load_model("llama3-8b"), Workload(8192, 64 * dp), H100, Plan(pp=4, dp=dp, vpp=vpp))


def test_messages_between_nodes_take_two_of_a_ring_s_sms_from_the_compute_they_overlap():
    for dp, share in ((2, 1), (4, 2 / 16)):
        stages = llama_of_four_stages(2, dp)
        hop, slowdown = stages.values["pp_send_recv"], stages.values["overlap_slowdown"]
        steady, filling = 2 * 64 * 2 * slowdown * share, 2 * 3
        assert leaf(stages, "pipeline_send_recv") == pytest.approx((steady + filling) * hop)


def test_interleaved_stages_hide_data_parallel_communication_under_several_micro_batches():
    """Guide 002: with PP and VPP "DP communications overlap with multiple micro-batches"."""
    plain, quarters, eighths = (llama_of_four_stages(vpp, 64).values for vpp in (1, 4, 8))
    for direction in ("forward", "backward"):
        room = [found[f"dp_under_{direction}"] for found in (plain, quarters, eighths)]
        whole = room[0] / (1 - 1 / 8)  # of eight layers the last has nothing behind it
        expected = [whole * (4 * (1 - 1 / vpp) + 1 / vpp - 1 / 8) for vpp in (4, 8)]
        assert room[1:] == pytest.approx(expected)


def test_a_layer_s_parameters_are_gathered_before_anything_is_computed():
    for vpp in (4, 8):
        found = llama_of_four_stages(vpp, 64)
        gathered = found.values["dp_all_gather"]
        assert found.values["dp_under_forward"] > gathered
        assert leaf(found, "dp_gather") >= gathered / 8


def test_a_unit_of_fsdp_pays_a_hop_for_every_rank_of_its_ring():
    few, many = (
        predict(
            load_model("llama3-8b"), Workload(8192, dp), H100, Plan(dp=dp, fsdp=True, zero_stage=3)
        ).values
        for dp in (256, 512)
    )
    for direction, operation in (("gather", "all_gather"), ("scatter", "reduce_scatter")):
        more = many[f"dp_fsdp_{direction}"] - few[f"dp_fsdp_{direction}"]
        assert more > 256 * many[f"{operation}_low_latency_per_rank"] > 0


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
    assert leaf(quick, "forward_dispatch") < 0.7 * leaf(slow, "forward_dispatch")
    assert quick.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


def test_one_expert_on_a_rank_is_a_plain_product():
    """Mixtral over 8 ranks: its grouped products run at the plain rate, those of two experts a rank slower."""
    predictions = {
        ep: predict(load_model("mixtral-8x7b"), Workload(4096, 64), H100, Plan(dp=8, ep=ep)) for ep in (8, 4)
    }
    assert predictions[8].values["grouped_scale"] < 1
    assert leaf(predictions[8], "forward_experts") < leaf(predictions[4], "forward_experts")


def test_experts_filled_to_their_capacity_are_plain_products():
    """Groups of one size lose nothing; uneven ones go at the grouped rate at most, whatever else they wait for."""
    uneven, filled = (
        leaf(qwen(ep=8, moe_capacity_factor=factor), "forward_experts") for factor in (0.0, 1.0)
    )
    assert filled < uneven <= filled / qwen(ep=8).values["grouped_scale"]


def test_dispatch_between_nodes_does_not_go_at_the_rate_of_rings():
    cluster = hardware_db.load_cluster("dgx-b200")
    found = predict(load_model("qwen3-30b-a3b"), Workload(4096, 512), cluster, Plan(dp=16, ep=16)).values
    sending = found["dispatch_bytes_outside"] / (found["network_bandwidth"] * found["dispatch_network"])
    assert found["inter_scale"] < 0.8
    assert found["dispatch_time"] == pytest.approx(sending + found["network_latency"])


def test_a_network_counts_as_what_runs_were_seen_to_move_on_it():
    fast, slow = (hardware_db.load_cluster(name) for name in ("dgx-b300", "dgx-b200"))
    assert fast.inter.bandwidth == 2 * slow.inter.bandwidth
    model, work, plan = load_model("llama3-8b"), Workload(8192, 64), Plan(dp=16)
    on_fast, on_slow = (predict(model, work, cluster, plan) for cluster in (fast, slow))
    share = fast.inter.quantities["reached"].si
    assert on_fast.values["network_bandwidth"] == pytest.approx(
        2 * share * on_slow.values["network_bandwidth"]
    )
    assert any("all that published runs move" in note for note in on_fast.assumptions)


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


@pytest.mark.parametrize("precision", ["bf16", "fp8-cs"])
def test_latents_are_gathered_and_their_gradients_scattered(precision):
    """Backward, latent attention gathers its output's gradient, hidden states as an MLP does, and scatters latents'."""
    plan = Plan(tp=2, pp=4, ep=8, dp=32, precision=precision, sequence_parallel=True)
    found = predict(load_model("deepseek-v3"), Workload(4096, 512), H100, plan).values
    hidden, latents = 7168, 1536 + 512 + 64
    assert found["mla_tp_gathered"] == pytest.approx(found["mlp_tp_gathered"] * latents / hidden)
    assert found["mla_all_gather_backward"] == pytest.approx(found["mlp_all_gather"])
    assert found["mla_all_gather"] < found["mla_all_gather_backward"]
    assert found["mla_reduce_scatter_backward"] < found["mla_reduce_scatter"] == found["mlp_reduce_scatter"]
    assert found["mlp_reduce_scatter_backward"] == pytest.approx(found["mlp_reduce_scatter"])


def test_only_weight_gradients_go_at_their_own_rate():
    """At any other rate of them nothing else of the step's products changes; experts keep the grouped rate."""
    dense, experts = llama(), qwen(ep=8)
    for prediction, moved in (
        (dense, {"backward_linear_wgrad", "logits_gemms"}),
        (experts, {"backward_linear_wgrad", "logits_gemms"}),
    ):
        evaluate = compiled_family(prediction.features).full
        same, faster = (
            evaluate(prediction.values | {"wgrad_scale": factor * prediction.values["wgrad_scale"]})
            for factor in (1.0, 1.25)
        )
        gemms = [name for name in same if name.endswith(("_linear", "_dgrad", "_experts")) or name in moved]
        changed = {name for name in gemms if faster[name] != pytest.approx(same[name])}
        assert changed == moved
        assert all(faster[name] < same[name] for name in moved)


def test_zero3_of_2021_moves_units_through_one_card_of_a_node_whatever_the_ranks():
    """Twice the GPUs with half the micro-batch gain only what they compute; today's FSDP uses every card."""

    def units(stack: str, gpus: int) -> tuple[float, float]:
        cluster = hardware_db.resolve("a100", None)[0]
        plan = Plan(dp=gpus, fsdp=True, zero_stage=3, precision="fp16", micro_batch=1536 // gpus)
        prediction = predict(load_model("gpt3-175b"), Workload(2048, 1536), cluster, plan, stack)
        return prediction.values["dp_fsdp_gather"], prediction.values["dp_fsdp_scatter"]

    few, many = (units("deepspeed-21.04", gpus) for gpus in (768, 1536))
    assert many == pytest.approx(few, rel=0.01)
    now = units("deepspeed-23.06", 768)
    assert all(one > 3 * other for one, other in zip(few, now, strict=True))
    assert units("deepspeed-21.04", 8) == units("deepspeed-23.06", 8) > (0, 0)


@pytest.mark.parametrize(("tp", "slow"), [(1, 1), (2, 4), (4, 2), (8, 1)])
def test_rings_over_some_of_a_nodes_gpus_leave_it_by_one_share_where_the_stack_is_so(tp, slow):
    """vTrain's Megatron-DeepSpeed: groups of two and four GPUs a node; those of one and of all eight are as ever."""
    plan = Plan(tp=tp, pp=8, dp=64 // tp, precision="fp16", zero_stage=0, recompute="full")
    cluster = hardware_db.resolve("a100", None)[0]

    def reduction(stack: str) -> float:
        prediction = predict(load_model("gpt-h8192-l48-a64"), Workload(2048, 1536), cluster, plan, stack)
        return prediction.values["dp_all_reduce"]

    assert reduction("deepspeed-23.06") == pytest.approx(slow * reduction("megatron-22.05"), rel=0.05)


@pytest.mark.parametrize(
    ("name", "plan", "near"),
    [
        ("gpt3-175b", Plan(tp=2, pp=4), True),
        ("gpt3-175b", Plan(tp=4, pp=8), False),
        ("deepseek-v3", Plan(pp=4, dp=16, ep=16, grad_reduce_in_fp32=False), False),
    ],
)
def test_an_embedding_on_two_stages_is_summed_as_a_dry_run_sends_it(name, plan, near):
    model, work = load_model(name), Workload(4096, 16 * plan.dp)
    (sent,) = [one for one in rank_amounts(plan, work, model, 0, 1).messages if one.group == "embedding"]
    told = predict(model, work, H100, plan)
    x = SimpleNamespace(**told.values)
    wire = sent.bytes * sent.count  # two ranks: 2 (n - 1) / n of the message
    card = x.network_latency + wire / (x.network_bandwidth * min(x.inter_scale, 1))
    expected = domain_time(x, "all_reduce", wire, 2) if near else card
    assert (told.values["world"] <= x.domain) == near
    assert leaf(told, "shared_embedding") == pytest.approx(expected)


def test_an_embedding_on_one_stage_is_not_summed_over_two():
    """GPT-3 ties its embedding to the output layer; Llama 3 8B has two matrices."""
    gpt, work = load_model("gpt3-5b"), Workload(2048, 64)
    assert leaf(predict(gpt, work, H100, Plan(tp=8)), "shared_embedding") == 0
    assert leaf(predict(gpt, work, H100, Plan(tp=2, pp=4)), "shared_embedding") > 0
    assert leaf(llama_of_four_stages(1), "shared_embedding") == 0


def deferred(sequences: int, **knobs: Any) -> Prediction:
    plan = Plan(pp=4, dp=2, defer_embedding_wgrad=True, **knobs)
    return predict(load_model("llama3-8b"), Workload(8192, 2 * sequences), H100, plan)


def test_deferred_weight_gradients_fill_the_flush_and_no_more():
    """The last stage still has to work them off: they were free, however many micro-batches there were."""
    few, many = deferred(4), deferred(64)
    for told, sequences in ((few, 4), (many, 64)):
        v = told.values
        share = 1 / (1 + v["forward"] / v["backward"])
        beyond = sequences * v["output_wgrad"] - share * v["pipeline_bubble"]
        assert leaf(told, "deferred_wgrad") == pytest.approx(max(0.0, beyond), rel=0.02)
    assert leaf(few, "deferred_wgrad") == 0 < leaf(many, "deferred_wgrad")
    at_once = dataclasses.replace(many.plan, defer_embedding_wgrad=False)
    plain = predict(many.model, many.workload, H100, at_once)
    assert leaf(plain, "deferred_wgrad") == 0
    gain = plain.step_time_s - many.step_time_s
    assert gain < plain.values["pipeline_bubble"] < 64 * many.values["output_wgrad"]


def test_deferred_weight_gradients_keep_the_gradients_of_the_logits():
    """Memory was "unchanged": of 16 micro-batches of 8,192 tokens and 128,256 words they are 29 GiB."""
    told = deferred(16)
    plain = predict(
        told.model, told.workload, H100, dataclasses.replace(told.plan, defer_embedding_wgrad=False)
    )
    each = 2 * 8192 * (128256 + 4096)
    assert told.values["memory_last"] - plain.values["memory_last"] == pytest.approx(15 * each)
    assert told.values["memory_first"] == plain.values["memory_first"]
    quarter = deferred(16, tp=4, sequence_parallel=True).values["memory_last_deferred"]
    assert quarter == pytest.approx(15 * each / 4, rel=0.01)  # the vocabulary is padded further


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


def test_a_limit_defers_the_first_micro_batches_alone():
    """Megatron-Core's 0 is no limit; the others are worked off as they come, and keep nothing."""
    everything, some = deferred(64), deferred(64, wgrad_deferral_limit=8)
    wgrad = some.values["output_wgrad"]
    plain = dataclasses.replace(some.plan, defer_embedding_wgrad=False)
    at_once = predict(some.model, some.workload, H100, plain).values["logits_gemms"]
    assert some.values["logits_gemms"] == pytest.approx(at_once - wgrad * 8 / 64)
    assert everything.values["logits_gemms"] == pytest.approx(at_once - wgrad)
    kept = [told.values["memory_last_deferred"] for told in (some, everything)]
    assert kept[0] == pytest.approx(kept[1] * 7 / 63)
    assert deferred(64, wgrad_deferral_limit=64).values == everything.values | {"deferral_limit": 64}
