"""One matrix product: laws of its time, and where its constants come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.timing.kernels import TILE_ROWS, gemm_time, whole
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


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200", "b300", "gb200", "gb300"])
def test_products_reach_one_share_of_the_peak_in_8_and_in_16_bits(name):
    """With 4 bytes an element of quantisation taken out, where it takes 8 to 10, FP8 reached a sixth less."""
    tables = hardware_db.load_calibration(name)["gemm"]
    in_bf16, in_fp8 = (tables[form]["fraction"].value for form in ("bf16", "fp8"))
    assert in_fp8 == pytest.approx(in_bf16, rel=0.06)


@pytest.mark.parametrize("rows", [512, 1000, 2048, 4100])
def test_unlike_groups_fill_half_a_tile_more_on_average(rows):
    """Tokens that choose their experts at random give them unlike counts, whose last tiles are filled by any share."""
    tokens, topk, num_experts = rows * 8, 8, 64
    drawn = np.random.default_rng(1).multinomial(tokens * topk, [1 / num_experts] * num_experts, size=400)
    tiles = np.ceil(drawn / TILE_ROWS).mean()
    assert whole(rows / TILE_ROWS, 1) == pytest.approx(tiles, rel=0.025)
    assert whole(rows / TILE_ROWS) == np.ceil(rows / TILE_ROWS)


@given(rows=st.integers(1, 100_000))
def test_no_group_has_less_than_a_tile_or_than_its_rows(rows):
    assert max(1, rows / TILE_ROWS) <= whole(rows / TILE_ROWS, 1) <= rows / TILE_ROWS + 1


def expert_gemm(seq_len: int, **knobs: Any) -> float:
    """Seconds of the experts' first product forward."""
    cluster = hardware_db.load_cluster("dgx-h100")
    plan = Plan(dp=8, ep=8, **knobs)
    return predict(load_model("qwen3-30b-a3b"), Workload(seq_len, 8), cluster, plan).values[
        "experts_fc1_forward"
    ]


def test_a_few_more_tokens_are_no_tile_more_for_every_expert():
    """2,048 rows an expert, then 2,064: only experts that a capacity factor fills need a 17th tile, all of them."""
    few, more = (expert_gemm(seq_len) for seq_len in (4096, 4128))
    assert 1 < more / few < 1.01
    few, more = (
        expert_gemm(seq_len, moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True)
        for seq_len in (4096, 4128)
    )
    assert more / few > 1.04
