"""The interval of a GPU that nobody measured and that takes another's kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hardware_db
from costmodel.evidence import Interval, interval
from costmodel.evidence.setting import setting_of
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload


def on(cluster: hardware_db.Cluster) -> Interval:
    return interval(
        setting_of(load_model("llama3-8b"), Workload(8192, 128), cluster, Plan(dp=8), "nemo-26.06")
    )


@pytest.mark.parametrize("name", ["h100-pcie", "h100-nvl", "gh200"])
def test_a_gpu_nobody_measured_with_anothers_kernels_is_wider(name):
    found, kin = on(hardware_db.resolve(name, None)[0]), on(hardware_db.load_cluster("dgx-h100"))
    assert found.high - found.low > 1.5 * (kin.high - kin.low)
    assert (
        f"none of them on the {name}, whose kernels are those of the h100-sxm, so it is wider" in found.basis
    )


@pytest.mark.parametrize("name", ["hgx-h800", "meta-h100-500w", "dgx-a100-40", "b200-700w"])
def test_a_gpu_that_differs_in_links_alone_or_was_measured_is_not(name):
    assert "whose kernels" not in on(hardware_db.load_cluster(name)).basis


def test_a_gpu_whose_kernels_a_user_measured_is_not():
    cluster = hardware_db.load_cluster("h100-pcie-8")
    own = replace(cluster, gpu=replace(cluster.gpu, own_calibration={"gemm": {}}))
    assert "whose kernels" in on(cluster).basis
    assert "whose kernels" not in on(own).basis
