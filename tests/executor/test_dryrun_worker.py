"""Traces of real Megatron-Core in a fake world, against counts made by hand and a trace made independently."""

from __future__ import annotations

import dataclasses

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.rank_amounts import GROUPS, OPERATIONS, PHASES, RankAmounts
from costmodel.workload import Workload
from executor import dryrun_tracer
from executor.dryrun_job import make_job
from executor.dryrun_tracer import DryRunFailed, Tracer
from executor.run import missing_software

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]

SMALL = dataclasses.replace(
    load_model("llama3-8b"),
    num_layers=2,
    hidden=512,
    ffn_hidden=1024,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    vocab=8192,
)
SEQ = 1024
SP = {"sequence_parallel": True}


@pytest.fixture(scope="module")
def tracer():
    with Tracer() as one:
        yield one


@pytest.fixture
def traced(tracer, tmp_path):
    """A function that traces one stage of a plan."""

    def trace(plan: Plan, model=SMALL, stage: int = 0, num_microbatches: int = 1, seq: int = SEQ):
        workload = Workload(seq, plan.dp * plan.micro_batch * num_microbatches)
        return tracer.stage(make_job(plan, workload, model, stage, num_microbatches), tmp_path, limit=300)

    return trace


def total(amounts: RankAmounts, *products: str) -> float:
    return sum(sum(amounts.flops[name].values()) for name in products)


def sent(amounts: RankAmounts, **wanted) -> dict[float, float]:
    """Count by bytes of the messages that are as wanted."""
    found: dict[float, float] = {}
    for message in amounts.messages:
        if all(getattr(message, name) == value for name, value in wanted.items()):
            found[message.bytes] = found.get(message.bytes, 0) + message.count
    return found


def test_a_70b_stage_counts_what_an_independent_trace_counted(traced):
    """Ten layers of Llama 3 70B, TP4 with SP, of 64 ranks; numbers from another trace of Megatron-Core 0.16.1."""
    found = traced(Plan(tp=4, pp=8, dp=2, sequence_parallel=True), load_model("llama3-70b"), 3, seq=8192)
    assert total(found, "qkv", "proj", "fc1", "fc2") == 105_140_799_406_080
    assert set(found.flops) == {"qkv", "proj", "fc1", "fc2", "core"}
    assert found.flops["core"] == {"forward": 2_748_779_069_440, "backward": 2.5 * 2_748_779_069_440}
    assert found.saved["attention"] + found.saved["mlp"] == 6_003_261_440
    # Two blocks of ten layers; backward gathers gradients, and inputs again for the weights' gradients.
    whole = 134_217_728
    assert sent(found, group="tp", operation="all_gather", phase="forward") == {whole: 20}
    assert sent(found, group="tp", operation="reduce_scatter", phase="forward") == {whole: 20}
    assert sent(found, group="tp", operation="all_gather", phase="backward") == {whole: 40}
    assert sent(found, group="tp", operation="reduce_scatter", phase="backward") == {whole: 20}
    for operation in ("send", "recv"):
        for phase in ("forward", "backward"):
            assert sent(found, group="pp", operation=operation, phase=phase) == {whole / 4: 1}
    # 2 bytes a parameter, FP32 gradients, 12 bytes of optimizer state over two ranks.
    dense = found.parameters["dense"]
    assert found.state == {"parameters": 2 * dense, "gradients": 4 * dense, "optimizer": 6 * dense}
    assert sum(sent(found, phase="gradients", group="dp").values()) == 1  # later stages have one bucket
    assert sent(found, phase="parameters", group="dp") == {2 * dense: 1}


def test_words_are_those_of_the_shared_form(traced):
    found = traced(Plan(tp=2, cp=2, dp=2, **SP))
    assert {message.group for message in found.messages} <= set(GROUPS)
    assert {message.operation for message in found.messages} <= set(OPERATIONS)
    assert {message.phase for message in found.messages} <= set(PHASES)
    assert RankAmounts.from_dict(found.to_dict()) == found


def test_interleaved_stages_send_for_every_chunk(traced):
    model = dataclasses.replace(SMALL, num_layers=8)
    found = traced(Plan(pp=2, vpp=4), model, 0, 4)
    # The first stage has four chunks, the very first of which receives nothing.
    size = SEQ * 512 * 2
    assert sent(found, group="pp", operation="send", phase="forward") == {size: 16}
    assert sent(found, group="pp", operation="recv", phase="forward") == {size: 12}
    assert sent(found, group="pp", operation="send", phase="backward") == {size: 12}
    assert total(found, "fc2") == 3 * 4 * 4 * 2 * SEQ * 512 * 1024


def test_full_recompute_keeps_inputs_and_repeats_the_forward_pass(traced):
    found = traced(Plan(tp=2, **SP, recompute="full"))
    assert found.saved["layer"] == 2 * SEQ // 2 * 512 * 2
    assert not {"attention", "mlp"} & set(found.saved)
    for name in ("qkv", "fc1", "proj"):
        assert found.flops[name]["backward"] == 3 * found.flops[name]["forward"]
    assert found.flops["core"]["backward"] == 3.5 * found.flops["core"]["forward"]


def test_selective_recompute_forgets_what_it_names(traced):
    plain = traced(Plan())
    less = traced(Plan(recompute="selective", recompute_modules=("core_attn", "mlp", "layernorm")))
    assert less.saved["mlp"] == 2 * SEQ * 512 * 2  # its input alone: the norm is part of FC1
    assert less.flops["fc2"]["backward"] == 3 * plain.flops["fc2"]["forward"]
    assert less.flops["core"]["backward"] == 3.5 * plain.flops["core"]["forward"]
    # A fused norm is part of its linear layer, and no module that could be computed again.
    assert less.flops["qkv"] == plain.flops["qkv"]


KEYS = SEQ // 4 * 4 * 64 * 2  # keys (or values) of one of four ranks: 4 heads of 64 in 2 bytes


@pytest.mark.parametrize(
    ("kind", "forward", "backward"),
    [
        ("p2p", {("send", 2 * KEYS): 6}, {("send", 2 * KEYS): 4, ("send", 4 * KEYS): 4}),
        (
            "all_gather",
            {("all_gather", 4 * KEYS): 4},
            {("all_gather", 4 * KEYS): 4, ("reduce_scatter", 4 * KEYS): 4},
        ),
        (
            "a2a",
            {("all_to_all", KEYS): 4, ("all_to_all", 2 * KEYS): 4},
            {("all_to_all", KEYS): 4, ("all_to_all", 2 * KEYS): 4},
        ),
    ],
)
def test_context_parallel_attention_sends_as_transformer_engine_does(traced, kind, forward, backward):
    """Two layers. Queries and output have twice the columns of keys and values."""
    found = traced(Plan(cp=4, cp_comm_type=kind))
    for phase, wanted in (("forward", forward), ("backward", backward)):
        seen = {
            (message.operation, message.bytes): message.count
            for message in found.messages
            if message.group == "cp" and message.phase == phase and message.operation != "recv"
        }
        assert seen == wanted
    assert found.flops["core"]["forward"] == 2 * 4 * (SEQ * SEQ / 2) * 512 / 4


def test_experts_compute_the_balanced_share_of_all_tokens(traced):
    mixtral = dataclasses.replace(load_model("mixtral-8x7b"), num_layers=2)
    found = traced(Plan(tp=2, cp=2, ep=8, dp=4, **SP), mixtral)
    rows = SEQ // 4 * 2  # each rank routes its part of the sequence to two experts a token
    assert total(found, "experts_fc1") == 2 * 3 * 2 * rows * 4096 * 2 * 14336
    assert total(found, "experts_fc2") == 2 * 3 * 2 * rows * 4096 * 14336
    assert total(found, "router") == 2 * 3 * 2 * (SEQ // 4) * 4096 * 8
    assert sent(found, group="ep", phase="forward") == {rows * 4096 * 2: 4, rows * 2: 2}
    assert sent(found, group="ep", phase="backward") == {rows * 4096 * 2: 4, rows * 2: 2}
    assert found.parameters["experts"] == 2 * 3 * 4096 * 14336


def test_latent_attention_holds_down_projections_whole(traced):
    """A stage of DeepSeek-V3 with 64-way experts: as many routed rows as tokens times eight."""
    found = traced(Plan(tp=2, ep=64, pp=16, dp=64, **SP), load_model("deepseek-v3"), 8, seq=4096)
    layers, own = 4, 4096 // 2
    assert total(found, "experts_fc1", "experts_fc2") == layers * 3 * 2 * own * 8 * 3 * 7168 * 2048
    assert total(found, "q_down") == layers * 3 * 2 * own * 7168 * 1536
    assert total(found, "kv_down") == layers * 3 * 2 * own * 7168 * 576
    assert total(found, "kv_up") == layers * 3 * 2 * 4096 * 512 * 128 * 256 / 2
    assert found.flops["core"]["forward"] == layers * 2 * (192 + 128) * 64 * 4096**2 / 2
    assert {message.ranks for message in found.messages if message.group == "ep"} == {64}


def test_hybrids_have_a_mixer_in_place_of_attention(traced):
    model = dataclasses.replace(load_model("nemotronh-8b"), num_layers=4, layer_pattern="M-*M")
    found = traced(Plan(tp=2, cp=2, **SP), model)
    inner, shared = 128 * 64 // 2, 2 * 8 * 128 // 2
    assert total(found, "in_proj") == 2 * 3 * 2 * (SEQ // 2) * 4096 * (2 * inner + shared + 128 // 2)
    assert total(found, "out_proj") == 2 * 3 * 2 * (SEQ // 2) * 4096 * inner
    assert {"mamba", "attention", "mlp"} <= set(found.saved)
    assert set(found.flops) >= {"scan", "core", "qkv", "fc1"}


def test_gated_delta_layers_and_a_gate_of_shared_experts(traced):
    model = dataclasses.replace(load_model("qwen3-next-80b-a3b"), num_layers=4, mtp_layers=0)
    found = traced(Plan(tp=2, ep=64, dp=32, **SP), model, seq=512)
    wide = (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32) // 2
    assert total(found, "in_proj") == 3 * 3 * 2 * 512 * 2048 * wide
    assert total(found, "shared_gate") == 4 * 3 * 2 * (512 // 2) * 2048
    assert "other" not in found.flops


@pytest.mark.parametrize("biased", [True, False])
def test_a_joined_norm_comes_before_its_layer(biased):
    """Padding of buckets and the rank's share of gpt-oss-120b and Qwen3-Next were told as differing, which are not.

    Source: Transformer Engine 2.16.1, layernorm_linear.py, in the order of its register_parameter.
    """
    from executor.workers.te_like.linear import LayerNormLinear

    layer = LayerNormLinear(8, 16, normalization="LayerNorm", bias=biased)
    names = ["layer_norm_weight", "layer_norm_bias", "weight", "bias"]
    assert [name for name, _ in layer.named_parameters()] == names[: 3 + biased]
    assert (layer.bias is not None) == biased


def test_the_optimizer_keeps_what_its_types_say(traced):
    plan = Plan(dp=2, precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")
    found = traced(plan)
    # 16 bits of remainder and two moments of 16 bits, over two ranks.
    assert found.state["optimizer"] == 3 * found.state["parameters"] / 2


def test_quantised_plans_are_traced_in_16_bits_and_say_so(traced):
    found = traced(Plan(precision="mxfp8", tp_comm_overlap=True, tp=2, **SP))
    assert any("traced in bf16" in note for note in found.notes)
    assert any("user buffers" in note for note in found.notes)
    assert found.state["parameters"] == 2 * found.parameters["dense"]


@pytest.mark.parametrize(
    ("plan", "model", "reason"),
    [
        (Plan(tp=3), SMALL, "must be a multiple of tensor_model_parallel_size"),
        (Plan(recompute="selective", recompute_modules=("activation",)), SMALL, "recompute_modules"),
        (
            Plan(tp=2, ep=2, dp=2),
            dataclasses.replace(load_model("mixtral-8x7b"), num_layers=2),
            "sequence parallelism",
        ),
    ],
    ids=["heads", "module", "no sequence parallelism"],
)
def test_what_megatron_refuses_comes_with_its_own_words(traced, plan, model, reason):
    with pytest.raises(DryRunFailed, match=reason) as caught:
        traced(plan, model)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_traced_is_said_before_it_is_tried():
    workload = Workload(SEQ, 8)
    with pytest.raises(ValueError, match="--zero-stage 1"):
        make_job(Plan(dp=8, fsdp=True, zero_stage=3), workload, SMALL, 0, 1)
    for name, attention in (("deepseek-v4-flash", "compressed sparse"), ("glm-5", "sparse latent")):
        with pytest.raises(ValueError, match=f"has {attention} attention"):
            make_job(Plan(dp=8), workload, load_model(name), 0, 1)
    with pytest.raises(ValueError, match="--stage 2"):
        make_job(Plan(pp=2), workload, SMALL, 2, 1)


def test_fp16_takes_its_step_and_asks_everyone_about_overflow(traced):
    found = traced(Plan(dp=2, precision="fp16"))
    assert found.state["optimizer"] == 12 * found.parameters["dense"] / 2
    assert sent(found, phase="optimizer", group="world") == {4: 2}  # overflow, and the norm


def job_of(**knobs) -> dict:
    plan = Plan(**knobs)
    return make_job(plan, Workload(SEQ, plan.dp), SMALL, 0, 1)


def test_a_stage_counts_the_same_after_others_and_alone(tracer, tmp_path, monkeypatch):
    """Each is a fork that has seen no other; where nothing can be forked, a process of its own."""
    before = tracer.stage(job_of(), tmp_path)
    tracer.stage(job_of(tp=2, **SP, precision="fp16"), tmp_path)
    assert tracer.stage(job_of(), tmp_path) == before
    monkeypatch.setattr(dryrun_tracer, "FORKS", False)
    with Tracer() as alone:
        assert alone.stage(job_of(), tmp_path) == before


def test_a_stage_over_its_limit_is_one_line_and_the_next_is_traced(tmp_path):
    with Tracer() as one:
        with pytest.raises(DryRunFailed, match=r"^stage 0 took longer than 0 s to trace$"):
            one.stage(job_of(), tmp_path, limit=0.1)
        with pytest.raises(DryRunFailed, match="must be a multiple of tensor_model_parallel_size"):
            one.stage(job_of(tp=3), tmp_path)
        assert one.stage(job_of(), tmp_path).flops["qkv"]["forward"]


def test_a_process_that_cannot_load_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(dryrun_tracer, "WORKER", (*dryrun_tracer.WORKER[:2], "executor.workers.nosuch"))
    with Tracer() as one, pytest.raises(DryRunFailed, match=r"status 1: see .*worker-0\.log$"):
        one.stage(job_of(), tmp_path)
    assert "No module named" in (tmp_path / "worker-0.log").read_text()
