"""Muon: its products and its state against counts by hand, and laws of its time."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import hardware_db
from costmodel.amounts import amount_inputs, rank_amounts
from costmodel.columns import plan_columns
from costmodel.layer import block_work
from costmodel.model_registry import load_model
from costmodel.muon import (
    COPIES,
    KERNELS,
    PRODUCTS,
    STEPS,
    Matrix,
    matrix_time,
    newton_schulz_flops,
    slowest_rank,
    weights_of,
)
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.predict import predict
from costmodel.prediction import Prediction, resource_shares
from costmodel.rank_layers import placed_chunks
from costmodel.rank_state import stage_buffers
from costmodel.workload import Workload

LLAMA, KIMI = load_model("llama3-8b"), load_model("kimi-k2")
H100 = hardware_db.load_cluster("dgx-h100")
GB300 = hardware_db.load_cluster("dgx-gb300-nvl72")
WORKLOAD, LONG = Workload(8192, 128), Workload(4096, 1024)
STACKS = ("nemo-26.06", "mcore-26.06")
SPLIT = Plan(tp=8, dp=8, sequence_parallel=True)
EXPERTS = Plan(pp=4, vpp=4, dp=64, ep=64, pipeline_layout="balanced")


def adam(plan: Plan, stack: str | None = None, **changes: object) -> Prediction:
    model, cluster, workload = (KIMI, GB300, LONG) if plan.ep > 1 else (LLAMA, H100, WORKLOAD)
    return predict(model, workload, cluster, dataclasses.replace(plan, **changes), stack)


def muon(plan: Plan, stack: str | None = None, **changes: object) -> Prediction:
    return adam(plan, stack, optimizer="muon", **changes)


@given(rows=st.integers(1, 64), columns=st.integers(1, 64))
def test_products_of_newton_schulz_are_those_that_pytorch_counts(rows, columns):
    """The iteration of emerging_optimizers 0.3.0, newton_schulz_step, on the matrix laid flat."""
    x = torch.zeros(min(rows, columns), max(rows, columns))
    with FlopCounterMode(display=False) as counter:
        for _ in range(STEPS):
            square = x @ x.mT
            x = torch.addmm(x, torch.addmm(square, square, square), x)
    assert newton_schulz_flops(rows, columns) == counter.get_total_flops()


def test_matrices_are_all_weights_of_a_block_and_queries_stand_apart():
    for model, plan, name in ((LLAMA, SPLIT, "attention"), (LLAMA, SPLIT, "mlp"), (KIMI, EXPERTS, "experts")):
        x, features = amount_inputs(plan, WORKLOAD, model)
        work = block_work(x, name, features)
        for grouped in (False, True):
            found = list(weights_of(x, work, grouped=grouped))
            assert sum(one.elements * one.count for one in found) == work.weights(grouped)
    x, features = amount_inputs(SPLIT, WORKLOAD, LLAMA)
    dealt = {
        one.name: one.matrices for one in weights_of(x, block_work(x, "attention", features), grouped=False)
    }
    assert dealt == {
        "qkv": (Matrix(4 * 128, 4096, 1), Matrix(128, 4096), Matrix(128, 4096)),
        "proj": (Matrix(4096, 4 * 128, 1),),
    }


def test_the_fullest_rank_of_megatrons_deal_holds_what_is_predicted():
    """Tensors by size, dealt to and fro over 64 ranks (layer_wise_optimizer.py, _shard_params_ping_pong)."""
    plan = EXPERTS
    x, features = amount_inputs(plan, LONG, KIMI)
    chunks = placed_chunks(plan, KIMI, 0, 4096)
    names = {each.block for chunk in chunks for each in chunk.blocks}
    works = {name: block_work(x, name, features) for name in names}
    dealt = [0.0] * 64
    own = 0.0
    tensors = [each for one in stage_buffers(x, plan, chunks, works, KIMI) for each in one.tensors]
    turns = [*range(64), *reversed(range(64))]
    whole = sorted((each for each in tensors if not each.expert), key=lambda each: each.elements)
    for place, tensor in enumerate(whole):
        adams = "norm" in tensor.name or "embedding" in tensor.name
        dealt[turns[place % 128]] += (12 if adams else 8) * tensor.elements
    own = sum(8 * each.elements for each in tensors if each.expert)
    predicted = muon(plan, "nemo-26.06").values["memory_first_optimizer"]
    assert predicted == pytest.approx(max(dealt) + own, rel=0.02)


def test_state_is_eight_bytes_a_weight_and_embeddings_stay_with_adam():
    plan = Plan(dp=64)
    weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    rest = 2 * 128256 * 4096 + 65 * 4096
    alone = muon(plan, zero_stage=0).values["memory_first_optimizer"]
    assert alone == pytest.approx(8 * weights + 12 * rest)
    assert alone < adam(plan, zero_stage=0).values["memory_first_optimizer"]
    # One rank has all of the embedding's state.
    for stack in STACKS:
        whole = muon(plan, stack).values["memory_first_optimizer"]
        assert whole == pytest.approx(8 * weights / 64 + 12 * 128256 * 4096)


def test_a_rank_keeps_the_state_of_its_largest_matrix_whole():
    """The last stage of 32 has a block and the output layer; GPT-3's middle ones have a block alone."""
    plan = Plan(tp=8, pp=96, dp=64, sequence_parallel=True)
    values = predict(
        load_model("gpt3-175b"), Workload(2048, 1536), H100, dataclasses.replace(plan, optimizer="muon")
    ).values
    largest = 12288 * 4 * 12288 / 8
    assert values["memory_second_optimizer"] == pytest.approx(
        8 * largest + 12 * (values["second_stage_parameters"] - 12 * 12288**2 / 8) / 64
    )


def test_learned_positions_are_a_matrix():
    model, workload = load_model("gpt3-175b"), Workload(2048, 1536)
    plan = Plan(tp=8, pp=8, dp=1, sequence_parallel=True, zero_stage=0)
    values = predict(model, workload, H100, dataclasses.replace(plan, optimizer="muon")).values
    everything = values["first_stage_parameters"]
    weights = 12 * 12 * 12288**2 / 8 + 2048 * 12288
    assert values["memory_first_optimizer"] == pytest.approx(8 * weights + 12 * (everything - weights))


@pytest.mark.parametrize("stack", STACKS)
def test_gradients_are_reduced_whole_and_parameters_gathered(stack):
    plan = Plan(dp=64, overlap_grad_reduce=False, overlap_param_gather=False)
    under, other = muon(plan, stack).values, adam(plan, stack).values
    assert under["dp_gradients"] == pytest.approx(under["dp_all_reduce"])
    assert 1.5 < under["dp_gradients"] / other["dp_gradients"] < 2.5
    assert under["dp_gather"] == pytest.approx(other["dp_gather"])


def test_fp8_parameters_are_gathered_in_sixteen_bits():
    plan = Plan(dp=64, precision="fp8-cs", fp8_param_gather=True, overlap_param_gather=False)
    plain = dataclasses.replace(plan, precision="bf16", fp8_param_gather=False)
    assert muon(plan).values["dp_gather"] == pytest.approx(muon(plain).values["dp_gather"])
    assert adam(plan).values["dp_gather"] < 0.7 * adam(plain).values["dp_gather"]


def test_a_gather_after_the_step_needs_a_copy_of_the_parameters():
    """With few tokens the copy is more than the activations were; beside the forward pass it is a bucket's."""
    workload = Workload(1024, 64)
    plan = Plan(dp=64, optimizer="muon", overlap_param_gather=False)
    after = predict(LLAMA, workload, H100, plan).values
    beside = predict(LLAMA, workload, H100, dataclasses.replace(plan, overlap_param_gather=True)).values
    held = sum(after[f"memory_first_{part}"] for part in ("activations", "logits", "workspace"))
    assert after["memory_first_gather_copy"] == pytest.approx(2 * after["first_stage_parameters"] - held)
    assert beside["memory_first_gather_copy"] == 0
    many = predict(LLAMA, Workload(16384, 64), H100, plan).values
    assert many["memory_first_gather_copy"] == 0
    alone = predict(LLAMA, workload, H100, dataclasses.replace(plan, zero_stage=0)).values
    assert alone["memory_first_gather_copy"] == 0


def update(predicted: Prediction) -> float:
    """Seconds of the optimizer on the device."""
    return sum(
        leaf.value for leaf in predicted.time.leaves() if leaf.name in ("optimizer_muon", "optimizer_step")
    )


def test_sharing_the_matrices_saves_time_until_each_rank_has_one():
    """Alone every rank updates all of them; the largest one bounds how far more ranks help."""
    steps = [
        update(muon(Plan(dp=ranks), zero_stage=stage)) for ranks, stage in ((8, 0), (8, 1), (32, 1), (128, 1))
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] / steps[1] == pytest.approx(8, rel=0.3)
    assert steps[1] > update(adam(Plan(dp=8)))
    values = muon(Plan(dp=128)).values
    assert values["muon_dense"] >= values["muon_mlp_fc1"]


def test_muons_products_of_kimi_take_a_few_percent_of_its_step():
    """By hand: a stage's six experts in 15 blocks, 3.8 TFLOP each, at half of 2.5 PFLOP/s; 140 bytes an element."""
    plan = EXPERTS
    values = muon(plan).values
    assert values["muon_experts"] == pytest.approx(
        15 * 6 * 3.8e12 / 1.25e15 + 15 * 6 * 44e6 * (110 + 30) / 5e12, rel=0.15
    )
    assert update(muon(plan)) > 3 * update(adam(plan))


@given(
    count=st.integers(1, 500),
    each=st.floats(0.1, 10),
    ranks=st.integers(1, 64),
    longer=st.floats(1, 20),
)
def test_the_slowest_rank_has_its_share_and_at_least_one_matrix(count, each, ranks, longer):
    seconds = slowest_rank(count, count * each, each * longer, 1 / ranks)
    assert seconds >= max(count * each / ranks * (1 - 1e-9), each * longer)
    assert slowest_rank(count, count * each, each, 1) == pytest.approx(count * each)
    assert slowest_rank(count * ranks, count * ranks * each, each, 1 / ranks) == pytest.approx(count * each)


def test_a_plan_of_both_optimizers_is_ranked_as_each_alone():
    """One compiled ledger holds for columns that have both."""
    plans = [dataclasses.replace(SPLIT, optimizer=name) for name in ("adam", "muon")]
    together = evaluate_plans(PlanArray(LLAMA, WORKLOAD, H100, "bf16", plan_columns(plans)))
    alone = [predict(LLAMA, WORKLOAD, H100, plan) for plan in plans]
    assert together["step_time"] == pytest.approx(np.array([each.step_time_s for each in alone]))
    assert together["peak_memory"] == pytest.approx(np.array([each.peak_memory_bytes for each in alone]))


def test_amounts_of_a_rank_are_of_adam_alone():
    with pytest.raises(ValueError, match="Try --optimizer adam"):
        rank_amounts(dataclasses.replace(SPLIT, optimizer="muon"), WORKLOAD, LLAMA, 0)


def test_muons_matrices_are_a_resource_of_their_own():
    """They are products and streams: neither memory bandwidth nor the rate of the model's GEMMs alone."""
    shares = resource_shares(muon(EXPERTS).time)
    assert shares["Muon's matrices"] > 0.05
    assert sum(shares.values()) == pytest.approx(1)
    assert resource_shares(adam(EXPERTS).time)["Muon's matrices"] == 0


def test_the_host_bounds_small_matrices():
    """A tiny model's matrices take as long as their kernels are issued in."""
    issued = STEPS * (PRODUCTS + COPIES) + KERNELS
    values = dict(muon(SPLIT).values)
    x = SimpleNamespace(**values)
    assert matrix_time(x, Matrix(64, 64)) == pytest.approx(issued * values["host_kernel"])
    assert matrix_time(x, Matrix(8192, 8192)) > 100 * values["host_kernel"]


def test_adapters_are_counted_as_under_adam():
    """A simplification: Megatron-Core would orthogonalise their factors, which are small."""
    workload = Workload(4096, 32, task="lora")
    frozen, under = (
        predict(LLAMA, workload, H100, Plan(dp=8, optimizer=name, zero_stage=0)) for name in ("adam", "muon")
    )
    held = [each.values["memory_first_optimizer"] for each in (under, frozen)]
    assert held[0] == pytest.approx(held[1])
    assert update(under) == pytest.approx(update(frozen), rel=0.01)


def test_an_answer_says_that_no_real_model_was_timed():
    assert any(note.startswith("optimizer muon") for note in muon(SPLIT).assumptions)
    assert not any(note.startswith("optimizer muon") for note in adam(SPLIT).assumptions)
