"""Claims about tensor, context and data parallel sizes: CL009 to CL022, CL041, CL042."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from claim_cases import broken, cluster, errors, held, plan_of, speedup, spent, step
from click.testing import CliRunner

from advisor.candidates import Candidate
from advisor.cli import advisor
from advisor.request import Request
from advisor.rules import violations
from advisor.rules.predicted_words import predicted_words
from advisor.search import search
from costmodel.knobs import SETTINGS
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.symbols import COLLECTIVE_CONSTANTS
from costmodel.timing import overlap
from costmodel.timing.network import all_gather_time, all_reduce_time, reduce_scatter_time
from costmodel.work import communication
from costmodel.workload import Workload
from hardware_db import Cluster

LLAMA_70B: dict[str, Any] = {"where": "dgx-h100", "gpus": 64, "seq_len": 8192, "batch": 128}


def llama_70b(**knobs: Any) -> Prediction:
    return step("llama3-70b", **LLAMA_70B, **knobs)


def llama_8b(gpus: int = 8, seq_len: int = 8192, batch: int = 128, **knobs: Any) -> Prediction:
    return step("llama3-8b", "dgx-h100", gpus, seq_len, batch, **knobs)


def test_CL009_gradients_in_bf16_halve_the_bytes_and_shorten_what_is_exposed():
    wide, narrow = (llama_8b(64, batch=64, grad_reduce_in_fp32=fp32) for fp32 in (True, False))
    assert wide.values["grad_bytes"] == 2 * narrow.values["grad_bytes"]
    assert wide.values["dp_reduce_scatter"] > 1.5 * narrow.values["dp_reduce_scatter"]
    assert spent(narrow, "dp_gradients") < spent(wide, "dp_gradients")


def test_CL010_from_128_ranks_on_a_ring_in_bf16_is_warned_of_with_both_ways_out():
    def said(gpus: int, **knobs: Any) -> str:
        return " ".join(each.line() for each in broken("llama3-8b", "dgx-h100", gpus, 8192, gpus, **knobs))

    assert "--grad-reduce-in-fp32" in said(128)
    assert "SHARP" in said(128)
    for text in (said(64), said(128, grad_reduce_in_fp32=True), said(128, sharp=True)):
        assert "--grad-reduce-in-fp32" not in text


def test_CL010_sums_in_fp32_of_what_travels_in_bf16_are_a_way_out():
    setting = "reduce_scatter_with_fp32_accumulation"

    def said(**knobs: Any) -> dict[str, str]:
        return {each.id: each.line() for each in broken("llama3-8b", "dgx-h100", 128, 8192, 128, **knobs)}

    assert setting in said()["bf16_reduction_wide"]
    assert "bf16_reduction_wide" not in said(settings={setting: True})


def test_CL011_fp8_messages_are_advised_where_a_reduce_scatter_outlasts_its_gemm():
    """Reduce-scatter over GEMM of 70B: after the attention projection more than 1 with tp 8 and 4, less with 2."""

    def advised(tp: int, precision: str = "fp8-cs", **more: Any) -> bool:
        knobs: dict[str, Any] = {"tp": tp, "pp": 4, "precision": precision} | more
        shown = llama_70b(**knobs)
        words = predicted_words(shown)
        found = violations(shown.model, shown.workload, shown.cluster, shown.plan, predicted=words)
        return any(each.id == "tp_overlap_fp8_helps" for each in found)

    def outlasts(tp: int) -> bool:
        values = llama_70b(tp=tp, pp=4, precision="fp8-cs").values
        pairs = (("attention", "proj"), ("mlp", "fc2"))
        return any(
            values[f"{block}_reduce_scatter"] > values[f"{block}_{gemm}_forward"] for block, gemm in pairs
        )

    assert [outlasts(tp) for tp in (2, 4, 8)] == [False, True, True]
    assert [advised(tp) for tp in (2, 4, 8)] == [False, True, True]
    assert not advised(8, precision="bf16")
    assert not advised(8, settings={"tp_overlap_fp8_buf": True})
    assert not advised(8, tp_comm_overlap=False)


@pytest.mark.parametrize(
    ("where", "task", "tp", "seq_len", "gains"),
    [
        ("dgx-h100", "pretrain", 4, 8192, True),
        ("dgx-a100", "pretrain", 8, 512, False),  # chunks are launched for longer than they travel
        ("dgx-h100", "sft", 4, 4096, True),
        ("dgx-h100", "lora", 2, 4096, False),  # adapters of every layer gather its input again
    ],
)
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_overlap_is_advised_where_its_price_gains(where, task, tp, seq_len, gains, sequence_parallel):
    off, on = (
        predict(
            load_model("llama3-8b"),
            Workload(seq_len, 32, task),
            cluster(where),
            Plan(
                tp=tp,
                dp=8 // tp,
                sequence_parallel=overlapped or sequence_parallel,
                tp_comm_overlap=overlapped,
            ),
        )
        for overlapped in (False, True)
    )
    words = predicted_words(off)
    saved = round(100 * (1 - on.step_time_s / off.step_time_s))
    assert words["tp_overlap_gain"] == max(0, saved)
    if sequence_parallel:
        assert (saved > 0) == gains
    told = violations(off.model, off.workload, off.cluster, off.plan, predicted=words)
    (exposed,) = (each for each in told if each.id == "tp_exposed")
    assert ("--tp-comm-overlap" in exposed.way_out) == (saved > 0)
    assert ("would gain nothing" in exposed.text) == (saved <= 0)


def test_CL011_the_advice_is_told_where_a_plan_is_predicted():
    asked = ["--model", "llama3-70b", "--gpus", "64", "--gpu", "h100", "--tp", "8", "--pp", "4"]
    asked += ["--precision", "fp8-cs", "--sequence-parallel", "--tp-comm-overlap"]
    for command in ("check", "predict"):
        text = CliRunner().invoke(advisor, [command, *asked]).output
        assert "[tp_overlap_fp8_helps]" in text


def test_CL011_the_setting_says_when_it_helps():
    """It is carried and exported, with the condition told by `advisor knobs`."""
    assert "when communication outlasts the GEMM" in SETTINGS["tp_overlap_fp8_buf"].changes


def test_CL011_smaller_messages_help_only_where_a_chunk_travels_longer_than_its_gemm():
    """fp8_buf halves the bytes of a chunk: nothing is gained where the GEMM of a chunk hides it anyway."""
    chunks, gemm = 4, 1e-3
    hidden, longer = gemm / 2, 3 * gemm

    def exposed(collective: float) -> float:
        return float(overlap.pipelined_exposed(collective, gemm, chunks))

    first_and_last = hidden / chunks
    assert exposed(hidden) - exposed(hidden / 2) <= first_and_last
    assert exposed(longer) - exposed(longer / 2) > gemm


def test_CL012_data_parallelism_beats_tensor_parallelism_where_it_fits():
    """BF16 does not fit on 80 GB without context parallelism; with it, or recompute, it does."""
    assert not llama_8b().fits
    assert llama_8b(recompute="selective", recompute_modules=("mlp",)).fits
    for precision in ("bf16", "fp8-cs"):
        runs = [llama_8b(precision=precision, **knobs) for knobs in ({"cp": 2}, {"tp": 2}, {"tp": 8})]
        assert all(run.fits for run in runs)
        rates = [run.tokens_per_second_per_gpu for run in runs]
        assert rates == sorted(rates, reverse=True)


def test_CL013_reduce_scatter_and_gather_move_what_an_all_reduce_moves():
    """2 (n - 1) / n of the bytes both ways, so large messages take the same time.

    Inside an NVLink domain of 8 the all-reduce is faster, for switches reduce (NVLS).
    """
    x = SimpleNamespace(**llama_8b(64).values)
    for ranks in (2, 8, 64):
        inside = min(ranks, 8)
        both = reduce_scatter_time(x, 8e9, ranks, inside) + all_gather_time(x, 8e9, ranks, inside)
        assert both == pytest.approx(all_reduce_time(x, 8e9, ranks, inside), rel=0.3)


@pytest.mark.parametrize("gradient_bytes", [2, 4])
def test_CL013_the_distributed_optimizer_moves_the_bytes_of_an_all_reduce(gradient_bytes):
    """Without latencies and at one bandwidth the identity is exact: (n - 1) / n + (n - 1) / n = 2 (n - 1) / n.

    Gradients and parameters in 16 bits. Gradients in 32 bits make the all-reduce move a third more.
    """
    x = SimpleNamespace(**llama_8b(64, batch=64, grad_reduce_in_fp32=gradient_bytes == 4).values)
    for operation in ("all_gather", "reduce_scatter", "all_reduce"):
        for name in COLLECTIVE_CONSTANTS:
            setattr(x, f"{operation}_{name}", 4e11 if name.endswith("bandwidth") else 0)
    x.network_latency = 0
    parameters = x.dp_parameters
    gradients = communication.gradient_bytes(x, parameters)
    gathered = communication.gather_bytes(x, parameters)
    assert gradients == gradient_bytes * parameters
    assert gathered == 2 * parameters
    for ranks in (2, 8, 64, 1024):
        inside = min(ranks, 8)
        both = reduce_scatter_time(x, gradients, ranks, inside) + all_gather_time(x, gathered, ranks, inside)
        whole = all_reduce_time(x, gradients, ranks, inside)
        assert both == pytest.approx(whole * (gradient_bytes + 2) / (2 * gradient_bytes))


def test_CL013_the_distributed_optimizer_makes_no_step_slower():
    plain, sharded = (
        llama_8b(64, batch=64, zero_stage=stage, overlap_param_gather=stage > 0) for stage in (0, 1)
    )
    assert sharded.step_time_s < plain.step_time_s
    assert held(sharded, "optimizer") == pytest.approx(held(plain, "optimizer") / 64)


def two_nodes_over_one(where: str | Cluster) -> float:
    """Step time of 70B with TP16 over that with TP8 PP2, 64 GPUs; user buffers overlap inside one node alone. [1]"""
    wide, narrow = (
        step("llama3-70b", where, 64, 8192, 128, **sizes)
        for sizes in ({"tp": 16, "tp_comm_overlap": False}, {"tp": 8, "pp": 2})
    )
    return wide.step_time_s / narrow.step_time_s


def test_CL014_tensor_parallelism_over_two_nodes_is_slower():
    """By 1.35 times, not the 1.5 of the claim, which compares 450 GB/s of NVLink with the 50 of one network card.

    A ring over two nodes leaves each of them through all of its eight cards, 400 GB/s together, so that messages
    of 134 MB lose latency and their overlap rather than a factor of nine. A node with one card does lose more than
    1.5, one with the slower cards of an A100 1.48.
    """
    usual = cluster("dgx-h100")
    one_card = replace(usual, inter=replace(usual.inter, bandwidth=usual.inter.bandwidth / 8))
    assert two_nodes_over_one(usual) > 1.15
    assert two_nodes_over_one("dgx-a100") > 1.4
    assert two_nodes_over_one(one_card) > 1.5


def test_CL014_tensor_parallelism_beyond_a_node_is_warned_of_and_loses_its_overlap():
    said = {each.id: each for each in broken("llama3-70b", "dgx-h100", 64, 8192, 128, tp=16)}
    assert {"tp_beyond_domain", "tp_overlap_beyond_domain"} <= set(said)
    assert said["tp_overlap_beyond_domain"].severity == "ERROR"
    inside = {each.id for each in broken("llama3-70b", "dgx-h100", 64, 8192, 128, tp=8)}
    assert not inside & {"tp_beyond_domain", "tp_overlap_beyond_domain"}


def sft_70b(tp: int) -> Prediction:
    """Fine-tuning on 32 H100 in FP8, sequences of 4096."""
    return step(
        "llama3-70b", "dgx-h100", 32, 4096, 32, tp=tp, pp=4, vpp=5, precision="fp8-cs", load={"task": "sft"}
    )


def test_CL015_eight_way_tensor_parallelism_loses_much_on_70b():
    assert speedup(sft_70b(4), sft_70b(8)) < 0.9


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the model has 0.86 and no wait for the host; published 508.7 of 704 TFLOP/s, 0.72. Missing: kernels of a "
    "dense layer that Megatron-Core's Python issues beside those counted (FP8 state, hooks of the overlaps)",
)
def test_CL015_the_host_bounds_eight_way_tensor_parallelism():
    assert 0.65 <= speedup(sft_70b(4), sft_70b(8)) <= 0.80
    assert spent(sft_70b(8), "host_bound") > 0


def mixed_over_tensor(seq_len: int) -> float:
    """Step time of Llama 3 8B with TP2 CP2 over that with TP4. [1]"""
    mixed, tensor = (
        llama_8b(seq_len=seq_len, batch=32, **sizes) for sizes in ({"tp": 2, "cp": 2}, {"tp": 4})
    )
    return mixed.step_time_s / tensor.step_time_s


def test_CL016_context_parallelism_beats_tensor_parallelism_when_the_sequence_is_longer_than_hidden():
    """At 2048 tokens, half of hidden, it is a tie: within 6 % (the model has 5.2 % for the mixture, see below)."""
    assert mixed_over_tensor(32768) < 1
    assert mixed_over_tensor(2048) == pytest.approx(1, abs=0.06)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the wrong way round: TP2 CP2 gains 3.6 % at 2048 tokens, 2.1 % at 8192, 1.1 % at 32768 (hidden 4096). A "
    "ring step costs its message and its merge; missing are Transformer Engine's copies of keys and values, and "
    "attention at shorter key blocks",
)
def test_CL016_context_parallelism_gains_more_the_longer_the_sequence():
    assert mixed_over_tensor(32768) < mixed_over_tensor(8192) < mixed_over_tensor(2048)


def test_CL017_context_parallelism_moves_a_sixteenth_of_the_bytes():
    """Keys and values of 8 heads of 128 against hidden states of 8192, 32K tokens: 8 x 128 / (2 x 8192)."""
    context = step("llama3-70b", "dgx-h100", 16, 32768, 8, cp=2, pp=8).values
    tensor = step("llama3-70b", "dgx-h100", 16, 32768, 8, tp=2, pp=8).values
    ring = communication.context_parallel_ring_bytes(SimpleNamespace(**context), 2 * 8 * 128)
    moved = sum(
        tensor[f"{block}_tp_{kind}"] for block in ("attention", "mlp") for kind in ("gathered", "reduced")
    )
    assert ring == 32768 / 2 * 2 * (8 * 128) * 2
    assert moved == 4 * 32768 * 8192 * 2
    # Of what tensor parallelism gathers and reduces, a rank sends (tp - 1) / tp; the ring has cp - 1 = 1 step.
    assert ring / (moved / 2) == 8 * 128 / (2 * 8192) == 1 / 16


def test_CL018_short_shards_make_skinny_gemms():
    """512 rows a rank reach less of the GPU than 2048."""
    rows = {cp: step("llama3-70b", "dgx-b200", 32, 2048, 32, tp=4, pp=2, cp=cp).values for cp in (1, 4)}
    for gemm in ("mlp_fc1_forward", "mlp_fc2_forward", "attention_qkv_forward"):
        assert 4 * rows[4][gemm] > 1.02 * rows[1][gemm]


def test_CL019_context_ranks_share_the_optimizer_states():
    """12 bytes a parameter over dp x cp = 8 ranks."""
    prediction = llama_8b(cp=2)
    assert prediction.plan.dp == 4
    parameters = prediction.values["first_stage_parameters"]
    assert held(prediction, "optimizer") == pytest.approx(12 * parameters / (4 * 2))


def test_CL020_half_the_tensor_parallelism_and_twice_the_stages_is_faster():
    """With interleaving, as every published 70B recipe on H100 has it, 32 and 64 micro-batches."""
    assert llama_70b(tp=4, pp=8, vpp=5).step_time_s < llama_70b(tp=8, pp=4, vpp=5).step_time_s


@pytest.mark.parametrize("vpp", [1, 5])
def test_CL020_half_the_tensor_parallelism_is_faster_in_fp8_where_both_fit(vpp):
    """Many micro-batches for each stage (512 for 8), so that the longer pipeline's bubble does not count."""
    eight, four = (
        step(
            "llama3-70b",
            "dgx-h100",
            64,
            8192,
            1024,
            precision="fp8-cs",
            fp8_param_gather=True,
            vpp=vpp,
            **sizes,
        )
        for sizes in ({"tp": 8, "pp": 4}, {"tp": 4, "pp": 8})
    )
    assert eight.fits
    assert four.fits
    assert four.step_time_s < eight.step_time_s


@pytest.mark.parametrize("precision", ["bf16", "fp8-cs"])
def test_CL020_adapters_of_70b_on_one_node_prefer_two_stages_of_four(precision):
    eight, four = (
        step(
            "llama3-70b",
            "dgx-h100",
            8,
            4096,
            32,
            load={"task": "lora"},
            precision=precision,
            fp8_param_gather=precision != "bf16",
            **sizes,
        )
        for sizes in ({"tp": 8}, {"tp": 4, "pp": 2})
    )
    assert eight.fits
    assert four.fits
    assert four.step_time_s < eight.step_time_s


def best(model: str, where: str, gpus: int, seq_len: int, batch: int, **pins: int) -> Candidate:
    """The plan that the advisor recommends, with its prediction."""
    request = Request(
        model=load_model(model),
        gpus=gpus,
        cluster=cluster(where),
        workload=Workload(seq_len, batch),
        precisions=("fp8-cs",),
        pins=pins,
        top=1,
    )
    found = search(request).best
    assert found is not None
    return found


@pytest.mark.xfail(
    strict=True, reason="CP8 with 16,384 tokens a rank fits by our count and gains 1 % over CP16"
)
def test_CL021_128k_tokens_start_with_16_or_32_context_ranks():
    """4096 to 8192 tokens remain on each rank."""
    plan = best("llama3-8b", "dgx-h100", 64, 131072, 32).plan
    assert plan.cp in (16, 32)
    assert 4096 <= 131072 / (plan.cp * plan.tp) <= 8192


def test_CL021_16_context_ranks_are_within_2_percent_of_the_best():
    free, started = (best("llama3-8b", "dgx-h100", 64, 131072, 32, **pins) for pins in ({}, {"cp": 16}))
    assert started.prediction.step_time_s < 1.02 * free.prediction.step_time_s


def test_CL022_recomputing_attention_costs_more_per_byte_than_recomputing_the_mlp():
    base = llama_8b(seq_len=131072, batch=8, cp=8)

    def bought(module: str) -> tuple[float, float]:
        run = llama_8b(seq_len=131072, batch=8, cp=8, recompute="selective", recompute_modules=(module,))
        return run.step_time_s - base.step_time_s, base.peak_memory_bytes - run.peak_memory_bytes

    core, mlp, norm = (bought(module) for module in ("core_attn", "mlp", "layernorm"))
    assert core[0] > mlp[0] > 0
    assert core[1] * mlp[0] < mlp[1] * core[0]
    # Norms of dense layers stand inside linear layers, where Megatron-Core recomputes nothing.
    assert norm == (0, 0)


@pytest.mark.parametrize(
    ("where", "gpus", "sizes"),
    [
        pytest.param(
            "dgx-h100",
            256,
            {"pp": 8, "ep": 32},
            marks=pytest.mark.xfail(
                strict=True,
                raises=AssertionError,
                reason="TP4 is predicted 0.7 % ahead of TP2 with two context ranks",
            ),
        ),
        ("dgx-b200", 256, {"pp": 16, "ep": 8}),
        ("dgx-h100", 1024, {"pp": 8, "ep": 64}),
    ],
)
def test_CL041_tensor_parallelism_follows_active_parameters(where, gpus, sizes):
    """Stages and expert ranks as recipes have them; a search over all sizes takes 6 s and finds the same."""
    assert best("deepseek-v3", where, gpus, 4096, 8 * gpus, **sizes).plan.tp in (1, 2)


def test_CL041_a_dense_model_of_fewer_parameters_takes_more():
    """405B against 671B, of which 37B are active."""
    assert best("llama3.1-405b", "dgx-h100", 256, 8192, 512, pp=8).plan.tp >= 4


def test_CL042_the_expert_mesh_folds_over_the_others():
    """pp x max(tp x cp, ep x etp) = 2 x max(2, 8) = 16, where the product of all sizes is 32."""
    sizes = {"tp": 2, "pp": 2, "ep": 8, "etp": 1}
    assert errors(broken("qwen3-30b-a3b", "dgx-h100", 16, 4096, 128, **sizes)) == []
    (refused,) = errors(broken("qwen3-30b-a3b", "dgx-h100", 8, 4096, 128, **sizes))
    assert "16 GPUs" in refused
    assert plan_of(16, **sizes).world == 16
