"""Bytes that ranks hold, beside those that are counted."""

from __future__ import annotations

import dataclasses

from costmodel.model_registry import load_model
from costmodel.model_tables import Moe
from costmodel.plan import Plan
from costmodel.rank_share import rank_share
from costmodel.workload import Workload
from executor.state import compare, warnings

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


def test_modules_without_transformer_engine_stand_in_another_order():
    """What two ranks of Megatron-Core 0.16.1 held: widths that are no multiple of 64 leave padding between tensors."""
    moe = Moe(num_experts=6, topk=2, expert_ffn=320)
    sizes = {
        "num_layers": 4,
        "hidden": 224,
        "ffn_hidden": 320,
        "head_dim": 28,
        "num_heads": 8,
        "num_kv_heads": 4,
    }
    model = dataclasses.replace(TINY, name="odd", family="moe", vocab=1500, moe=moe, **sizes)
    plan = Plan(dp=2, ep=2, precision="fp32")
    own = [rank_share(plan, SHORT, model, 0, (rank, 0), plain=True)["optimizer"] for rank in (0, 1)]
    assert own == [25_834_496, 25_834_240]
    fused = [rank_share(plan, SHORT, model, 0, (rank, 0))["optimizer"] for rank in (0, 1)]
    assert fused == own[::-1]


def test_nothing_where_nothing_is_counted():
    assert compare(Plan(dp=2, fsdp=True, zero_stage=3), SHORT, TINY, ranks()) == []
    assert compare(PLAN, SHORT, TINY, []) == []
