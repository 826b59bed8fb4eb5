"""What the ranks of a plan do and hold together is what one GPU would: FLOPs, tokens, parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from family_cases import (
    B200,
    FAMILIES,
    FEW,
    H100,
    SPARSE_FAMILIES,
    blocks_on_rank,
    sizes,
    unjudged,
    value_columns,
)
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout import plan_layout
from costmodel.model_registry import list_models, load_model
from costmodel.model_spec import ModelSpec
from costmodel.model_work import core_flops_of_block, weights_of_block
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.prediction import Prediction
from costmodel.work import experts, mixers
from costmodel.work.linear import linear_flops_forward
from costmodel.work.parameters import embedding_parameters, mtp_parameters, output_parameters
from costmodel.workload import Workload

every_family = pytest.mark.parametrize("name", FAMILIES)
every_sparse_family = pytest.mark.parametrize("name", SPARSE_FAMILIES)
COUNTABLE = [name for name in list_models() if load_model(name).parameters_known]


def on_one_gpu(name: str) -> Prediction:
    return unjudged(load_model(name), Workload(4096, 1), H100, Plan())


def padding(model: ModelSpec) -> int:
    """Parameters that padding the vocabulary adds on one GPU. [1]"""
    tables = 1 if model.tied_embeddings else 2
    return (model.padded_vocab(1) - model.vocab) * model.hidden * tables


def widened_gates(model: ModelSpec) -> int:
    """Parameters that Megatron-Core adds to gates of one number a head: it lays them out as wide as heads. [1]"""
    if not model.attention_head_gate:
        return 0
    kinds = (*model.layer_kinds(), *model.mtp_layer_kinds() * model.mtp_layers)
    heads = [model.window_heads if "window" in kind else model.heads for kind in kinds if "attention" in kind]
    return sum(model.hidden * each.num_heads * (each.v_head_dim - 1) for each in heads)


@every_family
@FEW
@given(data=st.data())
def test_linear_flops_summed_over_ranks_are_those_of_the_model(name, data):
    """Router, experts, shared experts, attention, MLP, mixers: 2 FLOPs a weight and token, whatever the plan."""
    model = load_model(name)
    plan = Plan(**data.draw(sizes(model)))
    prediction = unjudged(model, Workload(4096, plan.dp), B200, plan)
    x = SimpleNamespace(**prediction.values)
    for block, work in blocks_on_rank(prediction).items():
        a_rank = sum(linear_flops_forward(linear) for linear in work.linears)
        needed = weights_of_block(x, block, prediction.features)
        if block == "attention":
            needed += value_columns(model) / x.attention_total
        needed *= 2 * 4096
        assert a_rank * plan.tp * plan.cp == pytest.approx(needed, rel=1e-12), block


@every_family
@FEW
@given(data=st.data())
def test_core_flops_summed_over_ranks_are_those_of_the_model(name, data):
    """Attention cores and recurrent scans; of Mamba's, ranks that share a group of B and C each work off all of it."""
    model = load_model(name)
    plan = Plan(**data.draw(sizes(model)))
    prediction = unjudged(model, Workload(4096, plan.dp), B200, plan)
    x = SimpleNamespace(**prediction.values)
    for block in set(blocks_on_rank(prediction)) - {"mlp", "experts"}:
        a_rank = prediction.values[f"{block}_flops"]
        needed = core_flops_of_block(x, block) * 4096
        if block == "mamba":
            again = mixers.scanned_groups(x) * plan.tp - x.mamba_groups
            needed += 4096 * mixers.MAMBA_CHUNK * x.mamba_state * again
        assert a_rank * plan.tp * plan.cp == pytest.approx(needed, rel=1e-12), block


@every_sparse_family
@FEW
@given(data=st.data(), capacity=st.sampled_from([0.0, 1.0, 2.0]), padded=st.booleans())
def test_dispatch_conserves_tokens(name, data, capacity, padded):
    """Copies sent = rows received, over all ranks: b s topk for each replica. Each of etp ranks sees its rows."""
    model = load_model(name)
    drops = {"moe_capacity_factor": capacity, "moe_pad_expert_input_to_capacity": padded and capacity == 1}
    plan = Plan(**data.draw(sizes(model)), **drops)
    x = SimpleNamespace(**unjudged(model, Workload(4096, plan.dp), B200, plan).values)
    ranks = plan.tp * plan.cp * plan.dp
    sent = experts.routed_copies(x) * ranks
    received = experts.expert_rows(x) * ranks / plan.etp
    assert sent == pytest.approx(received)
    assert sent == pytest.approx(4096 * plan.dp * model.moe.topk)


@every_sparse_family
@FEW
@given(data=st.data(), factor=st.sampled_from([0.5, 1.5, 2.0]))
def test_capacity_sets_the_rows_whatever_the_imbalance(name, data, factor):
    model = load_model(name)
    drops = {"moe_capacity_factor": factor, "moe_pad_expert_input_to_capacity": True}
    plan = Plan(**data.draw(sizes(model)), **drops)
    x = SimpleNamespace(**unjudged(model, Workload(4096, plan.dp, moe_imbalance=3.0), B200, plan).values)
    assert experts.expert_rows(x) == pytest.approx(factor * plan.etp * experts.routed_copies(x))


@every_sparse_family
@FEW
@given(
    data=st.data(), factor=st.sampled_from([0.5, 1.0, 1.5, 4.0]), imbalance=st.sampled_from([1.0, 1.2, 3.0])
)
def test_a_capacity_without_padding_bounds_the_rows(name, data, factor, imbalance):
    """The busiest rank computes what comes, at most what the factor allows; balanced experts drop only below 1."""
    model = load_model(name)
    knobs = data.draw(sizes(model))
    rows = []
    for capacity in (0.0, factor):
        plan = Plan(**knobs, moe_capacity_factor=capacity)
        workload = Workload(4096, plan.dp, moe_imbalance=imbalance)
        rows.append(experts.expert_rows(SimpleNamespace(**unjudged(model, workload, B200, plan).values)))
    most = (
        factor
        * plan.etp
        * experts.routed_copies(SimpleNamespace(**unjudged(model, workload, B200, plan).values))
    )
    assert rows[1] == pytest.approx(min(rows[0], most))


@pytest.mark.parametrize("name", COUNTABLE)
def test_one_gpu_holds_the_published_parameters(name):
    """To the digit, but for vocabulary padding; MTP heads, which published totals leave out, are added, and gates."""
    model = load_model(name)
    values = on_one_gpu(name).values
    count = count_parameters(model)
    held = values["first_stage_parameters"] + values.get("first_stage_expert_parameters", 0)
    held -= widened_gates(model) + value_columns(model)
    # Layers that share an indexer's choice have a share of its parameters, in whole numbers.
    shared = model.indexer is not None and model.indexer.interval > 1
    assert held == pytest.approx(
        count.total + count.mtp + padding(model), abs=model.num_layers * shared, rel=0
    )
    if model.params_computed is not None:
        assert held - count.mtp - padding(model) == model.params_computed


@pytest.mark.parametrize("name", [name for name in COUNTABLE if load_model(name).moe is not None])
def test_a_token_meets_the_published_active_parameters(name):
    """Parameters of one GPU with topk instead of all experts."""
    model = load_model(name)
    prediction = on_one_gpu(name)
    values, count = prediction.values, count_parameters(model)
    moe = model.moe
    idle = values["first_stage_expert_parameters"] * (1 - moe.topk / moe.num_experts)
    held = values["first_stage_parameters"] + values["first_stage_expert_parameters"]
    met = held - idle - padding(model) - widened_gates(model) - value_columns(model)
    if model.mtp_layers:
        assert count.active < met <= count.active + count.mtp
    else:
        assert met == pytest.approx(count.active, abs=0.5)
    if model.params_active_computed is not None:
        assert count.active == model.params_active_computed


@every_family
@FEW
@given(data=st.data())
def test_parameters_over_all_ranks_are_the_models(name, data):
    """Stage by stage, with each split put together again, copies over tp counted once."""
    model = load_model(name)
    knobs = data.draw(sizes(model))
    plan = Plan(**knobs)
    prediction = unjudged(model, Workload(4096, plan.dp * plan.pp), B200, plan)
    one = blocks_on_rank(on_one_gpu(name))
    split = {"column": plan.tp, "row": plan.tp, "none": 1}
    total = 0.0
    layout = plan_layout(model, plan.pp, plan.vpp)
    for block, work in blocks_on_rank(prediction).items():
        weights = sum(
            linear.groups
            * linear.columns
            * linear.inner
            * (plan.ep * plan.etp if linear.grouped else split[linear.split])
            for linear in work.linears
        )
        whole = one[block]
        assert weights == pytest.approx(whole.weights(grouped=True) + whole.weights(grouped=False), rel=1e-12)
        assert whole.vectors / plan.tp <= work.vectors * (1 + 1e-12)
        assert work.vectors <= whole.vectors * (1 + 1e-12)
        assert whole.expert_vectors / plan.ep / plan.etp <= work.expert_vectors * (1 + 1e-12)
        assert work.expert_vectors <= whole.expert_vectors / plan.ep * (1 + 1e-12)
        blocks = sum(layout.stage_count(stage, block) for stage in range(plan.pp))
        total += blocks * (weights + whole.vectors + whole.expert_vectors)
    x = SimpleNamespace(**on_one_gpu(name).values)
    total += embedding_parameters(x) + output_parameters(x) + model.mtp_layers * mtp_parameters(x)
    count = count_parameters(model)
    needed = count.total + count.mtp + padding(model) + value_columns(model)
    assert total == pytest.approx(needed, abs=1.0, rel=1e-12)


@every_family
@FEW
@given(data=st.data())
def test_two_stages_hold_the_model_and_its_second_copies(name, data):
    """First and last stage of two: a tied output layer, or an embedding for MTP heads, is held twice."""
    model = load_model(name)
    ep = data.draw(st.sampled_from([1, 2, 4]))
    plan = Plan(pp=2, vpp=data.draw(st.sampled_from([1, 2])), ep=ep if model.moe else 1, dp=4)
    values = unjudged(model, Workload(4096, 8), B200, plan).values
    held = sum(
        values[f"{stage}_stage_parameters"] + plan.ep * values.get(f"{stage}_stage_expert_parameters", 0)
        for stage in ("first", "last")
    )
    count = count_parameters(model)
    rows = model.padded_vocab(1)
    copies = (model.tied_embeddings + min(model.mtp_layers, 1)) * rows * model.hidden
    copies += value_columns(model)
    assert held == pytest.approx(count.total + count.mtp + padding(model) + copies, rel=1e-12)


@every_sparse_family
@FEW
@given(data=st.data())
def test_optimizer_state_of_all_ranks_is_twelve_bytes_a_parameter(name, data):
    """The distributed optimizer shards the rest over dp x cp and experts over edp ranks; pp = 1."""
    model = load_model(name)
    knobs = data.draw(sizes(model, stages=(1,))) | {"tp": 1, "etp": 1, "sequence_parallel": False}
    knobs["ep"] = min(knobs["ep"], knobs["cp"] * knobs["dp"])
    plan = Plan(**knobs, zero_stage=1)
    values = unjudged(model, Workload(4096, plan.dp), B200, plan).values
    dense = on_one_gpu(name).values["first_stage_parameters"]
    grouped = on_one_gpu(name).values["first_stage_expert_parameters"]
    ranks = plan.cp * plan.dp
    assert values["memory_first_optimizer"] * ranks == pytest.approx(12 * (dense + grouped), rel=1e-12)
