"""One matrix product: laws of its time, and where its constants come from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.timing.kernels import gemm_time
from costmodel.workload import Workload

sizes = st.integers(256, 20_000)


def seconds(m: int, n: int, k: int, **changed: Any) -> float:
    given: dict[str, Any] = {
        "peak": 1e15, "fraction": 0.8, "num_sms": 132, "wave_weight": 0.1, "launch": 2e-6,
        "num_bytes": 2 * (m * k + k * n + m * n), "bandwidth": 2e12, "fill": 100.0,
    }  # fmt: skip
    return float(gemm_time(m, n, k, **given | changed))


@given(m=sizes, n=sizes, k=sizes, fill=st.floats(0, 400))
def test_a_tile_fills_in_the_time_of_so_many_steps(m, n, k, fill):
    """A compute-bound product takes as long as one with `fill` more of K and none to fill."""
    free = {"bandwidth": 1e30}
    assert seconds(m, n, k, fill=fill, **free) == pytest.approx(seconds(m, n, k + fill, fill=0, **free))


@given(m=sizes, n=sizes, k=st.integers(256, 4096))
def test_short_products_reach_less_of_the_peak(m, n, k):
    short, long = (2 * m * n * inner / seconds(m, n, inner, launch=0, bandwidth=1e30) for inner in (k, 2 * k))
    assert short < long


@pytest.mark.parametrize("gpu", ["dgx-a100", "dgx-h100", "dgx-b200", "mi300x-8"])
def test_the_fill_is_of_the_gpus_table(gpu):
    values = predict(
        load_model("llama3-8b"), Workload(4096, 64), hardware_db.load_cluster(gpu), Plan(dp=8)
    ).values
    assert 0 < values["gemm_fill"] < 150
    assert values["linear_fill"] == values["gemm_fill"]


def test_formats_fill_in_the_same_time():
    """In FP8 twice as many steps of K pass while a tile fills."""
    cluster = hardware_db.load_cluster("dgx-h100")
    values = predict(
        load_model("llama3-8b"), Workload(4096, 64), cluster, Plan(dp=8, precision="fp8-cs")
    ).values
    assert values["linear_fill"] == pytest.approx(2 * values["gemm_fill"], rel=0.01)
