"""Dispatch under another micro-batch's compute: the closed form equals the two streams played out, event by event."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.dispatch import Beside, alone_share, overlapped_dispatch, windows
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.work import messages
from costmodel.workload import Workload
from hardware_db import Cluster

SECONDS = st.floats(0, 10)
BESIDE = st.builds(Beside, SECONDS, SECONDS, SECONDS)
LINKS = ("intra", "inter")
PASSES = ("_forward", "_backward", "_dgrad", "_wgrad")
H100 = hardware_db.resolve("h100", None)[0]


def played(travel: float, experts: Beside, around: Beside, *, delayed: bool, layers: int = 40) -> float:
    """Seconds that a pair of layers takes, forward of one micro-batch and backward of another, in the long run.

    Two streams in Megatron-Core's order, each piece after those that it needs: TransformerLayerSchedulePlan.run.
    """
    compute = communication = combined = turned = 0.0
    ends = []
    for _ in range(layers):
        gradients = communication = max(communication, turned) + travel  # combine, backward
        compute = max(compute, combined) + around.forward
        ahead = compute
        compute = max(compute, gradients) + experts.backward + (0 if delayed else experts.wgrad)
        back = compute
        tokens = communication = max(communication, ahead) + travel  # dispatch, forward
        compute += experts.wgrad if delayed else 0
        gradients = communication = max(communication, back) + travel  # dispatch, backward
        compute = max(compute, tokens) + experts.forward
        combined = communication = max(communication, compute) + travel  # combine, forward
        compute = max(compute, gradients) + around.backward + (0 if delayed else around.wgrad)
        turned = compute
        compute += around.wgrad if delayed else 0
        ends.append(compute)
    return (ends[-1] - ends[9]) / (layers - 10)


@given(travel=SECONDS, experts=BESIDE, around=BESIDE, delayed=st.booleans())
def test_windows_are_what_two_streams_take(travel, experts, around, delayed):
    x = SimpleNamespace(delay_wgrad=float(delayed))
    told = experts.whole + around.whole + windows(x, travel, experts) + windows(x, travel, around)
    assert told == pytest.approx(played(travel, experts, around, delayed=delayed), rel=0.02, abs=1e-6)


@given(travel=SECONDS, beside=BESIDE)
def test_delayed_weight_gradients_hide_more(travel, beside):
    late, early = (windows(SimpleNamespace(delay_wgrad=delay), travel, beside) for delay in (1.0, 0.0))
    assert -1e-9 <= late <= early + 1e-9 <= 2 * travel + 2e-9


@given(pp=st.integers(1, 16), vpp=st.integers(1, 8), rounds=st.integers(1, 8))
def test_the_share_alone_counts_chunks_as_megatron_core_warms_up(pp, vpp, rounds):
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    if pp == 1:
        vpp = 1
    batches = pp * rounds
    x = SimpleNamespace(m=batches, vpp=vpp, pp=pp, vpp_group=pp, flushes=1)
    if vpp == 1:
        assert alone_share(x) == pytest.approx(min(1, pp / (batches + pp - 1)))
        return
    group = SimpleNamespace(size=lambda: pp, rank=lambda: pp - 1)
    communicator = SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=vpp)
    total, _, warmup, _ = schedules.get_pp_rank_microbatches(
        batches, vpp, pp, overlap_moe_expert_parallel_comm=True, p2p_communicator=communicator
    )
    filling = pp - 1
    assert alone_share(x) == pytest.approx(min(1, (warmup + filling) / (total + filling)))


def numbers(**known: float) -> SimpleNamespace:
    usual = {"delay_wgrad": 1.0, "dispatch_sms": 20.0, "gpu_sms": 132.0, "overlap_slowdown": 0.1}
    usual |= {"m": 8.0, "vpp": 1.0, "pp": 1.0, "vpp_group": 1.0, "shared_overlap": 0.0}
    return SimpleNamespace(
        **usual | {"flushes": 1, "ep_overlap": 1.0, "queued": 0.0, "one_queue": 0.0} | known
    )


def test_nothing_is_hidden_without_overlap_or_before_blackwell_with_one_queue():
    own, other = Beside(1.0, 1.0, 1.0), Beside(2.0, 2.0, 1.0)
    hidden = overlapped_dispatch(numbers(), 1.0, own, other, 0.0)
    assert hidden < 2
    for plain in (numbers(ep_overlap=0.0), numbers(queued=1.0, one_queue=1.0)):
        assert overlapped_dispatch(plain, 1.0, own, other, 0.0) == 2


def test_one_micro_batch_has_nothing_beside():
    own, other = Beside(1.0, 1.0, 1.0), Beside(2.0, 2.0, 1.0)
    assert overlapped_dispatch(numbers(m=1.0), 1.0, own, other, 0.0) == 2


def qwen(dispatcher: str, **knobs: Any) -> Prediction:
    plan = Plan(dp=16, ep=16, moe_dispatcher=dispatcher, **knobs)
    return predict(load_model("qwen3-30b-a3b"), Workload(4096, 512), H100, plan)


def moonlight(cluster: Cluster = H100, **knobs: Any) -> dict[str, float]:
    plan = Plan(**{"dp": 8, "tp": 2, "ep": 8, "sequence_parallel": True} | knobs)
    return predict(load_model("moonlight-16b-a3b"), Workload(4096, 64), cluster, plan, judged=False).values


@pytest.mark.parametrize("ep", [8, 16])
def test_all_of_the_shared_experts_runs_while_tokens_travel(ep):
    """Their tensor-parallel messages too, where tokens take other links than they: over the network."""
    slow = replace(
        H100, **{kind: replace(link := getattr(H100, kind), bandwidth=0.1 * link.bandwidth) for kind in LINKS}
    )
    x, alone = (moonlight(slow, ep=ep, shared_expert_overlap=overlap) for overlap in (True, False))
    own = {name: x[name] for name in x if name.startswith("experts_shared") and name.endswith(PASSES)}
    assert {"experts_shared_fc1_wgrad", "experts_shared_activation_backward"} < set(own)
    sent = x["experts_tp_exposed_forward"] + x["experts_tp_exposed_backward"]
    hidden = sum(own.values()) + (sent if ep == 16 else 0)
    assert sent > 0
    assert alone["dispatch_exposed"] - x["dispatch_exposed"] == pytest.approx(hidden)


@pytest.mark.parametrize("knobs", [{"moe_dispatcher": "allgather"}, {"etp": 2, "dp": 16}])
def test_results_are_reduced_as_wide_as_a_router_is_stated_to_work(knobs):
    """As many bytes more as the dry run's messages have, where links are so slow that nothing else counts."""
    slow = replace(H100, intra=replace(H100.intra, bandwidth=1e-6 * H100.intra.bandwidth))
    model = load_model("moonlight-16b-a3b")
    assert model.moe is not None
    sizes, seconds = [], []
    for dtype, width in (("fp32", 4), (None, 2)):
        router = replace(model, moe=replace(model.moe, router_dtype=dtype))
        plan = Plan(**{"dp": 8, "ep": 4} | knobs)
        x = predict(router, Workload(4096, 64), slow, plan, judged=False).values
        found = messages.expert_parallel(SimpleNamespace(**x), 0, width)
        sizes.append(sum(each.bytes * each.count for each in found if each.ranks > 1))
        seconds.append(x["dispatch_combine"])
    assert sizes[0] > 1.2 * sizes[1]
    assert seconds[0] / seconds[1] == pytest.approx(sizes[0] / sizes[1], rel=0.05)


def test_all_to_all_sends_probabilities_and_counts_apart():
    """Over the network a small message costs its latency: two of them in the forward pass, one backward."""
    plain = qwen("alltoall").values
    assert plain["dispatch_numbers"] > plain["network_latency"]
    dropping = qwen("alltoall", moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True).values
    assert 0 < dropping["dispatch_numbers"] < plain["dispatch_numbers"]
    assert qwen("deepep").values["dispatch_numbers"] == 0
