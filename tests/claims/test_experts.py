"""Claims about experts, their mesh and the exchange between them: CL030 to CL042, CL110, CL218."""

from __future__ import annotations

from typing import Any

import pytest
from claim_cases import (
    DISPATCH,
    EXPERT_GEMMS,
    GB,
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
from costmodel.model_registry import load_model
from costmodel.plan_file import PlanFile
from costmodel.prediction import Prediction
from costmodel.workload import Workload


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
                raises=AssertionError,
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
                raises=AssertionError,
                reason="the model gains nothing where 1.177 was measured: eager, the step is the host's 25.8 s with "
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
    raises=AssertionError,
    reason="749, 1238 and 1344 tokens/s: DeepEP gains 1.65, MXFP8 with it 1.79. Exchange has too "
    "large a share of the base, or DeepEP saves too much; and no knob quantises the grouped GEMMs alone",
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


def test_CL042_the_expert_mesh_folds_over_the_others():
    """pp x max(tp x cp, ep x etp) = 2 x max(2, 8) = 16, where the product of all sizes is 32."""
    sizes = {"tp": 2, "pp": 2, "ep": 8, "etp": 1}
    assert errors(broken("qwen3-30b-a3b", "dgx-h100", 16, 4096, 128, **sizes)) == []
    (refused,) = errors(broken("qwen3-30b-a3b", "dgx-h100", 8, 4096, 128, **sizes))
    assert "16 GPUs" in refused
    assert plan_of(16, **sizes).world == 16
