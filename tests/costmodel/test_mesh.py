"""Laws of a mesh: GPUs without a switch have the links between them, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.binding import precision_recipe
from costmodel.binding.hardware import hardware_inputs
from costmodel.binding.links import SEND_RECV_EFFICIENCY
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.stack import load_stack
from costmodel.symbols import COLLECTIVE_CONSTANTS, COLLECTIVES
from costmodel.timing.network import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    mesh_share,
    reduce_scatter_time,
    send_recv_time,
)
from costmodel.workload import Workload
from hardware_db import Quantity

MESHES = ("mi300x", "mi325x", "mi355x")
FORMULAS = {
    "all_gather": all_gather_time,
    "reduce_scatter": reduce_scatter_time,
    "all_reduce": all_reduce_time,
    "all_to_all": all_to_all_time,
}


def inputs(name: str) -> SimpleNamespace:
    cluster = hardware_db.resolve(name, None)[0]
    found = predict(load_model("llama3-8b"), Workload(8192, 8), cluster, Plan(dp=8))
    return SimpleNamespace(**found.values)


INPUTS = {name: inputs(name) for name in MESHES}
names = st.sampled_from(MESHES)
formulas = pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
sizes = st.floats(1e3, 1e10)
parts = st.sampled_from([1, 2, 8, 64])


def changed(x: SimpleNamespace, **values: float) -> SimpleNamespace:
    return SimpleNamespace(**(vars(x) | values))


def bandwidth_alone(x: SimpleNamespace) -> SimpleNamespace:
    """The same links without latencies, one rate whatever the ranks."""
    rates = {
        f"{operation}_{name}": 4e11 if name.endswith("bandwidth") else 0.0
        for operation in COLLECTIVES
        for name in COLLECTIVE_CONSTANTS
    }
    return changed(x, **rates, intra_scale=1.0)


@given(st.integers(1, 127), st.data())
def test_more_ranks_of_a_mesh_never_reach_less_of_it(links, data):
    x = SimpleNamespace(peer_links=links)
    fewer = data.draw(st.integers(1, links))
    assert 0 < mesh_share(x, fewer) <= mesh_share(x, fewer + 1) <= 1
    assert mesh_share(x, links + 1) == 1
    assert mesh_share(x, 2) == pytest.approx(1 / links)


@given(st.floats(1, 576))
def test_every_group_behind_a_switch_reaches_all_of_its_link(ranks):
    assert mesh_share(SimpleNamespace(peer_links=1.0), ranks) == 1


@formulas
@given(name=names, size=sizes, parts=parts)
def test_a_whole_node_is_as_quick_as_behind_a_switch(formula, name, size, parts):
    x = INPUTS[name]
    assert formula(x, size, 8 * parts, 8) == formula(changed(x, peer_links=1.0), size, 8 * parts, 8)


@formulas
@given(name=names, size=sizes, inside=st.integers(1, 8), parts=parts)
def test_a_mesh_is_never_quicker_than_a_switch(formula, name, size, inside, parts):
    x = INPUTS[name]
    assert formula(x, size, inside * parts, inside) >= formula(
        changed(x, peer_links=1.0), size, inside * parts, inside
    )


@formulas
@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 3), (8, 7)])
def test_a_group_has_the_links_between_its_members(formula, ranks, links):
    """An all-reduce passes the bytes twice; the others once: (n - 1) / n of them over n - 1 links of a seventh each."""
    twice = 2 if formula is all_reduce_time else 1
    seconds = formula(bandwidth_alone(INPUTS["mi300x"]), 1e9, ranks, ranks)
    assert seconds == pytest.approx(twice * 1e9 * (ranks - 1) / ranks / (links * 4e11 / 7))


def test_tokens_go_straight_to_their_experts_ranks():
    x = changed(bandwidth_alone(INPUTS["mi300x"]), dispatch_once=0.0)
    assert dispatch_time(x, 1e9, 0.0, 2, 2) == pytest.approx(1e9 / (4e11 / 7))
    assert dispatch_time(x, 1e9, 0.0, 8, 8) == pytest.approx(1e9 / 4e11)


@pytest.mark.parametrize(("name", "link"), [("mi300x", 64e9), ("mi325x", 64e9), ("mi355x", 76.5e9)])
def test_a_message_to_one_peer_has_one_link(name, link):
    x = INPUTS[name]
    assert x.send_recv_bandwidth == pytest.approx(link * SEND_RECV_EFFICIENCY)
    rings = [send_recv_time(x, 1e9, ranks, ranks) for ranks in (2, 4, 8)]
    assert rings == [rings[0]] * 3  # each step of a ring goes to one neighbour
    assert rings[0] == pytest.approx(1e9 / (link * SEND_RECV_EFFICIENCY * x.intra_scale), rel=0.01)


def test_an_own_measurement_between_two_is_of_their_link():
    cluster = hardware_db.resolve("mi300x", None)[0]
    measured = {
        "collective": {
            "send_recv": {
                "latency": Quantity(9.0, "us", "measured", "here"),
                "bandwidth": Quantity(50.0, "GB/s", "measured", "here"),
            }
        }
    }
    own = replace(cluster, gpu=replace(cluster.gpu, own_calibration=measured))
    found = hardware_inputs(own, precision_recipe("bf16"), "bf16", load_stack("nemo"))
    assert found["send_recv_bandwidth"].value == 50e9


def test_every_other_cluster_has_a_switch():
    for cluster in hardware_db.list_clusters():
        bound = hardware_inputs(cluster, precision_recipe("bf16"), "bf16", load_stack("nemo"))
        links = bound["peer_links"]
        four_gh200 = 3 if cluster.name in ("alps", "jupiter") else 1
        assert links.value == (7 if cluster.gpu.vendor == "AMD" else four_gh200), cluster.name
        assert bool(links.note) == (links.value > 1)


def test_two_gpus_of_a_mesh_share_no_layers():
    """Two GPUs share 64 of 448 GB/s: TP 2 loses to FSDP, with which it is level behind a switch."""
    model, workload = load_model("llama3-70b"), Workload(8192, 128)
    cluster = hardware_db.resolve("mi300x", None)[0]
    switched = replace(cluster, intra=replace(cluster.intra, peer_links=1))
    pairs = Plan(tp=2, pp=2, vpp=10, dp=16, zero_stage=1, sequence_parallel=True, grad_reduce_in_fp32=False)
    sharded = Plan(dp=64, fsdp=True, zero_stage=3)
    there, here = (
        {plan: predict(model, workload, each, plan).step_time_s for plan in (pairs, sharded)}
        for each in (switched, cluster)
    )
    assert there[pairs] < 1.05 * there[sharded]
    assert here[pairs] > 1.15 * here[sharded]
    assert here[sharded] == pytest.approx(there[sharded], rel=1e-9)
