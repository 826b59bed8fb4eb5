"""Laws every plan must obey, whatever the constants are."""

from __future__ import annotations

import dataclasses
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from family_cases import unjudged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hardware_db
from costmodel import schedule
from costmodel.columns import plan_columns, plan_from_columns
from costmodel.family import compiled_family
from costmodel.formulas import DENSE
from costmodel.fully_sharded import CHUNK_CAT
from costmodel.layer import block_work
from costmodel.model_registry import list_models, load_model
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.predict import predict
from costmodel.rates import stream
from costmodel.symbols import BY_NAME
from costmodel.workload import Workload

B200 = hardware_db.resolve("b200", None)[0]
H100 = hardware_db.resolve("h100", None)[0]
LLAMA = load_model("llama3-70b")
GPT = load_model("gpt3-175b")
GENTLE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Workload]:
    tp, pp, cp, dp = (
        draw(powers),
        draw(st.sampled_from([1, 2, 4, 8])),
        draw(st.sampled_from([1, 2, 4])),
        draw(powers),
    )
    vpp = draw(st.sampled_from([1, 2, 5])) if pp > 1 else 1
    fsdp = pp == 1 and draw(st.booleans())
    micro_batch = draw(st.sampled_from([1, 2]))
    m = pp * draw(st.integers(1, 8))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    plan = Plan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        vpp=vpp,
        micro_batch=micro_batch,
        fsdp=fsdp,
        zero_stage=draw(st.sampled_from([2, 3])) if fsdp else draw(st.sampled_from([0, 1])),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        precision=draw(st.sampled_from(["bf16", "fp8-cs", "mxfp8", "nvfp4"])),
        cp_comm_type=draw(st.sampled_from(["p2p", "all_gather", "a2a"])),
        recompute=recompute,
        recompute_modules=("mlp",) if recompute == "selective" else (),
        cuda_graph=draw(st.booleans()),
        tp_comm_overlap=draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()),
    )
    return plan, Workload(seq_len=draw(st.sampled_from([2048, 8192])), global_batch=m * micro_batch * dp)


@GENTLE
@given(plans())
def test_parts_sum_to_the_total(case):
    plan, workload = case
    prediction = predict(LLAMA, workload, B200, plan)
    for tree in (prediction.time, prediction.memory):
        for term in _walk(tree):
            if term.parts:
                assert sum(part.value for part in term.parts) == pytest.approx(term.value, rel=1e-9)


@GENTLE
@given(plans())
def test_search_and_explanation_give_the_same_number(case):
    plan, workload = case
    prediction = unjudged(LLAMA, workload, B200, plan)
    row = evaluate_plans(PlanArray(LLAMA, workload, B200, plan.precision, plan_columns([plan, plan])))
    assert row["step_time"][1] == pytest.approx(prediction.step_time_s, rel=1e-12)
    assert row["peak_memory"][0] == pytest.approx(prediction.peak_memory_bytes, rel=1e-12)


@GENTLE
@given(plans())
def test_columns_give_the_plan_back(case):
    plan, _ = case
    columns = plan_columns([plan])
    assert plan_from_columns(columns, 0, plan.precision) == plan


@cache
def symbolic(name):
    """An entry of a dense model as sympy reads it."""
    import sympy

    words = {
        symbol: sympy.Symbol(symbol, nonnegative=True)
        for symbol in (*BY_NAME, *compiled_family(DENSE).entries)
    }
    return sympy.sympify(compiled_family(DENSE).expressions()[name], locals=words)


@GENTLE
@given(plans())
def test_compiled_numbers_equal_the_symbolic_expression(case):
    """The NumPy text and sympy's own evaluation of the same entry agree."""
    import sympy

    plan, workload = case
    prediction = unjudged(LLAMA, workload, B200, plan)
    for name in (
        "attention_activation_bytes",
        "mlp_activation_bytes",
        "mlp_tp_exposed_backward",
        "pipeline_bubble",
        "forward_attention",
        "memory_first_weights",
    ):
        expression = symbolic(name)
        # All at once: `subs` puts one number after another into the whole expression.
        numbers = {each: sympy.Float(prediction.values[each.name]) for each in expression.free_symbols}
        assert float(expression.xreplace(numbers)) == pytest.approx(
            prediction.values[name], rel=1e-9, abs=1e-18
        )


@GENTLE
@given(plans())
def test_model_flops_do_not_depend_on_the_plan(case):
    plan, workload = case
    one = unjudged(LLAMA, Workload(workload.seq_len, workload.global_batch), B200, Plan())
    assert unjudged(LLAMA, workload, B200, plan).values["model_flops"] == pytest.approx(
        one.values["model_flops"], rel=1e-12
    )


@GENTLE
@given(powers, powers, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_flops_and_parameters_are_conserved_over_ranks(tp, dp, cp, pp):
    """Linear and attention FLOPs and linear weights, summed over ranks, are those of one GPU."""
    workload = Workload(4096, 2 * pp * dp)
    one = unjudged(LLAMA, Workload(4096, 1), B200, Plan())
    many = unjudged(LLAMA, workload, B200, Plan(tp=tp, pp=pp, cp=cp, dp=dp, sequence_parallel=tp > 1))
    ranks, passes = tp * cp, workload.global_batch
    assert many.values["attention_flops"] * ranks * passes == pytest.approx(
        one.values["attention_flops"] * passes
    )
    assert linear_weights(many) * tp == pytest.approx(linear_weights(one))
    layers = many.values["layers_pace"] * pp
    assert layers == LLAMA.num_layers
    gemm = many.values["tokens"] * linear_weights(many) * layers * tp * cp
    assert gemm == pytest.approx(one.values["tokens"] * linear_weights(one) * LLAMA.num_layers)


@pytest.mark.parametrize("name", [name for name in list_models() if load_model(name).family == "dense"])
def test_one_gpu_holds_the_published_parameters(name):
    """The rank's parameters on one GPU are the model's, but for the padding of the vocabulary."""
    spec = load_model(name)
    values = unjudged(spec, Workload(1024, 1), H100, Plan()).values
    padding = (spec.padded_vocab(1) - spec.vocab) * spec.hidden * (1 if spec.tied_embeddings else 2)
    assert values["first_stage_parameters"] == count_parameters(spec).total + padding


@GENTLE
@given(st.sampled_from([1024, 2048, 4096]), st.sampled_from([2, 4]))
def test_linear_scales_with_s_attention_with_s_squared(seq_len, factor):
    short = unjudged(LLAMA, Workload(seq_len, 1), B200, Plan()).values
    long = unjudged(LLAMA, Workload(seq_len * factor, 1), B200, Plan()).values
    assert long["attention_flops"] == pytest.approx(short["attention_flops"] * factor**2)
    assert long["tokens"] == short["tokens"] * factor
    for block in ("attention", "mlp"):
        name = f"{block}_activation_bytes"
        assert long[name] == pytest.approx(short[name] * factor)


def test_hidden_size_scales_linear_by_its_square():
    wide = dataclasses.replace(
        GPT,
        hidden=2 * GPT.hidden,
        num_heads=2 * GPT.num_heads,
        num_kv_heads=2 * GPT.num_kv_heads,
        ffn_hidden=2 * GPT.ffn_hidden,
    )
    workload = Workload(2048, 1)
    small, large = (unjudged(spec, workload, B200, Plan()) for spec in (GPT, wide))
    assert linear_weights(large) == pytest.approx(4 * linear_weights(small))
    assert large.values["attention_flops"] == pytest.approx(2 * small.values["attention_flops"])


@GENTLE
@given(st.sampled_from([1, 2, 4]), st.sampled_from(["bf16", "mxfp8"]))
def test_one_rank_communicates_nothing(m, precision):
    values = unjudged(LLAMA, Workload(2048, m), B200, Plan(precision=precision)).values
    for name in (
        "attention_tp_exposed_forward",
        "attention_tp_exposed_backward",
        "mlp_tp_exposed_forward",
        "mlp_tp_exposed_backward",
        "attention_cp_exposed_forward",
        "attention_cp_exposed_backward",
        "pipeline_send_recv",
        "pipeline_starts",
        "shared_embedding",
        "deferred_wgrad",
        "pipeline_bubble",
        "dp_gradients",
        "dp_gather",
        "fsdp_exposed",
        "straggler_time",
    ):
        assert values[name] == 0, name


@GENTLE
@given(plans(), st.sampled_from(["intra", "inter"]), st.floats(1.0, 4.0))
def test_more_bandwidth_is_never_slower(case, link, factor):
    plan, workload = case
    faster_link = _faster(getattr(H100, link), factor)
    faster = dataclasses.replace(H100, **{link: faster_link})
    plan = dataclasses.replace(plan, precision="bf16")
    before, after = (unjudged(LLAMA, workload, cluster, plan).step_time_s for cluster in (H100, faster))
    assert after <= before * (1 + 1e-12)


@GENTLE
@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 64))
def test_bubble_of_equal_stages(pp, vpp, rounds):
    m = pp * rounds
    assert schedule.bubble_over_ideal(pp, m, vpp) == pytest.approx((pp - 1) / (vpp * m))
    assert schedule.bubble_over_ideal(1, m, vpp) == 0


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_bubble_term_is_p_minus_1_over_v_m_for_layers(pp):
    """Without vocabulary the bubble over the compute of all micro-batches is (p - 1) / (v m)."""
    spec = dataclasses.replace(LLAMA, vocab=128, vocab_divisible_by=1, vocab_padded=None)
    values = unjudged(spec, Workload(8192, 64), B200, Plan(pp=pp, vpp=2)).values
    compute = 64 * values["layers_pace"] * (values["attention_time"] + values["mlp_time"])
    assert values["pipeline_bubble"] / compute == pytest.approx((pp - 1) / (2 * 64), rel=0.02)


@GENTLE
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_memory_falls_with_tp_pp_and_zero_stage(tp, pp):
    workload = Workload(4096, 64)

    def states(**knobs):
        tree = unjudged(LLAMA, workload, B200, Plan(dp=4, **knobs)).memory
        parts = {part.name.split("_", 2)[2]: part.value for part in tree.parts}
        return parts["weights"] + parts["gradients"] + parts["optimizer"]

    assert states(tp=2 * tp, pp=pp) < states(tp=tp, pp=pp)
    assert states(tp=tp, pp=2 * pp) < states(tp=tp, pp=pp)
    by_stage = [states(tp=tp, zero_stage=0), states(tp=tp, zero_stage=1)]
    by_stage += [states(tp=tp, fsdp=True, zero_stage=stage) for stage in (2, 3)]
    assert by_stage == sorted(by_stage, reverse=True)
    assert len(set(by_stage)) == 4


@GENTLE
@given(plans())
def test_recompute_trades_time_for_memory(case):
    plan, workload = case
    none, full = (
        unjudged(LLAMA, workload, B200, dataclasses.replace(plan, recompute=mode, recompute_modules=()))
        for mode in ("none", "full")
    )
    assert full.step_time_s > none.step_time_s
    assert full.values["memory_first_activations"] < none.values["memory_first_activations"]


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
    assert more(plan) == pytest.approx(stream(x, moved, x.stream_fraction))
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


@GENTLE
@given(plans(), st.floats(1.5, 8.0))
def test_homogeneity(case, factor):
    """All rates times k and all latencies over k give the step time over k."""
    from costmodel.binding import bind
    from costmodel.columns import plan_inputs
    from costmodel.symbols import BY_NAME

    plan, workload = case
    bound = {name: entry.value for name, entry in bind(LLAMA, workload, B200, plan.precision).items()}
    inputs = plan_inputs(
        plan_columns([plan]),
        model=LLAMA,
        workload=workload,
        domain=B200.domain_size,
        precision_bytes=2.0,
        quantised=False,
    )
    quick = dict(bound)
    for name in bound:
        unit = BY_NAME[name].unit if name in BY_NAME else "1"
        if unit in ("FLOP/s", "byte/s"):
            quick[name] = bound[name] * factor
        elif unit == "s":
            quick[name] = bound[name] / factor
    slow, fast = (
        float(compiled_family(DENSE).search(scalars | inputs)["step_time"]) for scalars in (bound, quick)
    )
    assert fast == pytest.approx(slow / factor, rel=1e-9)


def test_every_plan_of_an_array_is_evaluated_alone():
    workload = Workload(8192, 128)
    some = [
        Plan(tp=tp, pp=pp, dp=64 // tp // pp, sequence_parallel=tp > 1)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8)
    ]
    together = evaluate_plans(PlanArray(LLAMA, workload, B200, "bf16", plan_columns(some)))["step_time"]
    alone = [
        evaluate_plans(PlanArray(LLAMA, workload, B200, "bf16", plan_columns([plan])))["step_time"][0]
        for plan in some
    ]
    assert np.array_equal(together, np.array(alone))


def linear_weights(prediction):
    """Weights of the linear layers of one attention and one MLP block on a rank."""
    x = SimpleNamespace(**prediction.values)
    return sum(block_work(x, name, prediction.features).weights(grouped=False) for name in DENSE)


def _walk(term):
    yield term
    for part in term.parts:
        yield from _walk(part)


def _faster(link, factor):
    return dataclasses.replace(link, bandwidth=link.bandwidth * factor)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_stages_of_one_domain_send_over_its_links_however_many_they_are(stages):
    """Eight stages on the eight GPUs of a node hand over as fast as two; a second node brings its network in."""
    model, workload = load_model("llama3-8b"), Workload(4096, 64)
    node, nodes = (
        unjudged(model, workload, hardware_db.load_cluster("dgx-h100"), Plan(pp=stages, dp=gpus // stages))
        for gpus in (8, 16)
    )
    size = node.values["b"] * 4096 * model.hidden * 2
    assert node.values["pp_send_recv"] < size / 200e9
    assert nodes.values["pp_send_recv"] > size / 60e9
