"""Bytes of any rank: shares of one buffer add up to it, and the first one's are those of `rank_amounts`."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.amounts import rank_amounts
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.rank_layers import placed_chunks
from costmodel.rank_share import rank_share
from costmodel.workload import Workload

TINY = load_model("tiny-gpt")
WORKLOAD = Workload(64, 64)
MOMENTS = 8  # bytes of Adam's moments for a parameter in fp32


@given(
    dp=st.sampled_from([1, 2, 3, 4, 8]),
    cp=st.sampled_from([1, 2]),
    hidden=st.sampled_from([64, 96, 200]),
    bucket=st.sampled_from([0, 10_000]),
)
def test_shares_of_the_optimizer_add_up_to_every_parameter(dp, cp, hidden, bucket):
    model = dataclasses.replace(TINY, hidden=hidden, ffn_hidden=3 * hidden, num_heads=4, num_kv_heads=2)
    plan = Plan(dp=dp, cp=cp, precision="fp32", bucket_size=bucket)
    workload = Workload(64, 24)
    shares = [rank_share(plan, workload, model, 0, (place, 0)) for place in range(dp * cp)]
    whole = sum(rank_amounts(plan, workload, model, 0).parameters.values())
    assert sum(share["optimizer"] for share in shares) == MOMENTS * whole
    assert len({(share["parameters"], share["gradients"]) for share in shares}) == 1


@pytest.mark.parametrize("name", ["tiny-gpt", "mixtral-8x7b", "deepseek-v3"])
def test_the_first_rank_is_the_one_of_rank_amounts(name):
    model = load_model(name)
    plan = Plan(tp=2, pp=2, dp=4, ep=4 if model.moe else 1, sequence_parallel=True)
    for stage in range(plan.pp):
        assert rank_share(plan, WORKLOAD, model, stage) == rank_amounts(plan, WORKLOAD, model, stage).state


def test_the_final_norm_follows_the_last_layer_where_heads_stand_elsewhere():
    """Megatron-Core puts it behind the decoder's last layer once there are MTP heads; without, before the output."""
    layout = "Et*4|mL"
    heads = dataclasses.replace(TINY, mtp_layers=1)
    with_heads = Plan(pp=2, pipeline_layout=layout, precision="fp32")
    assert [chunk.ends for stage in (0, 1) for chunk in placed_chunks(with_heads, heads, stage, 64)] == [
        True,
        False,
    ]
    plain = Plan(pp=2, pipeline_layout="Et*4|L", precision="fp32")
    norm = 4 * TINY.hidden
    moved = rank_share(with_heads, WORKLOAD, heads, 0)["gradients"]
    assert moved - rank_share(plain, WORKLOAD, TINY, 0)["gradients"] == norm
