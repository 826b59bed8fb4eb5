"""Claims about pipeline stages, virtual stages, and the exchange between experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from claim_cases import (
    DISPATCH,
    EXPERT_GEMMS,
    broken,
    cluster,
    errors,
    plan_of,
    speedup,
    spent,
    step,
)
from click.testing import CliRunner

from advisor.case import Case
from advisor.cli import advisor
from advisor.whatif import what_if
from costmodel.layout import even_chunks
from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.plan_file import PlanFile
from costmodel.prediction import Prediction
from costmodel.schedule import bubble_over_ideal
from costmodel.simulate import pipeline_makespan
from costmodel.workload import Workload

GB = 1e9
LLAMA_70B: dict[str, Any] = {"tp": 4, "pp": 8}


def llama_70b(vpp: int, num_microbatches: int = 64, **more: Any) -> Prediction:
    """Llama 3 70B on 64 H100 with TP4 PP8, dp 2."""
    return step("llama3-70b", "dgx-h100", 64, 8192, 2 * num_microbatches, **LLAMA_70B | {"vpp": vpp} | more)


def test_CL023_interleaving_cuts_the_bubble_to_pp_less_1_over_vpp_m():
    shares = {}
    for vpp in (1, 5):
        prediction = llama_70b(vpp)
        ideal = 64 * prediction.values["pace_stage_time"]
        shares[vpp] = spent(prediction, "pipeline_bubble") / ideal
        assert shares[vpp] == pytest.approx(bubble_over_ideal(8, 64, vpp), rel=0.01)
    assert shares[1] == pytest.approx(0.109, abs=0.001)
    assert shares[5] == pytest.approx(0.022, abs=0.001)
    assert speedup(llama_70b(1), llama_70b(5)) > 1.05


def llama_405b(vpp: int, num_microbatches: int) -> Prediction:
    """A step of 405B on 128 H100 behind EFA (50 GB/s a GPU), TP8 PP8, dp 2."""
    return step(
        "llama3.1-405b",
        "aws-p5",
        128,
        8192,
        2 * num_microbatches,
        tp=8,
        pp=8,
        vpp=vpp,
        precision="fp8-cs",
        account_embedding=True,
        account_loss=True,
    )


def gains_of_a_smaller_vpp(seconds: Callable[[Prediction], float]) -> dict[int, float]:
    """What VPP16 costs more than VPP4 by number of micro-batches. [s]"""
    return {m: seconds(llama_405b(16, m)) - seconds(llama_405b(4, m)) for m in (16, 192, 2048)}


def test_CL024_many_micro_batches_favour_a_smaller_vpp_on_a_stage_of_layers():
    """There is a number of micro-batches above which messages of VPP16 cost more than its smaller bubble saves."""
    gains = gains_of_a_smaller_vpp(lambda each: spent(each, "pipeline_bubble", "pipeline_send_recv"))
    assert gains[16] < gains[192] < gains[2048]
    assert gains[16] < 0 < gains[2048]


def test_CL024_many_micro_batches_favour_a_smaller_vpp():
    gains = gains_of_a_smaller_vpp(lambda each: each.step_time_s)
    assert gains[16] < gains[192] < gains[2048]
    assert gains[16] < 0 < gains[2048]


@pytest.mark.parametrize("where", ["dgx-h100", "gcp-a3-highgpu-8g"])
def test_CL025_a_middle_vpp_is_best(where):
    """24 layers on 4 stages, 400 and 100 Gbit/s a GPU between nodes: beyond 3 chunks nothing is gained (0.1 %)."""
    times = {
        vpp: step("mcore-gpt-1.7b", where, 16, 4096, 256, pp=4, vpp=vpp).step_time_s for vpp in (1, 2, 3, 6)
    }
    assert min(times[2], times[3]) < times[1]
    assert min(times[2], times[3]) <= times[6] * 1.001


@pytest.mark.parametrize(("vocabulary", "pays"), [(8192, False), (128256, True), (262144, True)])
def test_CL026_a_layer_less_at_both_ends_pays_when_the_vocabulary_costs_over_half_a_layer(vocabulary, pays):
    """Llama 3 8B in 32 even layers against 30 layers and two accounted for, on 4 stages.

    Models of different depth are compared by the slowest stage's time for each layer of the model: 8 layers
    over 30 against (8 layers + vocabulary) over 32 cross at a vocabulary of 0.53 layers.
    """
    base = with_overrides(load_model("llama3-8b"), {"vocab": vocabulary})
    shorter = with_overrides(base, {"num_layers": 30})
    even = step(base, "dgx-h100", 16, 8192, 128, pp=4)
    accounted = step(shorter, "dgx-h100", 16, 8192, 128, pp=4, account_embedding=True, account_loss=True)
    layer = even.values["pace_stage_time"] / 8
    in_layers = (even.values["last_stage_time"] - even.values["pace_stage_time"]) / layer
    assert (in_layers > 0.5) == pays
    slowest = {
        layers: found.values["slowest_stage_time"] / layers for layers, found in ((32, even), (30, accounted))
    }
    assert (slowest[30] < slowest[32]) == pays
    assert (accounted.step_time_s / 30 < even.step_time_s / 32) == pays


def test_CL026_405b_divides_only_with_embedding_and_loss_accounted():
    assert even_chunks(126, 8, 8) is None
    assert even_chunks(126, 8, 8, True, True) == [1] + [2] * 62 + [1]
    knobs: dict[str, Any] = {"tp": 8, "pp": 8, "vpp": 8, "cp": 2}
    accounted = {"account_embedding": True, "account_loss": True}
    assert errors(broken("llama3.1-405b", "dgx-h100", 128, 8192, 64, **knobs))
    assert not errors(broken("llama3.1-405b", "dgx-h100", 128, 8192, 64, **knobs | accounted))


def test_CL027_send_and_receive_are_overlapped_in_the_steady_state_only_with_interleaving():
    """The guides say "overlapped by default"; Megatron-Core switches overlap_p2p off with VPP1."""
    assert llama_70b(1).step_time_s == llama_70b(1, overlap_p2p=False).step_time_s
    assert llama_70b(2).step_time_s < llama_70b(2, overlap_p2p=False).step_time_s
    found = broken("llama3-70b", "dgx-h100", 64, 8192, 128, **LLAMA_70B)
    assert "p2p_overlap_without_vpp" in {each.id for each in found}
    messages = 2 * 64 * llama_70b(1).values["pp_send_recv"]
    grown = {
        vpp: spent(llama_70b(vpp, 128), "pipeline_send_recv") - spent(llama_70b(vpp), "pipeline_send_recv")
        for vpp in (1, 2)
    }
    assert grown[1] == pytest.approx(messages)
    assert 0 < grown[2] < 2 * messages


@pytest.mark.parametrize(("vpp", "steady"), [(1, True), (2, False)])
def test_CL027_the_simulated_schedule_shows_sends_per_micro_batch_or_at_its_ends_alone(vpp, steady):
    def shown(num_microbatches: int) -> float:
        chunks = ([[1 / vpp] * vpp] * 8, [[2 / vpp] * vpp] * 8, num_microbatches)
        return pipeline_makespan(*chunks, 0.01, True) - pipeline_makespan(*chunks, 0.0, True)

    few, many = shown(64), shown(128)
    assert few > 0
    assert (many > 1.5 * few) if steady else (many == pytest.approx(few))


def sft_70b(vpp: int) -> float:
    """Peak memory [byte] of the 70B fine-tuning on 32 H100 of Megatron-Bridge's memory notes."""
    return step(
        "llama3-70b",
        "dgx-h100",
        32,
        4096,
        32,
        load={"task": "sft"},
        tp=4,
        pp=4,
        vpp=vpp,
        precision="fp8-cs",
        recompute="selective",
        recompute_modules=("core_attn",),
    ).peak_memory_bytes


def test_CL029_vpp_moves_peak_memory_by_less_than_3_gb():
    assert abs(sft_70b(10) - sft_70b(5)) < 3 * GB


@pytest.mark.xfail(
    strict=True,
    reason="measured 58.8 GB with VPP5 and 60.2 with VPP10; the model has 77.7 and 76.2 GiB: micro-batches in "
    "flight fall from 4.6 to 4.3, and nothing grows with the number of chunks (their own input and output "
    "buffers, 16 MB a chunk in flight, FP8 state and gradient buckets of each chunk)",
)
def test_CL029_more_chunks_take_a_little_more_memory():
    assert sft_70b(10) > sft_70b(5)


@pytest.mark.parametrize("where", ["dgx-b300", "dgx-b200"])
def test_CL030_experts_inside_the_nvlink_domain_are_half_as_fast_again(where):
    """Published: 1.80 on B300, 1.71 on B200 (containers differ)."""
    inside, outside = (step("gpt-oss-120b", where, 64, 4096, 1280, micro_batch=4, ep=ep) for ep in (8, 64))
    assert speedup(outside, inside) >= 1.5


@pytest.mark.parametrize(
    ("where", "ep", "more", "told"),
    [
        ("dgx-h100", 64, {}, True),
        ("dgx-h100", 64, {"moe_dispatcher": "deepep"}, True),
        ("dgx-h100", 8, {}, False),
        ("dgx-h100", 64, {"overlap_moe_comm": True}, False),
        ("gb200-nvl72", 64, {}, False),
    ],
)
def test_CL030_experts_beyond_the_nvlink_domain_are_told_with_the_ways_out(where, ep, more, told):
    """Overlapped exchange is the guides' own exception; the other way out of an all-to-all is DeepEP or HybridEP."""
    found = {each.id: each for each in broken("qwen3-30b-a3b", where, 64, 4096, 1280, ep=ep, **more)}
    assert ("ep_beyond_domain" in found) == told
    if told:
        assert "--ep 8" in found["ep_beyond_domain"].way_out
        assert ("deepep" in found["ep_beyond_domain"].way_out) == (not more)


@pytest.mark.parametrize("sizes", [{"tp": 1, "pp": 4, "vpp": 8}, {"tp": 2}])
def test_CL032_expert_parallel_beats_expert_tensor_parallel(sizes):
    whole, split = (
        step("mixtral-8x7b", "dgx-h100", 64, 4096, 256, **sizes, ep=ep, etp=etp)
        for ep, etp in ((8, 1), (4, 2))
    )
    assert whole.step_time_s < split.step_time_s
    assert spent(whole, *DISPATCH) < spent(split, *DISPATCH)


def test_CL033_grouped_gemm_makes_16_times_fewer_launches_and_small_experts_half_as_fast_again():
    """16 experts on a GPU, 2 GEMMs each. M of 256 is 4096 tokens x 8 / 128 experts of one rank's tokens.

    With EP8 a rank's experts see 8 ranks' tokens, M = 2048 at 4096 tokens, where grouping gains less; sequences
    of 512 give M = 256.
    """

    def both(seq_len: int) -> tuple[Prediction, Prediction]:
        one, other = (
            step("qwen3-30b-a3b", "dgx-h100", 8, seq_len, 512, ep=8, moe_grouped_gemm=grouped)
            for grouped in (True, False)
        )
        return one, other

    together, apart = both(4096)
    more = apart.values["experts_kernels_forward"] - together.values["experts_kernels_forward"]
    assert more == pytest.approx(2 * 16 - 2)
    assert spent(apart, *EXPERT_GEMMS) > spent(together, *EXPERT_GEMMS)
    together, apart = both(512)
    assert spent(apart, *EXPERT_GEMMS) > 1.5 * spent(together, *EXPERT_GEMMS)


def qwen_30b(dispatcher: str, **more: Any) -> Prediction:
    """Qwen3 30B-A3B on 16 H100 with EP16, in BF16."""
    return step("qwen3-30b-a3b", "dgx-h100", 16, 4096, 1024, ep=16, moe_dispatcher=dispatcher, **more)


@pytest.mark.parametrize(
    ("dispatcher", "least", "most"),
    [
        pytest.param(
            "alltoall",
            1.2,
            1.4,
            marks=pytest.mark.xfail(
                strict=True,
                reason="the model gains 1.41 where 1.317 was measured and 1.4 is the claim's bound: without overlap "
                "the step is told longer since routers and maps were timed on an H100",
            ),
        ),
        pytest.param(
            "hybridep",
            1.1,
            1.25,
            marks=pytest.mark.xfail(
                strict=True,
                reason="the model gains nothing where 1.177 was measured: eager, the step is the host's 24.2 s with "
                "and without overlap. Missing: HybridEP's dispatch is less work for the host than alltoall's",
            ),
        ),
    ],
)
def test_CL034_overlap_makes_expert_parallelism_between_nodes_worth_while(dispatcher, least, most):
    gain = speedup(qwen_30b(dispatcher), qwen_30b(dispatcher, overlap_moe_comm=True))
    assert least <= gain <= most


def test_one_hardware_queue_lets_no_exchange_of_experts_run_beside_compute_before_blackwell():
    """Megatron-Bridge launches expert overlap with 32; rule max_connections_experts."""
    for where, same in (("dgx-h100", False), ("dgx-b200", True)):
        one, many = (
            step("qwen3-30b-a3b", where, 16, 4096, 1024, ep=8, overlap_moe_comm=True, max_connections=number)
            for number in (1, 0)
        )
        assert (spent(one, *DISPATCH) == pytest.approx(spent(many, *DISPATCH))) == same
        assert spent(one, *DISPATCH) >= spent(many, *DISPATCH)


def test_CL034_overlap_gains_more_where_more_is_exposed_and_delayed_wgrad_adds_little():
    """Measured with HybridEP: delay_wgrad 0.4 % more. With layers in CUDA graphs, so that the host is no limit."""
    graphs = {"cuda_graph": True, "cuda_graph_scope": ("attn", "moe_router", "moe_preprocess")}
    gains = {
        dispatcher: speedup(
            qwen_30b(dispatcher, **graphs), qwen_30b(dispatcher, overlap_moe_comm=True, **graphs)
        )
        for dispatcher in ("alltoall", "hybridep")
    }
    assert gains["alltoall"] > gains["hybridep"] > 1.1
    overlapped, delayed = (
        qwen_30b("hybridep", overlap_moe_comm=True, delay_wgrad=delay, **graphs) for delay in (False, True)
    )
    assert 1 <= speedup(overlapped, delayed) < 1.02


def test_CL035_overlap_gains_nothing_with_ep_4_inside_a_node():
    sizes: dict[str, Any] = {"tp": 2, "pp": 2, "vpp": 2, "ep": 4}
    plain, overlapped = (
        step("qwen3-30b-a3b", "dgx-h100", 16, 4096, 1024, overlap_moe_comm=overlap, **sizes)
        for overlap in (False, True)
    )
    assert speedup(plain, overlapped) <= 1.03


def deepseek_v3(where: str, gpus: int, batch: int, **more: Any) -> Prediction:
    """DeepSeek-V3 with EP64, its layers balanced over the stages."""
    usual: dict[str, Any] = {
        "vpp": 4,
        "ep": 64,
        "pipeline_layout": "balanced",
        "recompute": "selective",
        "recompute_modules": ("mla_up_proj", "moe_act"),
    }
    return step("deepseek-v3", where, gpus, 4096, batch, **usual | more)


def test_CL036_expert_exchange_between_nodes_takes_a_quarter_to_half_of_the_step():
    prediction = deepseek_v3("dgx-h100", 1024, 8192, tp=2, pp=8, precision="fp8-sc")
    assert 0.25 <= spent(prediction, *DISPATCH) / prediction.step_time_s <= 0.5


def test_CL037_hybridep_then_deepep_then_alltoall():
    """In an NVLink domain of 72, where NVIDIA's scripts leave DeepEP out; in domains of 8 DeepEP beats alltoall.

    The model has HybridEP first in domains of 8 too, as was measured on 16 H100 (exception of the claim).
    """
    times = {
        (where, dispatcher): deepseek_v3(
            where, 256, 2048, pp=4, precision="mxfp8", moe_dispatcher=dispatcher
        ).step_time_s
        for where in ("gb200-nvl72", "dgx-b200")
        for dispatcher in ("hybridep", "deepep", "alltoall")
    }
    for where in ("gb200-nvl72", "dgx-b200"):
        assert times[where, "hybridep"] <= times[where, "deepep"] <= times[where, "alltoall"]
    found = broken(
        "deepseek-v3",
        "gb200-nvl72",
        256,
        4096,
        2048,
        pp=4,
        ep=64,
        pipeline_layout="balanced",
        moe_dispatcher="deepep",
    )
    assert "deepep_gpu" in {each.id for each in found}


def test_CL038_deepep_between_nodes_reaches_50_to_55_gb_s():
    """Counted as DeepEP's tests do: tokens for the rank's own node are part of the bytes, 4 of 4 nodes not 3."""
    prediction = step(
        "deepseek-v3", "dgx-b200", 32, 4096, 256, ep=32, moe_dispatcher="deepep", pipeline_layout="balanced"
    )
    nodes = 32 / 8
    counted = prediction.values["dispatch_bytes_outside"] * nodes / (nodes - 1)
    assert 50 * GB <= counted / prediction.values["dispatch_time"] <= 55 * GB


def test_CL040_a_prediction_says_that_experts_are_balanced_and_natural_routing_costs_more():
    options = "--model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --dp 16 --ep 16 --seq-len 4096 --global-batch 1024"
    told = CliRunner().invoke(advisor, ["predict", *options.split()], catch_exceptions=False).output
    assert "balanced, as benchmarks force them" in " ".join(told.split())
    even, natural = (
        step("qwen3-30b-a3b", "dgx-h100", 16, 4096, 1024, ep=16, load={"moe_imbalance": imbalance})
        for imbalance in (1.0, 1.3)
    )
    assert natural.step_time_s > even.step_time_s
    assert spent(natural, *EXPERT_GEMMS) > 1.15 * spent(even, *EXPERT_GEMMS)


def test_CL110_more_expert_parallelism_is_the_first_size_that_mends_out_of_memory():
    """Qwen3 30B-A3B on 16 H100 with EP4 does not fit; of the parallel sizes EP8 costs least, TP2 far more."""
    plan = plan_of(16, ep=4)
    model, workload, place = load_model("qwen3-30b-a3b"), Workload(4096, 1024), cluster("dgx-h100")
    record = PlanFile(model.name, workload, place.name, 16, plan)
    case = Case(model, workload, place, 16, plan, None, (), record)
    found = what_if(case, ("tp", "pp", "cp", "ep", "etp"))
    assert not found.base.fits
    best = found.best()
    assert best is not None
    assert (best.neighbour.knob, best.prediction.plan.ep) == ("ep", 8)
    wider = next(each for each in found.changes if each.neighbour.knob == "tp" and each.fits)
    assert wider.delta_time > 2 * best.delta_time


def test_CL110_check_names_expert_parallelism_first_when_a_plan_does_not_fit():
    options = (
        "--model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --dp 16 --ep 4 --seq-len 4096 --global-batch 1024 "
        "--no-grad-reduce-in-fp32"
    )
    told = CliRunner().invoke(advisor, ["check", *options.split()], catch_exceptions=False).output
    assert "DOES NOT FIT" in told
    assert "--ep 8" in told
    assert "--tp" not in told.partition("--ep 8")[0]


def torchtitan_v3(**more: Any) -> Prediction:
    """DeepSeek-V3 on 256 B200 with TP2 PP2 EP32, sharded as TorchTitan does beside a pipeline, all recomputed."""
    return step(
        "deepseek-v3",
        "dgx-b200",
        256,
        4096,
        2048,
        stack="torchtitan",
        tp=2,
        pp=2,
        vpp=2,
        ep=32,
        pipeline_layout="balanced",
        recompute="full",
        fsdp=True,
        zero_stage=2,
        **more,
    )


@pytest.mark.xfail(
    strict=True,
    reason="DeepEP gains 1.48. The base is right, so that exchange has too "
    "large a share of it, or DeepEP saves too much; and no knob quantises the grouped GEMMs alone",
)
def test_CL218_deepep_gains_32_percent_and_mxfp8_experts_41():
    """Published 651, 859 and 918 tokens/s a GPU; ten points either way."""
    base, deepep = torchtitan_v3(), torchtitan_v3(moe_dispatcher="deepep")
    quantised = torchtitan_v3(moe_dispatcher="deepep", precision="mxfp8")
    assert speedup(base, deepep) == pytest.approx(1.32, abs=0.1)
    assert speedup(base, quantised) == pytest.approx(1.41, abs=0.1)


def test_CL218_deepep_and_then_mxfp8_experts_each_gain():
    base, deepep = torchtitan_v3(), torchtitan_v3(moe_dispatcher="deepep")
    quantised = torchtitan_v3(moe_dispatcher="deepep", precision="mxfp8")
    assert speedup(base, deepep) > 1.1
    assert speedup(deepep, quantised) > 1.0
