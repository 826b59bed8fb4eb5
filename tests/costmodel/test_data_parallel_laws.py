"""Laws of data parallelism and FSDP: replicas of shards, copies of PyTorch's, buckets and registered buffers."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from family_cases import unjudged
from hypothesis import given
from hypothesis import strategies as st
from law_cases import B200, GENTLE, H100, LLAMA, plans

from costmodel.fully_sharded import CHUNK_CAT
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.rates import tuned_stream
from costmodel.stack import load_stack
from costmodel.workload import Workload

GPT_OSS = load_model("gpt-oss-120b")


def test_replicas_of_hybrid_sharding_reduce_over_the_network():
    """Gathers stay inside the node, the replicas' all-reduce does not: neither is free."""
    workload = Workload(8192, 64)
    whole, hybrid = (
        unjudged(LLAMA, workload, H100, Plan(dp=64, fsdp=True, zero_stage=3, fsdp_shard_size=size))
        for size in (0, 8)
    )
    assert whole.values["dp_fsdp_replica_reduce"] == 0
    assert hybrid.values["dp_fsdp_replica_reduce"] > 0
    assert hybrid.values["dp_fsdp_gather"] < whole.values["dp_fsdp_gather"]
    assert hybrid.peak_memory_bytes > whole.peak_memory_bytes


def test_replicas_that_share_the_optimizer_state_hold_a_part_of_it_each():
    """HFSDP: state over all ranks, gradients reduce-scattered and parameters gathered between replicas."""
    workload, plan = Workload(8192, 64), Plan(dp=64, fsdp=True, zero_stage=3, fsdp_shard_size=8)
    apart, shared = (
        unjudged(LLAMA, workload, H100, dataclasses.replace(plan, outer_dp_sharding_strategy=outer))
        for outer in ("no_shard", "optim")
    )
    state = "memory_first_optimizer"
    assert shared.values[state] == pytest.approx(apart.values[state] / 8)
    assert shared.values["memory_first_weights"] == apart.values["memory_first_weights"]
    assert shared.values["memory_first_gradients"] == apart.values["memory_first_gradients"]
    # Parameters have two bytes, gradients four: less than the all-reduce of gradients, more than half of it.
    both = shared.values["dp_fsdp_replica_reduce"] + shared.values["dp_fsdp_replica_gather"]
    assert 0.5 < both / apart.values["dp_fsdp_replica_reduce"] < 1
    assert apart.values["dp_fsdp_replica_gather"] == 0
    whole = dataclasses.replace(plan, fsdp_shard_size=0)
    one = dataclasses.replace(whole, outer_dp_sharding_strategy="optim")
    assert (
        unjudged(LLAMA, workload, H100, one).step_time_s == unjudged(LLAMA, workload, H100, whole).step_time_s
    )


def test_later_stages_gather_one_after_the_other_as_the_pipeline_fills():
    """Each gathers its 8 of 32 layers when its first micro-batch arrives, so the step waits for all three in turn."""
    workload, plan = Workload(8192, 64), Plan(pp=4, dp=16)
    found = unjudged(LLAMA, workload, H100, plan).values
    assert found["dp_gather_arrivals"] == pytest.approx(3 * found["dp_all_gather"], rel=0.15)
    assert found["dp_gather"] > found["dp_gather_arrivals"]
    for other in (
        {"vpp": 2},  # an interleaved schedule sends for all at the step's begin
        {"overlap_param_gather": False},  # as the optimizer does
        {"overlap_grad_reduce": False, "overlap_param_gather": False},
        {"pp": 1, "dp": 64},
    ):
        assert (
            unjudged(LLAMA, workload, H100, dataclasses.replace(plan, **other)).values["dp_gather_arrivals"]
            == 0
        )


@pytest.mark.parametrize("vpp", [2, 4])
def test_a_chunk_reduces_and_gathers_as_a_whole(vpp):
    """The chunk that ends an interleaved step reduces beside nothing, the first one waits for all its parameters.

    Many micro-batches hide the rest of both, which takes compute all the same (`overlap_slowdown`).
    """
    workload, plan = Workload(8192, 1024), Plan(pp=4, dp=16, vpp=vpp, precision="bf16")
    found = unjudged(LLAMA, workload, H100, plan).values
    assert found["dp_alone"] == 1 / vpp
    for shown, whole in (("dp_gradients", "dp_reduce_scatter"), ("dp_gather", "dp_all_gather")):
        hidden = found[whole] * (1 - 1 / vpp)
        assert found[whole] / vpp <= found[shown] <= found[whole] / vpp + 0.5 * hidden
    wide = dataclasses.replace(plan, vpp_group_size=8)
    assert unjudged(LLAMA, workload, H100, wide).values["dp_under_backward"] == pytest.approx(
        2 * found["dp_under_backward"], rel=0.05
    )


@pytest.mark.parametrize(
    ("stack", "has"),
    [
        *[("mcore-24.07", 0), ("mcore-25.04", 1), ("nemo-24.07", 0), ("nemo-24.09", 1), ("local", 1)],
        *[("torchtitan-25.06", 0), ("deepspeed-23.06", 0)],
    ],
)
def test_which_frameworks_gather_on_demand_is_data(stack, has):
    assert load_stack(stack).gathers_on_demand == bool(has)


def test_experts_in_many_buckets_are_waited_for_beside_nothing():
    """16 experts of 24.9 M parameters on a rank: two buckets of 64 M go ahead of a layer's modules, the others do not.

    One product for each expert asks for its own weight alone.
    """
    workload = Workload(4096, 1280)
    plan = Plan(dp=64, ep=8, micro_batch=4, precision="bf16", bucket_size=64_000_000)
    found = unjudged(GPT_OSS, workload, B200, plan).values
    share = 1 - 2 * 64e6 / (16 * 3 * 2880 * (2880 + 3))  # fc1 with its gate, fc2, and their biases
    assert found["dp_gather"] > share * found["edp_all_gather"]
    apart = unjudged(GPT_OSS, workload, B200, dataclasses.replace(plan, moe_grouped_gemm=False)).values
    assert apart["edp_all_gather"] == pytest.approx(found["edp_all_gather"])
    whole = dataclasses.replace(plan, bucket_size=256_000_000)
    assert unjudged(GPT_OSS, workload, B200, whole).values["dp_gather"] < found["dp_gather"]


def test_pytorchs_fsdp_costs_its_copies_in_each_layer_and_micro_batch():
    """Out of the flat buffer in both passes with ZeRO 3, gradients into it, of both ends once; nothing on one GPU."""

    def more(plan: Plan, batch: int = 64) -> float:
        own, torch = (
            unjudged(LLAMA, Workload(8192, batch), H100, dataclasses.replace(plan, fsdp_implementation=whose))
            for whose in ("megatron", "torch")
        )
        return torch.values["fsdp_exposed"] - own.values["fsdp_exposed"]

    plan = Plan(dp=64, fsdp=True, zero_stage=3)
    values = unjudged(LLAMA, Workload(8192, 64), H100, plan).values
    into = CHUNK_CAT * (2 + 4)
    moved = 80 * (2 * 2 * 2 + into) * values["dp_layer_parameters"]
    moved += (2 * 2 + into) * (values["dp_first_parameters"] + values["dp_output_parameters"])
    x = SimpleNamespace(**values)
    assert more(plan) == pytest.approx(tuned_stream(x, moved, x.stream_fraction))
    assert more(plan, 256) == pytest.approx(4 * more(plan))
    assert 0 < more(dataclasses.replace(plan, zero_stage=2)) < more(plan)
    assert more(dataclasses.replace(plan, dp=1)) == 0


@GENTLE
@given(plans(), st.booleans())
def test_registered_buffers_and_larger_buckets_never_add_to_data_parallel_traffic(case, sharp):
    plan, workload = case
    plan = dataclasses.replace(plan, sharp=sharp)

    def exposed(**knobs) -> float:
        values = unjudged(LLAMA, workload, B200, dataclasses.replace(plan, **knobs)).values
        return values["dp_gradients"] + values["dp_gather"] + values["fsdp_exposed"]

    assert exposed(nccl_ub=True) <= exposed() * (1 + 1e-12)
    sizes = (10_000_000, 100_000_000)
    small, large = (
        unjudged(LLAMA, workload, B200, dataclasses.replace(plan, bucket_size=n)).values for n in sizes
    )
    assert large["buckets_dp"] <= small["buckets_dp"]
    for kind in ("dp_reduce_scatter", "dp_all_gather", "dp_all_reduce"):
        assert large[kind] <= small[kind] * (1 + 1e-12)
