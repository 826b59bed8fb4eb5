"""Laws every plan must obey, whatever the constants are."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from family_cases import unjudged, value_columns
from hypothesis import given
from hypothesis import strategies as st
from law_cases import B200, GENTLE, H100, LLAMA, plans, powers

import hardware_db
from costmodel import schedule
from costmodel.formulas import DENSE
from costmodel.layer import block_work
from costmodel.model_registry import list_models, load_model
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.workload import Workload

GPT = load_model("gpt3-175b")


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
def test_attention_and_linear_layers_are_conserved_over_ranks(tp, dp, cp, pp):
    """FLOPs of attention, weights of linear layers, and those times tokens, summed over ranks, are those of one GPU."""
    workload = Workload(4096, 2 * pp * dp)
    one = unjudged(LLAMA, Workload(4096, 1), B200, Plan())
    many = unjudged(LLAMA, workload, B200, Plan(tp=tp, pp=pp, cp=cp, dp=dp, sequence_parallel=tp > 1))
    assert many.values["attention_flops"] * tp * cp == pytest.approx(one.values["attention_flops"])
    assert linear_weights(many) * tp == pytest.approx(linear_weights(one))
    layers = many.values["layers_pace"] * pp
    assert layers == LLAMA.num_layers
    gemm = many.values["tokens"] * linear_weights(many) * layers * tp * cp
    assert gemm == pytest.approx(one.values["tokens"] * linear_weights(one) * LLAMA.num_layers)


@pytest.mark.parametrize("name", [name for name in list_models() if load_model(name).family == "dense"])
def test_one_gpu_holds_the_published_parameters(name):
    """The rank's parameters on one GPU are the model's with its MTP heads, but for the padding of the vocabulary."""
    spec = load_model(name)
    count = count_parameters(spec)
    values = unjudged(spec, Workload(1024, 1), H100, Plan()).values
    padding = (spec.padded_vocab(1) - spec.vocab) * spec.hidden * (1 if spec.tied_embeddings else 2)
    assert values["first_stage_parameters"] == count.total + count.mtp + padding + value_columns(spec)


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


def linear_weights(prediction):
    """Weights of the linear layers of one attention and one MLP block on a rank."""
    x = SimpleNamespace(**prediction.values)
    return sum(block_work(x, name, prediction.features).weights(grouped=False) for name in DENSE)


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
