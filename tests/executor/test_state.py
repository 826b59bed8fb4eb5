"""Bytes that ranks hold, beside those that are counted."""

from __future__ import annotations

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.rank_share import rank_share
from costmodel.workload import Workload
from executor.state import Bytes, compare, warnings

TINY, SHORT = load_model("tiny-gpt"), Workload(64, 4)
PLAN = Plan(dp=2, precision="fp32")


def ranks(more: int = 0) -> list[dict]:
    """Facts of two ranks that hold what is counted, and `more` bytes of gradients on the second."""
    found = []
    for number in range(2):
        held = rank_share(PLAN, SHORT, TINY, 0, (number, 0))
        held["optimizer"] += 40  # step counters
        held["gradients"] += more * number
        found.append({"rank": number, "stage": 0, "places": [number, 0], "state": held, "step_counters": 40})
    return found


def test_equal_to_the_byte_and_silent():
    found = compare(PLAN, SHORT, TINY, ranks())
    assert len(found) == 6
    assert all(each.equal for each in found)
    assert warnings(found) == []


def test_one_byte_more_is_told():
    found = compare(PLAN, SHORT, TINY, ranks(1))
    assert [(each.rank, each.kind) for each in found if not each.equal] == [(1, "gradients")]
    assert "rank 1" in warnings(found)[0]


def test_padding_that_falls_to_another_rank_is_no_disagreement():
    found = [Bytes(0, 0, "optimizer", 100, 96), Bytes(1, 0, "optimizer", 92, 96)]
    assert "padding" in warnings(found)[0]
    assert "padding" not in warnings([Bytes(0, 0, "optimizer", 100, 96)])[0]


def test_nothing_where_nothing_is_counted():
    assert compare(Plan(dp=2, fsdp=True, zero_stage=3), SHORT, TINY, ranks()) == []
    assert compare(PLAN, SHORT, TINY, []) == []
