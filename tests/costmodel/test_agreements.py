"""Checks for NaN, and maxima that delayed scaling agrees on: what each costs, and where it costs nothing."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.stack import load_stack
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]


def values(
    plan: Plan, stack: str = "nemo-26.06", model: str = "llama3-8b", batch: int = 128
) -> dict[str, float]:
    return predict(load_model(model), Workload(8192, batch), H100, plan, stack=stack).values


def term(plan: Plan, name: str, **where) -> float:
    return values(plan, **where)[name]


def test_a_check_reads_the_gradients_once_and_stops_the_host_at_each_bucket():
    found = values(Plan(tp=4, pp=2, dp=8, sequence_parallel=True))
    bandwidth = found["hbm_bandwidth"] * found["stream_fraction"] * found["tuned_stream_scale"]
    read = found["nan_checks"] - found["expert_wait"]
    assert read == pytest.approx(4 * found["dp_parameters"] / (bandwidth * found["release_scale"]), rel=0.001)
    narrow = values(Plan(tp=4, pp=2, dp=8, sequence_parallel=True, grad_reduce_in_fp32=False))
    assert narrow["nan_checks"] - narrow["expert_wait"] == pytest.approx(read / 2)


def test_chunks_and_buckets_are_stops():
    plain, chunks = (values(Plan(pp=2, vpp=vpp, dp=8)) for vpp in (1, 4))
    assert chunks["nan_checks"] - plain["nan_checks"] == pytest.approx(3 * plain["expert_wait"], rel=0.01)
    fine, coarse = (values(Plan(dp=8, bucket_size=size)) for size in (40_000_000, 400_000_000))
    less = fine["buckets_dp"] - coarse["buckets_dp"]
    assert fine["nan_checks"] - coarse["nan_checks"] == pytest.approx(less * fine["expert_wait"])


@pytest.mark.parametrize("dp", [1, 8])
def test_one_data_parallel_rank_is_checked_too(dp):
    assert term(Plan(tp=8, dp=dp, sequence_parallel=True), "nan_checks") > 0


@pytest.mark.parametrize(
    ("knobs", "stack"),
    [
        ({"check_for_nan_in_grad": False}, "nemo-26.06"),
        ({"cuda_graph": True, "cuda_graph_scope": ("full_iteration",)}, "nemo-26.06"),
        ({"precision": "fp16"}, "mcore-26.05"),
        ({"fsdp": True, "zero_stage": 3}, "nemo-26.06"),
        ({}, "torchtitan-26.03"),
        ({}, "nemo-24.05"),
        ({}, "megatron-21.04"),
    ],
)
def test_nothing_is_checked_where_it_is_off_or_unknown(knobs, stack):
    assert term(Plan(dp=8, **knobs), "nan_checks", stack=stack) == 0


def test_the_loss_is_looked_at_in_every_micro_batch_by_those_that_do():
    on, off = (values(Plan(dp=8, check_for_nan_in_grad=check)) for check in (True, False))
    assert on["last_stage_time"] - off["last_stage_time"] == pytest.approx(on["expert_wait"])
    assert off["loss_check"] == 0
    assert term(Plan(dp=8), "loss_check", stack="nemo-25.04") == 0
    assert term(Plan(dp=8), "loss_check", stack="mcore-25.04") > 0


def test_what_checks_is_data_of_the_stack():
    assert load_stack("nemo-24.09").checks_gradients
    assert not load_stack("nemo-24.07").checks_gradients
    # Megatron-Core 0.5 of 2024-02 has no such check, 0.6 of 2024-04 has.
    assert not load_stack("megatron-24.02").checks_gradients
    assert load_stack("mcore-24.07").checks_gradients
    assert not load_stack("nemo-25.07").checks_loss
    assert load_stack("local").checks_gradients
    assert not load_stack("local").large_buckets


def test_recipes_cut_larger_buckets_than_megatron_core():
    assert values(Plan(dp=8))["buckets_dp"] == pytest.approx(
        values(Plan(dp=8, bucket_size=128 * 1024**2))["buckets_dp"]
    )
    core = values(Plan(dp=8), stack="mcore-26.05")["buckets_dp"]
    assert core == pytest.approx(values(Plan(dp=8, bucket_size=40_000_000))["buckets_dp"])


def test_maxima_are_agreed_on_behind_every_pass_of_a_chunk():
    """On 64 GPUs some 50 us: 8 GPUs of a node and three doublings of nodes, up a tree and down."""
    plan = Plan(tp=4, pp=1, dp=16, precision="fp8-delayed", sequence_parallel=True)
    found = values(plan)
    inside = found["all_reduce_low_latency"] + 7 * found["all_reduce_low_latency_per_rank"]
    assert found["maxima_agreed"] == pytest.approx(inside + 2 * 3 * 5e-6)
    assert found["maxima"] == pytest.approx(2 * 8 * found["maxima_agreed"])
    staged = values(Plan(pp=2, vpp=2, dp=32, precision="fp8-delayed"))
    assert staged["maxima"] == pytest.approx(2 * (4 * 2 + 1) * staged["maxima_agreed"])


def test_layers_computed_again_agree_once_more():
    plan = Plan(dp=8, precision="fp8-delayed", recompute="full")
    found = values(plan)
    assert found["maxima"] == pytest.approx((2 * 16 + 16 * 32) * found["maxima_agreed"])


def test_maxima_kept_inside_do_not_cross_the_network():
    wide, inside = (
        values(Plan(tp=8, dp=8, precision="fp8-delayed", sequence_parallel=True, tp_only_amax_red=only))
        for only in (False, True)
    )
    assert wide["maxima_agreed"] - inside["maxima_agreed"] == pytest.approx(2 * 3 * 5e-6)


@pytest.mark.parametrize(
    ("plan", "stack"),
    [
        (Plan(precision="fp8-delayed"), "nemo-26.06"),
        (Plan(dp=8, precision="fp8-cs"), "nemo-26.06"),
        (Plan(dp=8, precision="fp8-delayed", tp_only_amax_red=True), "nemo-26.06"),
        (Plan(dp=8, precision="fp8-delayed"), "torchtitan-24.12"),
    ],
)
def test_nobody_to_agree_with_or_nothing_to_agree_on(plan, stack):
    assert term(plan, "maxima", stack=stack) == 0
