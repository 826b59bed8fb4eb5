"""Thread blocks of an attention kernel that end last: few heads leave a Blackwell idle, as its published rates say."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.timing.kernels import attention_time, query_waves
from costmodel.workload import Workload

# SimuMax, configs/system, B200: forward efficiency by heads of one sequence of 4096 tokens, over that of 64 heads.
PUBLISHED = {8: 0.31 / 0.87, 16: 0.58 / 0.87, 32: 0.73 / 0.87}


def core(gpu: str, tp: int, **knobs: object) -> dict[str, float]:
    """Quantities of Llama 3 70B, 64 heads, on tp ranks."""
    cluster = hardware_db.resolve(gpu, None)[0]
    plan = Plan(tp=tp, dp=8 // tp, **knobs)  # type: ignore[arg-type]
    return predict(load_model("llama3-70b"), Workload(4096, 64), cluster, plan).values


@pytest.mark.parametrize("heads", PUBLISHED)
def test_few_heads_reach_the_share_of_the_rate_that_was_published_to_15_percent(heads):
    shared = 64 // heads
    few, many = (core("b200", tp)["attention_core_forward"] for tp in (shared, 1))
    assert many / shared / few == pytest.approx(PUBLISHED[heads], rel=0.15)


@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_a_gpu_whose_tail_nobody_published_has_none(gpu):
    few, many = (core(gpu, tp) for tp in (8, 1))
    for kind in ("forward", "backward"):
        name = f"attention_core_{kind}"
        launch = many["attention_launch"]
        assert (few[name] - launch) * 8 == pytest.approx(many[name] - launch)


def test_a_batch_fills_the_gpu_as_heads_do():
    """Twice the sequences of half the heads: the same thread blocks."""
    two, one = core("b200", 2, micro_batch=2), core("b200", 1)
    assert two["attention_query_waves"] == pytest.approx(one["attention_query_waves"])
    assert two["attention_core_forward"] == pytest.approx(one["attention_core_forward"])


def test_the_tail_takes_its_waves_time():
    """148 blocks of 256 queries fill 148 SMs once; a tail of two waves is twice as long as they take."""
    given = {"peak": 1e15, "fraction": 0.5, "half_seq": 0.0, "half_dim": 0.0, "launch": 0.0}
    waves = query_waves(148 * 256, 1, 148)
    assert waves == 1
    alone = attention_time(1e12, 4096, 128, **given)
    assert attention_time(1e12, 4096, 128, **given, waves=waves, tail=2.0) == pytest.approx(3 * alone)
