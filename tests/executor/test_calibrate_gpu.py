"""A GPU that is made up: what was planted in its kernels is found, and lies over the tables that ship."""

from __future__ import annotations

import dataclasses

import pytest
from planted_machine import Machine

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.timing import kernels
from costmodel.work.linear import gemm_bytes
from costmodel.workload import Workload
from executor import calibrate
from executor.calibrate_gpu import gpu_tables

SHAPES = [(4096, 1024, 1024), (4096, 4096, 4096), (4096, 10240, 8192), (4096, 28672, 8192)]
CLUSTER = hardware_db.resolve("h200", None)[0]


def measured(fraction: float) -> dict:
    """What the worker would write for an H200 that reaches this fraction of its BF16 peak."""
    peak, bandwidth = (CLUSTER.gpu.quantities[name].si for name in ("peak_bf16", "hbm_bandwidth"))
    found = Machine(ranks=1).measured()
    found["gemm"] = []
    for shape in SHAPES:
        for name, order in (("forward", (0, 1, 2)), ("dgrad", (0, 2, 1)), ("wgrad", (1, 2, 0))):
            m, n, k = (float(shape[axis]) for axis in order)
            seconds = kernels.gemm_time(
                m, n, k, peak=peak, fraction=fraction, num_sms=132, wave_weight=0.0, launch=5e-6,
                num_bytes=gemm_bytes(m, n, k, 2, 2), bandwidth=bandwidth,
            )  # fmt: skip
            entry = {"seconds": float(seconds), "quick": float(seconds), "spread": 0.01}
            found["gemm"].append({"dtype": "bf16", "pass": name, "shape": list(shape), **entry})
    for entry in found["attention"]:
        entry["dtype"] = "bf16"
    return found | {"device": "NVIDIA H200", "sms": 132}


def test_planted_rates_lie_over_the_shipped_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "has_cuda", lambda: True)
    monkeypatch.setattr(calibrate, "gpu_here", lambda: "h200")
    monkeypatch.setattr(calibrate, "measure", lambda *_: measured(0.6))
    found = calibrate.calibrate_here(1, 60.0, tmp_path / "mine.toml")
    assert found is not None
    own = hardware_db.load_cluster(str(found.path))
    table, shipped = (hardware_db.load_calibration(each.gpu) for each in (own, CLUSTER))
    assert table["gemm"]["bf16"]["fraction"].si == pytest.approx(0.6, rel=0.03)
    assert table["gemm"]["fp8"] == shipped["gemm"]["fp8"]
    assert table["memory"] == shipped["memory"]
    assert own.gpu.generation == "hopper"
    # A slower GEMM rate makes a slower step, and nothing else in it changes.
    plan, workload, model = Plan(dp=8, zero_stage=1), Workload(4096, 64), load_model("llama3-8b")
    mine, theirs = (predict(model, workload, each, plan) for each in (own, CLUSTER))
    assert mine.values["mlp_fc1_forward"] > theirs.values["mlp_fc1_forward"]
    assert mine.values["optimizer_step"] == theirs.values["optimizer_step"]


def test_a_format_without_a_peak_is_told_in_one_line():
    lesser = {name: each for name, each in CLUSTER.gpu.quantities.items() if name != "peak_bf16"}
    cluster = dataclasses.replace(CLUSTER, gpu=dataclasses.replace(CLUSTER.gpu, quantities=lesser))
    with pytest.raises(ValueError, match="no peak for bf16") as error:
        gpu_tables(measured(0.6), cluster)
    assert "\n" not in str(error.value)
