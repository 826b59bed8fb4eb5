"""Plan inputs from rank arithmetic, and bytes of the optimizer state."""

from __future__ import annotations

import numpy as np
import pytest
from family_cases import FAMILIES, H100
from hypothesis import given
from hypothesis import strategies as st

from costmodel.columns import plan_columns
from costmodel.layout import block_parameters, block_weights, plan_layout
from costmodel.model_registry import load_model
from costmodel.passes import chunk_times
from costmodel.plan import Plan
from costmodel.plan_inputs import plan_inputs
from costmodel.predict import predict
from costmodel.symbols import BLOCKS
from costmodel.workload import Workload

WORKLOAD = Workload(4096, 64)


def inputs_of(plans, name="llama3-70b", domain=8):
    inputs = plan_inputs(
        plan_columns(plans),
        model=load_model(name),
        workload=WORKLOAD,
        domain=domain,
        precision_bytes=2.0,
        quantised=False,
    )
    return {key: np.broadcast_to(array, len(plans)) for key, array in inputs.items()}


@pytest.mark.parametrize("name", FAMILIES)
@given(
    sizes=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2])), min_size=1, max_size=6)
)
def test_stages_are_those_of_the_layout(name, sizes):
    """Every row has its own layout, whatever stands beside it."""
    model = load_model(name)
    plans = [Plan(pp=pp, vpp=vpp if pp > 1 else 1) for pp, vpp in sizes]
    found = inputs_of(plans, name)
    weights = block_weights(model, WORKLOAD.seq_len)
    for row, plan in enumerate(plans):
        layout = plan_layout(model, plan.pp, plan.vpp, seq_len=WORKLOAD.seq_len)
        counts = [[layout.stage_count(stage, block) for block in BLOCKS] for stage in range(plan.pp)]
        at = {
            where: [found[f"{block}_{where}"][row] for block in BLOCKS] for where in ("first", "pace", "last")
        }
        assert at["first"] == counts[0]
        assert at["last"] == counts[-1]
        assert [found[f"{block}_second"][row] for block in BLOCKS] == counts[min(1, plan.pp - 1)]
        fullest = int(found["fullest_stage"][row])
        assert [found[f"{block}_fullest"][row] for block in BLOCKS] == counts[fullest]
        each = block_parameters(model)
        sizes_of = [sum(each.get(b, 0) * n for b, n in zip(BLOCKS, one, strict=True)) for one in counts]
        between = range(1, plan.pp - 1) or [min(1, plan.pp - 1)]
        assert fullest in between
        assert sizes_of[fullest] == max(sizes_of[stage] for stage in between)
        work = [
            sum(weights.get(block, 0) * n for block, n in zip(BLOCKS, one, strict=True)) for one in counts
        ]
        assert at["pace"] == counts[int(np.argmax(work))]
        assert found["layers_first"][row] == layout.stage_layers(0)
        assert found["mtp_heads"][row] == model.mtp_layers


def test_a_job_smaller_than_a_domain_straddles_nothing():
    found = inputs_of([Plan(tp=2, dp=3), Plan(tp=4, pp=2, dp=2)], domain=72)
    assert list(found["domain"]) == [72, 72]
    for name in ("cp_straddle", "dp_straddle", "ep_straddle", "edp_straddle"):
        assert list(found[name]) == [0, 0]


def test_powers_of_two_on_an_nvl72_use_64_gpus_unless_told_otherwise():
    plans = [Plan(tp=4, pp=4, dp=16), Plan(tp=4, pp=4, dp=16, nvl_segment=72)]
    found = inputs_of(plans, domain=72)
    assert list(found["domain"]) == [64, 72]
    assert list(found["dp_straddle"]) == [0, 2]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_ranks_that_hold_the_same_experts(tp, dp, ep):
    """ep x etp x edp = tp x cp x dp; the experts' state is sharded over edp."""
    if (tp * dp) % ep:
        return
    found = inputs_of([Plan(tp=tp, dp=dp, ep=ep)], "mixtral-8x7b")
    assert found["edp"][0] * ep == tp * dp
    assert found["expert_shard"][0] == max(found["edp"][0], 1)


@pytest.mark.parametrize(
    ("knobs", "bytes_of_state"),
    [
        ({}, 12),
        ({"precision_aware_optimizer": True}, 10),
        ({"precision_aware_optimizer": True, "param_remainders": False}, 12),
        ({"precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, 6),
        ({"precision_aware_optimizer": True, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}, 4),
        (
            {
                "precision_aware_optimizer": True,
                "main_params_dtype": "fp16",
                "exp_avg_dtype": "fp8",
                "exp_avg_sq_dtype": "fp16",
            },
            5,
        ),
        ({"exp_avg_dtype": "bf16"}, 12),
    ],
)
def test_state_bytes_by_dtype(knobs, bytes_of_state):
    """Master and two moments; the 16 bits that BF16 lacks stand for an FP32 master; formats need the switch."""
    plan = Plan(**knobs)
    assert inputs_of([plan])["state_bytes"][0] == bytes_of_state
    values = predict(load_model("llama3-8b"), Workload(2048, 1), H100, plan).values
    assert values["memory_first_optimizer"] == bytes_of_state * values["first_stage_parameters"]


@pytest.mark.parametrize(("aware", "leaving"), [(False, 8 / 12), (True, 1)])
@pytest.mark.parametrize("share", [25, 50, 100])
def test_the_host_takes_its_share_of_the_state(share, aware, leaving):
    """Both moments; the master parameters too where the optimizer alone has them, and these in FP32 on both sides.

    16 bits of each had been priced, and 16-bit moments: Megatron-Core's HybridDeviceOptimizer keeps FP32 of all.
    """
    model = load_model("llama3-8b")
    here, there = (
        predict(
            model,
            Workload(2048, 1),
            H100,
            Plan(optimizer_offload=percent, precision_aware_optimizer=aware),
        ).values
        for percent in (0, share)
    )
    state = 12 * here["first_stage_parameters"]
    assert here["memory_first_optimizer"] == (10 / 12 if aware else 1) * state
    assert there["memory_first_optimizer"] == pytest.approx(state * (1 - leaving * share / 100), abs=1)
    assert there["optimizer_host"] > here["optimizer_host"] == 0


def test_gradients_are_two_or_four_bytes():
    found = inputs_of([Plan(), Plan(grad_reduce_in_fp32=False)])
    assert list(found["grad_bytes"]) == [4, 2]


@pytest.mark.parametrize("pp", [2, 8])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_slowest_stage_is_the_slowest_of_all(name, pp):
    """By the clock: a stage of dense layers has as much work as one of experts that exchange over the network."""
    model = load_model(name)
    ranks = 8 if model.moe is None else 32
    plan = Plan(pp=pp, dp=ranks, ep=ranks if model.moe else 1, zero_stage=1, pipeline_layout="balanced")
    told = predict(model, Workload(4096, 128), H100, plan, judged=False)
    stages = [sum(each) + sum(back) for each, back in zip(*chunk_times(told), strict=True)]
    assert told.values["slowest_stage_time"] == pytest.approx(max(stages))
