"""Amounts of the expert block: expected distinct ranks, bytes of each dispatcher, rows and streams."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.family import compiled_family
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.symbols import BY_NAME, INPUTS
from costmodel.work import dispatched, experts
from costmodel.work.quantisation import quantise_grad_elements, quantise_input_elements
from costmodel.workload import Workload
from hardware_db import load_cluster

degrees = st.sampled_from([1, 2, 4, 8, 16])


def numbers(**known: float) -> SimpleNamespace:
    """Every input zero but the given ones; sizes are one."""
    names = (
        "tp",
        "cp",
        "ep",
        "etp",
        "b",
        "capacity",
        "imbalance",
        "ragged",
        "m",
        "router_groups",
        "router_picks",
    )
    ones = dict.fromkeys(names, 1)
    values = dict.fromkeys((entry.name for entry in INPUTS), 0) | ones
    return SimpleNamespace(
        **values
        | {"s": 4096, "he": 1024, "activation_bytes": 2, "topk": 4, "E": 64, "capacity_limit": 64}
        | known
    )


@pytest.mark.parametrize(("groups", "picks"), [(1, 3), (2, 1), (2, 3), (3, 4), (4, 4), (5, 3)])
def test_distinct_is_the_exact_expectation(groups, picks):
    """Against all groups^picks outcomes."""
    outcomes = list(itertools.product(range(groups), repeat=picks))
    mean = sum(len(set(outcome)) for outcome in outcomes) / len(outcomes)
    assert dispatched.distinct(groups, picks) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(
    ("num_experts", "ep", "topk"), [(256, 8, 8), (256, 64, 8), (128, 16, 6), (64, 64, 4)]
)
def test_distinct_is_near_what_top_k_without_repetition_meets(num_experts, ep, topk):
    """Real top-k picks different experts, so it meets a few more ranks: 10 % at most here, never fewer."""
    generator = np.random.default_rng(0)
    picks = np.argsort(generator.random((20_000, num_experts)), axis=1)[:, :topk]
    ranks = np.sort(picks // (num_experts // ep), axis=1)
    mean = 1 + np.mean(np.sum(np.diff(ranks, axis=1) > 0, axis=1))
    found = dispatched.distinct(ep, topk)
    assert mean * 0.90 <= found <= mean * 1.01


@pytest.mark.parametrize("blocks", [2, 4, 8, 16, 64])
def test_groups_limit_what_a_token_meets(blocks):
    """DeepSeek-V3: the best 4 of 8 groups, 8 of 256 experts in them; against drawn routing."""
    generator = np.random.default_rng(0)
    groups = np.argsort(generator.random((20_000, 8)), axis=1)[:, :4]
    scores = np.where(
        (groups[:, :, None] == np.arange(256) // 32).any(axis=1), generator.random((20_000, 256)), 0
    )
    picks = np.argsort(-scores, axis=1)[:, :8]
    met = np.sort(picks // (256 // blocks), axis=1)
    mean = 1 + np.mean(np.sum(np.diff(met, axis=1) > 0, axis=1))
    x = numbers(ep=blocks, E=256, topk=8, router_groups=8, router_picks=4)
    assert dispatched.destinations(x, blocks) == pytest.approx(mean, rel=0.12)
    free = numbers(ep=blocks, E=256, topk=8)
    assert (
        dispatched.destinations(x, blocks)
        <= dispatched.destinations(free, blocks)
        == dispatched.distinct(blocks, 8)
    )


@pytest.mark.parametrize(
    ("num_experts", "topk", "blocks", "met"), [(256, 8, 64, 2), (256, 8, 8, 1), (128, 4, 64, 2)]
)
def test_experts_dealt_out_in_a_row_are_on_few_ranks(num_experts, topk, blocks, met):
    """AutoModel's fake gate: token i visits experts topk i to topk i + topk - 1, modulo their number."""
    first = topk * np.arange(1024) % num_experts
    ranks = (first[:, None] + np.arange(topk)) // (num_experts // blocks)
    assert np.mean([len(set(row)) for row in ranks.tolist()]) == met
    x = numbers(ep=blocks, E=num_experts, topk=topk, adjacent=1)
    assert dispatched.destinations(x, blocks) == met


@given(degrees, degrees)
def test_all_to_all_bytes_are_all_copies_that_leave_the_rank(ep, inside):
    """What stays inside a domain and what leaves it add up to (ep - 1) / ep of the copies."""
    inside = min(inside, ep)
    x = numbers(ep=ep)
    near = dispatched.dispatch_bytes_inside(x, inside)
    far = dispatched.dispatch_bytes_outside(x, inside)
    copies = dispatched.routed_copies(x) * 1024 * 2
    assert near + far == pytest.approx(copies * (ep - 1) / ep)


@given(degrees, degrees, st.integers(1, 16))
def test_a_token_sent_once_never_costs_more_than_its_copies(ep, inside, topk):
    inside = min(inside, ep)
    each, once = (numbers(ep=ep, topk=topk, dispatch_once=value) for value in (0, 1))
    assert dispatched.dispatch_bytes_outside(once, inside) <= dispatched.dispatch_bytes_outside(
        each, inside
    ) * (1 + 1e-12)
    if inside == ep:
        assert dispatched.dispatch_bytes_inside(once, ep) <= dispatched.dispatch_bytes_inside(each, ep) * (
            1 + 1e-12
        )


@given(degrees)
def test_a_domain_that_holds_all_ranks_sends_nothing_over_the_network(ep):
    for knobs in ({}, {"dispatch_once": 1}, {"dispatch_gather": 1}):
        assert dispatched.dispatch_bytes_outside(numbers(ep=ep, **knobs), ep) == 0
        assert dispatched.dispatch_bytes_inside(numbers(ep=1, **knobs), 1) == 0


@pytest.mark.parametrize(("ep", "inside"), [(16, 8), (64, 8), (64, 4), (8, 8)])
def test_what_came_over_the_network_is_passed_on_inside_the_domain(ep, inside):
    """A token goes once to every rank it is for: all of these but the one that takes it off the network, at least."""
    x = numbers(ep=ep, topk=8, E=256, activation_bytes=2, dispatch_once=1)
    every = dispatched.destinations(x, ep) * x.activation_bytes * x.s * x.he
    assert every * (inside - 1) / inside <= dispatched.dispatch_bytes_inside(x, inside) < every


@pytest.mark.parametrize(("ep", "inside"), [(8, 8), (16, 8), (32, 8), (32, 4), (8, 1)])
def test_gathered_tokens_travel_to_every_other_rank(ep, inside):
    """Those of one rank of each other domain over the own card, all others inside: of 16 ranks in two domains 14."""
    x = numbers(ep=ep, dispatch_gather=1)
    rank = 4096 * 1024 * 2
    assert dispatched.dispatch_bytes_outside(x, inside) == rank * (ep // inside - 1)
    assert dispatched.dispatch_bytes_inside(x, inside) == rank * (ep - ep // inside)


def test_rows_of_the_busiest_rank():
    """T topk rows on average; imbalance up to where tokens are dropped, capacity where rows are padded."""
    even = 4096 * 4
    assert dispatched.expert_rows(numbers(ep=8)) == even
    assert dispatched.expert_rows(numbers(ep=8, imbalance=1.5)) == 1.5 * even
    assert dispatched.expert_rows(numbers(ep=8, imbalance=1.5, capacity_limit=1.25)) == 1.25 * even
    assert dispatched.expert_rows(numbers(ep=8, imbalance=1.5, ragged=0, capacity=1.25)) == 1.25 * even
    assert dispatched.expert_rows(numbers(ep=4, etp=2, tp=2, sp=1)) == even


@pytest.mark.parametrize(
    ("ep", "topk", "most"), [(1, 4, 1), (2, 4, 2), (8, 4, 8), (32, 4, 16), (2, 48, 4 / 3)]
)
def test_no_rank_is_busier_than_its_share_of_ranks_and_choices_allows(ep, topk, most):
    """One rank has all tokens whatever the router does; one of 32 with two experts at most two of four choices."""
    even, uneven = (dispatched.expert_rows(numbers(ep=ep, topk=topk, imbalance=load)) for load in (1, 64))
    assert uneven == pytest.approx(most * even)


def test_imbalance_that_ranks_cannot_have_is_told():
    model, cluster = load_model("mixtral-8x7b"), load_cluster("dgx-h100")
    alone, several = (
        predict(model, Workload(4096, 32, moe_imbalance=1.5), cluster, Plan(tp=8, dp=2, ep=ep), judged=False)
        for ep in (1, 8)
    )
    even = predict(model, Workload(4096, 32), cluster, Plan(tp=8, dp=2), judged=False)
    assert alone.step_time_s == even.step_time_s
    assert any("more than 1 times the mean tokens at ep 1" in each for each in alone.assumptions)
    assert any("has 1.5 times the mean" in each for each in several.assumptions)
    assert not any("--moe-imbalance" in each for each in even.assumptions)


@given(degrees, st.sampled_from(["permute_fused", "dispatch_fused", "dispatch_once"]))
def test_fused_or_single_permutation_moves_less(ep, knob):
    plain, better = (experts.permute(numbers(ep=ep, permute_fused=knob != "permute_fused")) for _ in range(2))
    better = experts.permute(numbers(ep=ep, **{"permute_fused": 1, knob: 1}))
    assert better.forward <= plain.forward
    assert better.backward <= plain.backward


@given(degrees)
def test_permutation_grows_with_the_copies(topk):
    one, more = (experts.permute(numbers(ep=2, topk=count, permute_fused=1)) for count in (topk, 2 * topk))
    assert one.forward < more.forward <= 2 * one.forward


def test_a_row_costs_hybridep_time_beside_its_bytes():
    """The same for a row of any size, none for other dispatchers; the bytes that travel are the row's own."""
    for hybridep in (0, 1):
        x = numbers(ep=8, dispatch_row=4096, dispatch_once=1, dispatch_fused=hybridep)
        free = numbers(ep=8, dispatch_once=1, dispatch_fused=hybridep)
        assert dispatched.dispatch_bytes_inside(x, 8) == dispatched.dispatch_bytes_inside(free, 8) > 0
        assert dispatched.dispatch_row_bytes(x, 8) == hybridep * 4096 * dispatched.dispatch_copies_inside(
            x, 8
        )
    small, large = (
        dispatched.dispatch_row_bytes(x, 8) / dispatched.dispatch_bytes_inside(x, 8)
        for x in (
            numbers(ep=8, dispatch_row=4096, dispatch_once=1, dispatch_fused=1, he=he) for he in (2048, 8192)
        )
    )
    assert small == 4 * large
    formulas, inputs = hybridep_step()
    times = {row: formulas.full(inputs | {"dispatch_row": row})["dispatch_time"] for row in (0.0, 4096.0)}
    assert times[4096.0] > 1.2 * times[0.0]


@pytest.mark.parametrize(
    ("dispatcher", "moves"), [("alltoall", False), ("allgather", False), ("deepep", True), ("hybridep", True)]
)
def test_multiprocessors_of_dispatchers_move_their_own_kernels_alone(dispatcher, moves):
    """Those of NCCL take multiprocessors too, and have no knob. Four sequences a pass: the host is no limit."""
    model, where = load_model("qwen3-30b-a3b"), load_cluster("dgx-h100")
    plan = Plan(
        dp=8, ep=8, micro_batch=4, moe_dispatcher=dispatcher, overlap_moe_comm=dispatcher != "allgather"
    )
    times = {
        sms: predict(model, Workload(4096, 64), where, replace(plan, dispatcher_sms=sms)).step_time_s
        for sms in (0, 4, 64)
    }
    assert (len(set(times.values())) > 1) == moves


def hybridep_step() -> tuple[Any, dict[str, float]]:
    """A step of Qwen3 30B on eight GPUs of a rack, its formulas and inputs."""
    plan = Plan(dp=8, ep=8, moe_dispatcher="hybridep")
    found = predict(load_model("qwen3-30b-a3b"), Workload(4096, 64), load_cluster("gb300-nvl72"), plan)
    inputs = {key: found.values[key] for key in BY_NAME if key in found.values}
    return compiled_family(found.features), inputs


@pytest.mark.parametrize(
    ("gates", "biases", "casts", "spared"),
    [
        (1, 0, 1, {"activation", "fc1 gradient", "fc2 input"}),
        (1, 0, 0, {"activation"}),  # NVFP4
        (0, 0, 1, set()),
        (1, 1, 1, set()),
    ],
)
def test_fused_experts_neither_stream_nor_cast_between_their_products(gates, biases, casts, spared):
    def block(on: int) -> dict[str, float]:
        recipe = {"experts_fused": 1, "fused_casts": casts, "fuses_fp4_experts": 1 - casts}
        x = numbers(expert_mlp_fused=on, gates=gates, biases=biases, fe=768, h=1024, grouped=1, **recipe)
        work = experts.experts(x, {"experts"})
        linears = {linear.name: linear for linear in work.linears}
        stream = next(each for each in work.streams if each.name == "activation")
        return {
            "activation": stream.forward + stream.backward,
            "fc1 input": quantise_input_elements(linears["fc1"]),
            "fc1 gradient": quantise_grad_elements(linears["fc1"]),
            "fc2 input": quantise_input_elements(linears["fc2"]),
            "fc2 gradient": quantise_grad_elements(linears["fc2"]),
        }

    apart, together = block(0), block(1)
    assert all(value > 0 for value in apart.values())
    gone = {name for name in apart if together[name] == 0}
    assert gone == spared
    assert all(together[name] == apart[name] for name in apart if name not in gone)


def test_the_output_layer_in_mxfp8_is_quicker_and_otherwise_the_same():
    model, cluster = load_model("llama3-8b"), load_cluster("dgx-b200")
    times = {
        (precision, low): predict(
            model, Workload(8192, 64), cluster, Plan(dp=8, precision=precision, fp8_output=low)
        ).values["logits_gemms"]
        for precision in ("bf16", "fp8-cs", "mxfp8")
        for low in (False, True)
    }
    assert times["mxfp8", True] < 0.8 * times["mxfp8", False]
    for precision in ("bf16", "fp8-cs"):
        assert times[precision, True] == times[precision, False]
