"""User buffers (tp_comm_overlap) need GPUs that reach each other's memory: a fact of the GPU, rules, and no offer."""

from __future__ import annotations

import pytest

from advisor.request import Request
from advisor.rules import Violation, violations
from advisor.space import build_space
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from hardware_db import load_cluster, load_gpu

MODEL = load_model("llama3-8b")
WORKLOAD = Workload(8192, 128)
OVERLAPPED = Plan(tp=2, dp=4, sequence_parallel=True, tp_comm_overlap=True)


def told(machine: str, plan: Plan = OVERLAPPED) -> dict[str, Violation]:
    return {each.id: each for each in violations(MODEL, WORKLOAD, load_cluster(machine), plan, 8)}


@pytest.mark.parametrize(
    ("gpu", "peers"), [("rtx4090", False), ("rtx5090", False), ("l40s", True), ("h100-sxm", True)]
)
def test_geforce_drivers_refuse_peers(gpu: str, peers: bool) -> None:
    assert load_gpu(gpu).has_peers is peers


@pytest.mark.parametrize(
    ("machine", "rule", "severity"),
    [
        ("rtx4090-8", "tp_overlap_needs_peers", "ERROR"),
        ("rtx5090-8", "tp_overlap_needs_peers", "ERROR"),
        ("l40s-8", "tp_overlap_over_pcie", "NOTE"),
        ("rtx-pro-6000-8", "tp_overlap_over_pcie", "NOTE"),
    ],
)
def test_user_buffers_without_nvlink_are_refused_or_noted(machine: str, rule: str, severity: str) -> None:
    assert told(machine)[rule].severity == severity
    assert "--no-tp-comm-overlap" in told(machine)[rule].way_out
    assert not {"tp_overlap_needs_peers", "tp_overlap_over_pcie"} & set(told("dgx-h100"))


@pytest.mark.parametrize(
    ("machine", "offered"), [("rtx4090-8", False), ("l40s-8", False), ("dgx-h100", True)]
)
def test_the_search_offers_user_buffers_where_they_run(machine: str, offered: bool) -> None:
    request = Request(model=MODEL, gpus=8, cluster=load_cluster(machine), workload=WORKLOAD)
    columns = build_space(request, "bf16").columns
    assert (columns["tp"] > 1).any()
    assert (columns["tp_comm_overlap"] > 0).any() == offered


def test_exposed_messages_over_pcie_are_not_answered_with_user_buffers() -> None:
    plan = Plan(tp=2, dp=4, sequence_parallel=True)
    words = {"tp_percent": 20, "tp_overlap_gain": 10}
    for machine, offered in (("l40s-8", False), ("dgx-h100", True)):
        found = violations(MODEL, WORKLOAD, load_cluster(machine), plan, 8, words)
        way = next(each.way_out for each in found if each.id == "tp_exposed")
        assert ("--tp-comm-overlap" in way) == offered


@pytest.mark.parametrize(
    ("machine", "refused"),
    [("h100-nvl-pairs", True), ("alps", True), ("h100-pcie-8", True), ("dgx-h100", False)],
)
def test_nothing_but_a_switch_reduces(machine: str, refused: bool) -> None:
    assert ("nvls_switch" in told(machine, Plan(tp=2, dp=4, sequence_parallel=True, nvls=True))) == refused
