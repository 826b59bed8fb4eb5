"""Search, what-if and cures leave out plans whose offloaded state a node's host memory cannot hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.alternatives import missing, shortfall
from advisor.case import Case
from advisor.request import Request
from advisor.search import GIB, search
from advisor.search.scored import Scored
from advisor.variants import Variants
from advisor.whatif import what_if
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import Cluster, load_cluster

H100 = load_cluster("dgx-h100")
OFFLOAD = {"optimizer_offload": 100}


def host_of(terabytes: float) -> Cluster:
    """DGX H100 with another host memory."""
    quantity = replace(H100.quantities["host_memory"], value=terabytes)
    return replace(H100, quantities=dict(H100.quantities) | {"host_memory": quantity})


def asked(cluster: Cluster, **pins: object) -> Request:
    return Request(
        model=load_model("llama3-8b"),
        workload=Workload(8192, 32),
        cluster=cluster,
        gpus=16,
        precisions=("bf16",),
        pins=pins,
    )


def rejected(result) -> dict[str, int]:
    return {each.reason: each.count for each in result.rejected}


@pytest.mark.parametrize(
    "pins", [OFFLOAD, {"offload_modules": ("core_attn",), "recompute": "none"}, {"offload_layers": 4}]
)
def test_every_plan_of_a_search_has_the_host_memory_of_its_own_prediction(pins):
    """The column of the search and `Prediction.node_host_bytes` count alike, stages shared by nodes among them."""
    seen: list[Scored] = []
    request = asked(H100, **pins)
    search(request, look=seen.extend)
    (part,) = seen
    assert part.host is not None
    rows = np.random.default_rng(0).choice(len(part.host), 40, replace=False)
    for row, plan in zip(rows, part.plans(rows), strict=True):
        shown = predict(request.model, request.workload, request.cluster, plan)
        assert part.host[row] * H100.host_memory == pytest.approx(shown.node_host_bytes[0], rel=1e-9)


def test_nothing_offloaded_is_nothing_to_compare():
    seen: list[Scored] = []
    result = search(asked(H100, tp=2), look=seen.extend)
    assert seen[0].host is None
    assert "host memory" not in rejected(result)


def test_plans_that_the_host_cannot_hold_lose_and_are_counted():
    """A host a tenth smaller than the best plan needs: that plan is dropped, and others are not."""
    free = search(asked(host_of(100), offload_modules=("core_attn", "attn_proj"), micro_batch=1))
    taken = free.best.prediction.node_host_bytes[0]
    small = host_of(0.9 * taken / 1e12)
    held = search(asked(small, offload_modules=("core_attn", "attn_proj"), micro_batch=1))
    assert rejected(held)["host memory"] == free.feasible - held.feasible > 0
    assert all(each.prediction.fits_host for each in held.plans)
    assert held.best.step_time >= free.best.step_time


def test_a_host_too_small_for_any_plan_is_what_does_not_fit():
    result = search(asked(host_of(0.05), **OFFLOAD))
    assert result.feasible == 0
    assert not result.least_bad.prediction.fits_host
    assert missing(result.least_bad).endswith("of host memory a node")
    assert f"GiB of a node's host memory, which has {0.05e12 / GIB:,.0f}" in shortfall(result.least_bad)


def test_what_if_forbids_the_change_and_names_the_plans_own_error():
    model, load = load_model("llama3-8b"), Workload(8192, 32)
    plain = Case(model, load, host_of(0.05), 16, Plan(dp=16), None, (), None)
    changed = what_if(plain, ("optimizer_offload",))
    assert {each.rule for each in changed.forbidden} == {"host_memory_over"}
    over = what_if(replace(plain, plan=Plan(dp=16, **OFFLOAD)), ("optimizer_offload",))
    assert [each.id for each in over.errors] == ["host_memory_over"]


def test_a_variant_that_the_host_cannot_hold_cannot_be():
    chosen = predict(load_model("llama3-8b"), Workload(8192, 32), host_of(0.05), Plan(dp=16))
    found = Variants(chosen).of("offloaded", Plan(dp=16, **OFFLOAD))
    assert "host memory" in found.forbidden
