"""Collectives of a GPU that borrows the tables of another run at the rate of the link that its own nodes have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.binding import precision_recipe
from costmodel.binding.hardware import hardware_inputs
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.stack import load_stack
from costmodel.workload import Workload
from hardware_db import Cluster, load_cluster, load_link

RATES = [
    f"{operation}_{name}"
    for operation in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    for name in ("bandwidth", "low_latency_bandwidth")
]


def inputs(cluster: Cluster) -> dict[str, float]:
    bound = hardware_inputs(cluster, precision_recipe("bf16"), "bf16", load_stack("nemo"))
    return {name: float(one.value) for name, one in bound.items()}


@pytest.mark.parametrize(("own", "borrowed"), [("hgx-h800", "dgx-h100"), ("hgx-a800", "dgx-a100")])
def test_export_variants_have_the_collectives_of_their_slower_link(own, borrowed):
    slow, fast = load_cluster(own), load_cluster(borrowed)
    share = slow.intra.bandwidth / fast.intra.bandwidth
    assert share < 1
    found, full = inputs(slow), inputs(fast)
    assert {name: found[name] / full[name] for name in RATES} == pytest.approx(dict.fromkeys(RATES, share))
    assert {name for name in full if found[name] != full[name]} == {*RATES, "send_recv_bandwidth"}


def test_an_h800_is_no_faster_than_an_h100():
    """Same kernels, and NVLink at less than half the rate."""
    model, workload = load_model("llama3-70b"), Workload(seq_len=8192, global_batch=64)
    plan = Plan(tp=8, dp=2, micro_batch=1, precision="bf16", sequence_parallel=True)
    slow, fast = (predict(model, workload, load_cluster(name), plan) for name in ("hgx-h800", "dgx-h100"))
    for name in ("forward_tensor_parallel", "backward_tensor_parallel"):
        assert slow.values[name] > 1.5 * fast.values[name]
    assert all(
        slow.values[name] >= fast.values[name] for name in ("forward_elementwise", "backward_elementwise")
    )


def test_another_link_is_told_and_an_own_measurement_is_not_scaled():
    cluster = replace(load_cluster("dgx-h100"), intra=load_link("pcie5-x16"))
    bound = hardware_inputs(cluster, precision_recipe("bf16"), "bf16", load_stack("nemo"))
    assert "pcie5-x16" in bound["all_gather_bandwidth"].note
    full = inputs(load_cluster("dgx-h100"))
    share = cluster.intra.bandwidth / load_link("nvlink4").bandwidth
    assert float(bound["all_gather_bandwidth"].value) == pytest.approx(share * full["all_gather_bandwidth"])

    measured = {"collective": {"all_gather": {}}}
    own = inputs(replace(cluster, gpu=replace(cluster.gpu, own_calibration=measured)))
    assert own["all_gather_bandwidth"] == full["all_gather_bandwidth"]
    assert own["all_reduce_bandwidth"] < full["all_reduce_bandwidth"]
