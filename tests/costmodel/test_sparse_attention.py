"""Sparse latent attention: MLA over the tokens that an indexer picks (DeepSeek-V3.2, GLM-5)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.work.dsa import dsa_flops_forward, index_flops_forward, picked_tokens
from costmodel.work.messages import context_columns
from costmodel.workload import Workload

SPARSE, DENSE = load_model("deepseek-v3.2"), load_model("deepseek-v3")
GB200 = hardware_db.load_cluster("gb200-nvl72")
PLAN = Plan(pp=4, ep=16, dp=16, pipeline_layout="balanced", cp_comm_type="all_gather")
SIZES = SimpleNamespace(
    b=1, s=8192, cp=1, tp=1, document=8192, a=128, kv_lora=512, d_nope=128, d_rope=64, d_v=128,
    index_topk=2048, index_heads=64, index_dim=128, index_interval=1,
)  # fmt: skip


def sizes(**changes) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(SIZES), **changes})


def told(model=SPARSE, seq_len=4096, **changes):
    return predict(model, Workload(seq_len, 256), GB200, dataclasses.replace(PLAN, **changes))


@pytest.mark.parametrize("document", [512, 2048, 3000, 131072])
def test_picked_tokens_are_the_mean_over_places(document):
    """A query meets all tokens before it, or index_topk of them."""
    counted = np.minimum(np.arange(document) + 0.5, 2048).mean()
    assert picked_tokens(sizes(document=document)) == pytest.approx(counted, rel=1e-3)


def test_the_core_works_on_latents():
    """Where nothing is left out it has (2 x 512 + 64) / (128 + 64 + 128) of dense MLA's FLOPs."""
    x = sizes(document=2048, s=2048)
    core = dsa_flops_forward(x) - index_flops_forward(x)
    dense = 2 * 2048 * 1024 * 128 * (128 + 64 + 128)
    assert core / dense == pytest.approx((2 * 512 + 64) / (128 + 64 + 128))


def test_every_tensor_rank_makes_all_scores_of_the_indexer():
    one, four = (sizes(tp=tp) for tp in (1, 4))
    assert index_flops_forward(four) == index_flops_forward(one)
    cores = [dsa_flops_forward(x) - index_flops_forward(x) for x in (one, four)]
    assert cores[0] == pytest.approx(4 * cores[1])


def test_layers_that_share_a_choice_have_no_indexer_of_their_own():
    """GLM-5.2: every index_topk_freq-th layer picks for those behind it."""
    indexer = SPARSE.indexer
    assert indexer is not None
    shared = dataclasses.replace(SPARSE, indexer=dataclasses.replace(indexer, interval=4))
    all_pick, few = told().values, told(shared).values
    assert few["dsa_index_queries_forward"] < all_pick["dsa_index_queries_forward"] / 3
    assert few["dsa_flops"] < all_pick["dsa_flops"]


def test_model_flops_are_those_of_attention_by_heads():
    """Latents as keys are the kernel's business: up to index_topk tokens the model needs as much as a dense one, and
    what the indexer has."""
    indexer = 61 * 3 * 2 * (1536 * 64 * 128 + 7168 * (128 + 64)) + 61 * 3 * 2048 * 64 * 128
    mtp = indexer / 61
    found = [
        each.model_tflops_per_gpu * 1e12 / each.tokens_per_second_per_gpu
        for each in (told(SPARSE, 2048), told(DENSE, 2048))
    ]
    assert found[0] - found[1] == pytest.approx(indexer + mtp, rel=0.01)


def test_long_sequences_gain_and_short_ones_lose():
    """At 4,096 tokens nearly all are picked, and each costs more as a latent."""
    for seq_len, wins in ((4096, False), (131072, True)):
        changes = {"cp": 8, "dp": 2} if seq_len > 8192 else {}
        sparse, dense = (told(model, seq_len, **changes) for model in (SPARSE, DENSE))
        assert (sparse.step_time_s < dense.step_time_s) == wins


def test_context_parallel_ranks_gather_latents():
    """One vector of 576 and a key of the indexer's, for keys and values of 128 heads."""
    x = sizes(tp=1)
    sparse = context_columns(x, "dsa").keys
    dense = context_columns(x, "mla").keys
    assert (sparse, dense) == (512 + 64 + 128, 128 * (128 + 64 + 128))


def test_up_projections_again_free_the_queries():
    """128 heads of 576 numbers a token, 16 bits each."""
    kept, again = (
        told(recompute="selective", recompute_modules=modules)
        for modules in (("layernorm",), ("layernorm", "mla_up_proj"))
    )
    freed = kept.memory_values or kept.values
    less = freed["memory_first"] - (again.memory_values or again.values)["memory_first"]
    queries = 2 * 4096 * 128 * 576
    assert less / queries == pytest.approx(
        16 * 4, rel=0.15
    )  # layers of a stage, four micro-batches in flight
    assert kept.step_time_s < again.step_time_s
