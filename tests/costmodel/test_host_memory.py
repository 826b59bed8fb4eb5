"""Host memory that offloading takes: counted, shown, and compared with what a node has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import advisor
from advisor.measurements import Skip, read_rows, row_case
from advisor.rules import violations
from advisor.rules.predicted_words import predicted_words
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from hardware_db import load_cluster

GIB = 2**30
H100 = load_cluster("dgx-h100")
LLAMA = load_model("llama3-8b")
ROWS = Path(__file__).parents[1] / "advisor" / "data" / "rule_rows.csv"
PARAMETERS = 8_030_261_248


def offloaded(model=LLAMA, cluster=H100, seq_len: int = 8192, **knobs) -> Prediction:
    plan = Plan(**{"dp": 8} | knobs)
    return predict(model, Workload(seq_len, 16 * plan.dp), cluster, plan)


def told(prediction: Prediction) -> set[str]:
    words = predicted_words(prediction)
    case = (prediction.model, prediction.workload, prediction.cluster, prediction.plan)
    return {each.id for each in violations(*case, predicted=words) if each.id.startswith("host_memory")}


def test_nothing_offloaded_is_nothing_on_the_host():
    assert offloaded().host_bytes == {}
    assert offloaded().node_host_bytes == (0.0, 0.0)
    assert told(offloaded()) == set()


@pytest.mark.parametrize("knobs", [{}, {"precision_aware_optimizer": True}], ids=str)
def test_an_offloaded_optimizer_has_16_bytes_a_parameter_on_its_node(knobs):
    """Both moments, and Megatron-Core's FP32 copies of parameters and gradients, over the node's 8 ranks.

    10 had been counted with the precision-aware optimizer.
    """
    least, most = offloaded(optimizer_offload=100, **knobs).node_host_bytes
    assert least == most == pytest.approx(16 * PARAMETERS, rel=1e-3)


@given(share=st.integers(1, 100))
def test_a_share_of_the_optimizer_takes_its_share_of_the_host(share):
    whole, part = (offloaded(optimizer_offload=each).node_host_bytes[1] for each in (100, share))
    assert part == pytest.approx(whole * share / 100)


def test_what_leaves_the_device_is_on_the_host():
    usual = offloaded(seq_len=4096)
    for knobs in ({"offload_layers": 8}, {"offload_modules": ("core_attn", "attn_proj")}):
        moved = offloaded(seq_len=4096, **knobs)
        (host,) = moved.host_bytes.values()
        parts = [
            next(part.value for part in each.memory.parts if part.name.endswith("_activations"))
            for each in (usual, moved)
        ]
        assert host == pytest.approx(parts[0] - parts[1])
        assert host > 0


def test_stages_that_share_a_node_leave_a_range():
    """8 stages of one rank stand on one node: between 8 times the emptiest and 8 times the fullest."""
    model = load_model("llama3-70b")
    least, most = offloaded(model, dp=1, pp=8, optimizer_offload=100).node_host_bytes
    assert least < 16 * 70.55e9 < most
    apart = offloaded(model, dp=8, pp=8, optimizer_offload=100)
    assert apart.node_host_bytes[0] == apart.node_host_bytes[1]


def test_405b_on_two_nodes_does_not_fit_2_tb_and_more_gpus_help():
    """16 bytes of 405e9 parameters are 6.5 TB, over two nodes 3.2 each; over eight 0.8."""
    model = load_model("llama3.1-405b")
    knobs = {"tp": 8, "dp": 1, "sequence_parallel": True, "optimizer_offload": 100}
    over, fine = (offloaded(model, pp=pp, **knobs) for pp in (2, 8))
    assert told(over) == {"host_memory_over"}
    assert not over.fits_host
    assert told(fine) == set()
    assert fine.fits_host
    half = offloaded(model, pp=2, **knobs | {"optimizer_offload": 50})
    assert told(half) == set()


def test_a_cluster_without_the_number_says_so_and_gives_its_own():
    meta = offloaded(cluster=load_cluster("meta-h100"), optimizer_offload=100)
    assert meta.cluster.host_memory is None
    assert told(meta) == {"host_memory_unknown"}
    assert meta.fits_host


@pytest.mark.parametrize(
    ("name", "gb"), [("dgx-h100", 2000), ("gb200-nvl72", 960), ("aws-p4de", 1152 * 1.073741824)]
)
def test_host_memory_on_file(name, gb):
    cluster = load_cluster(name)
    assert cluster.host_memory == pytest.approx(gb * 1e9)
    assert cluster.quantities["host_memory"].source


def test_check_refuses_and_predict_shows_the_number():
    asked = ["--model", "llama3.1-405b", "--gpus", "16", "--gpu", "h100", "--tp", "8", "--pp", "2"]
    asked += ["--sequence-parallel", "--optimizer-offload", "100"]
    found = CliRunner().invoke(advisor, ["check", *asked])
    assert found.exit_code == 1
    assert "[host_memory_over]" in found.output
    text = CliRunner().invoke(advisor, ["predict", *asked]).output
    assert "host memory of the fullest node 3,024 of 1,863 GiB" in text
    said = json.loads(CliRunner().invoke(advisor, ["predict", *asked, "--json"]).output)
    assert said["memory"]["host_node_gib"]["most"] == pytest.approx(3024, abs=1)


def test_explain_shows_the_number_of_a_pinned_offload():
    asked = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--pin", "optimizer_offload=100"]
    # One stage, so that every rank's share is the same: 16 bytes for 8.03 billion parameters.
    asked += ["--pin", "pp=1"]
    text = CliRunner().invoke(advisor, ["explain", *asked], catch_exceptions=False).output
    assert "host memory of the fullest node 120 of 1,863 GiB" in text


def test_no_published_run_that_offloads_is_refused():
    """What has run has fitted its host."""
    cases = [row_case(row) for row in read_rows(ROWS)]
    tried = [
        case
        for case in cases
        if not isinstance(case, Skip)
        and (case.plan.optimizer_offload or case.plan.offload_layers or case.plan.offload_modules)
    ]
    assert tried
    for case in tried:
        shown = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
        assert "host_memory_over" not in told(shown)


def test_a_smaller_host_turns_the_same_plan_down():
    shown = offloaded(optimizer_offload=100)
    quantity = H100.quantities["host_memory"]
    small = replace(H100, quantities=dict(H100.quantities) | {"host_memory": replace(quantity, value=0.1)})
    assert told(shown) == set()
    assert told(replace(shown, cluster=small)) == {"host_memory_over"}
