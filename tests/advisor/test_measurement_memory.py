"""What a published run leaves unsaid is what it needs to fit; what it states stays."""

from __future__ import annotations

import json

import pytest

from advisor.measurements import Case, row_case
from advisor.measurements.memory import COUNT_ERROR, recompute_ladder, recomputes
from advisor.measurements.rows import Row
from advisor.validation import validate
from costmodel.model_registry import load_model
from costmodel.predict import predict

ROW = {
    "id": "run",
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": "256",
    "precision": "bf16",
    "gbs": "512",
    "mbs": "2",
    "seq_len": "8192",
    "fsdp": "256",
    "step_time_s": "15.4",
}


def case(**changed: str) -> Case:
    found = row_case(Row(ROW | changed))
    assert isinstance(found, Case)
    return found


def fits(found: Case) -> bool:
    return predict(found.model, found.workload, found.cluster, found.plan, found.stack).fits


def test_a_run_that_needs_recompute_has_it_and_says_so():
    found = case()
    assert found.plan.recompute == "full"
    assert fits(found)
    assert any("would not fit" in each and "recompute" in each for each in found.assumptions)


def over(found: Case) -> float:
    """Memory over the device's. [1]"""
    prediction = predict(found.model, found.workload, found.cluster, found.plan, found.stack)
    return prediction.peak_memory_bytes / prediction.device_bytes


def test_of_what_is_recomputed_the_fastest_that_is_within_what_the_count_errs():
    found = case(mbs="1")
    open_ = case(mbs="1", recompute_granularity="none")
    time = {
        words: (predict(found.model, found.workload, found.cluster, plan, found.stack), plan)
        for plan, words in recomputes(found.row, found.model, open_.plan, found.stack)
    }
    enough = [
        (prediction.step_time_s, words)
        for words, (prediction, _) in time.items()
        if prediction.peak_memory_bytes <= (1 + COUNT_ERROR) * prediction.device_bytes
    ]
    assert 1 < len(enough) < len(time)
    assert time[min(enough)[1]][1].to_dict() == found.plan.to_dict()


def test_memory_over_the_device_by_less_than_the_count_errs_asks_for_nothing_that_costs_time():
    tight = {"gpus": "8", "fsdp": "8", "gbs": "8", "mbs": "1", "model": "llama3-8b"}
    lengths = [case(**tight, seq_len=str(1024 * k), recompute_granularity="none") for k in range(8, 40)]
    between = [found for found in lengths if 0.98 < over(found) < 1 + COUNT_ERROR]
    assert between
    for found in between:
        free = case(**tight, seq_len=str(found.workload.seq_len))
        assert free.plan.recompute == "none"


def test_what_is_stated_stays():
    found = case(recompute_granularity="none")
    assert found.plan.recompute == "none"
    assert not fits(found)


def test_a_run_that_fits_keeps_its_plan():
    found = case(mbs="1", seq_len="1024", gbs="256")
    assert found.plan.recompute == "none"
    assert not any("would not fit" in each for each in found.assumptions)


@pytest.mark.parametrize(("batch", "size"), [("8", 1), ("32", 4), ("48", 6)])
def test_without_stages_a_micro_batch_that_is_not_stated_is_all_that_a_rank_has(batch, size):
    found = case(model="llama3-8b", gpus="8", seq_len="1024", gbs=batch, mbs="", fsdp="8")
    assert found.plan.micro_batch == size
    assert any(each.startswith(f"micro-batch not stated: {size}") for each in found.assumptions)


def test_it_is_no_larger_than_fits_and_divides_the_batch():
    found = case(
        model="llama3-8b", gpus="8", seq_len="2048", gbs="192", mbs="", fsdp="8", recompute_granularity="none"
    )
    size = found.plan.micro_batch
    assert 1 < size < 24
    assert 24 % size == 0
    larger = min(each for each in range(size + 1, 25) if 24 % each == 0)
    assert fits(found)
    assert not fits(case(**{**found.row.values, "mbs": str(larger)}))


def test_recipes_that_nobody_tuned_run_one_sample():
    """Twelve of thirteen fine-tuning cards that state it say 1."""
    row = {"model": "llama3-8b", "gpus": "8", "seq_len": "1024", "gbs": "32", "mbs": "", "fsdp": "8"}
    found = case(**row, source="Megatron-Bridge verification card")
    assert found.plan.micro_batch == 1
    assert "micro-batch not stated: 1, as most recipes come" in found.assumptions


def test_with_stages_a_micro_batch_that_is_not_stated_is_one_sample():
    sizes = {"tp": "8", "pp": "2", "vp": "1", "dp": "16", "fsdp": "0"}
    found = case(**sizes, mbs="", seq_len="1024")
    assert found.plan.micro_batch == 1
    assert "micro-batch not stated: 1" in found.assumptions


def test_a_precision_aware_optimizer_without_formats_may_keep_moments_in_16_bits():
    sizes = {"tp": "4", "pp": "8", "vp": "5", "dp": "2", "fsdp": "0", "gpus": "64", "gbs": "128", "mbs": "2"}
    stated = {"exp_avg_dtype": "float32", "exp_avg_sq_dtype": "float32"}
    open_, settled = (
        case(
            **sizes,
            precision_aware_optimizer="1",
            recompute_granularity="none",
            other_flags=json.dumps(flags),
        )
        for flags in ({}, stated)
    )
    assert (open_.plan.exp_avg_dtype, settled.plan.exp_avg_dtype) == ("bf16", "fp32")


def test_a_fused_loss_that_holds_more_is_not_taken_to_save_memory():
    """Megatron-Core's own fused loss holds 10 bytes of a logit, the one that is not fused 6."""
    found = case(
        source="NeMo-Framework-Launcher README 24.01", container="nemo:24.01", mbs="4", fsdp="0", tp="8"
    )
    assert any("loss not fused" in each for each in found.assumptions)
    assert not found.plan.fused_cross_entropy


def test_what_costs_no_time_is_taken_even_where_it_is_not_enough():
    sizes = {"tp": "1", "pp": "4", "vp": "1", "dp": "16", "fsdp": "0", "gpus": "64", "gbs": "64", "mbs": "1"}
    found = case(**sizes, recompute_granularity="none")
    assert not fits(found)
    assert found.plan.exp_avg_dtype == "bf16"


def test_parameters_in_8_bits_come_before_any_recompute():
    sizes = {"tp": "4", "pp": "8", "vp": "5", "dp": "2", "fsdp": "0", "gpus": "64", "gbs": "128", "mbs": "1"}
    found = case(precision="fp8-delayed", **sizes)
    assert found.plan.fp8_param_gather
    assert found.plan.recompute == "none"


@pytest.mark.parametrize(
    ("model", "module"),
    [("llama3-8b", "layernorm"), ("mixtral-8x7b", "moe_act"), ("deepseek-v3", "mla_up_proj")],
)
def test_the_cheap_modules_of_a_family_come_first(model, module):
    cheap, large = recompute_ladder(load_model(model))
    assert module in cheap
    assert "mlp" in large


@pytest.mark.parametrize(
    ("source", "light"), [("NeMo AutoModel performance summary", True), ("torchtitan", False)]
)
def test_under_fsdp_only_some_sources_keep_moments_in_16_bits(source, light):
    experts = {"model": "nemotron3-nano-30b-a3b", "gpus": "8", "ep": "8", "dp": "8", "fsdp": "8"}
    found = case(**experts, source=source, gbs="512", mbs="4", seq_len="4096")
    assert any("moments in 16 bits" in each for each in found.assumptions) == light
    assert found.plan.recompute == "full"
    assert fits(found) == light


def test_a_run_that_only_full_recompute_brings_below_what_memory_refutes_has_it():
    """It was called impossible for being silent, and with full recompute stated it was not."""
    silent = {
        "id": "silent",
        "source": "Blog",
        "model": "gpt3-175b",
        "system": "dgx-a100",
        "gpus": "64",
        "precision": "bf16",
        "gbs": "256",
        "mbs": "4",
        "seq_len": "4096",
        "fsdp": "0",
        "tp": "4",
        "pp": "4",
        "cp": "1",
        "step_time_s": "120",
    }
    (found,) = validate([Row(silent)])["rows"]
    assert found["fits"]
    assert "full recompute" in found["plan"]


@pytest.mark.parametrize(
    ("changes", "filled"),
    [
        ({"gpus": "64", "gbs": "128"}, "fsdp 1"),
        ({"model": "qwen3-30b-a3b", "gpus": "16", "gbs": "64", "ep": "", "etp": "1", "fsdp": "0"}, "ep 8"),
        ({"model": "deepseek-v3", "gpus": "256", "gbs": "512", "ep": "", "etp": "1"}, "ep 8, fsdp 1"),
    ],
)
def test_sizes_without_which_a_run_cannot_have_been_are_filled_and_told(changes, filled):
    row = {"fsdp": "", "tp": "1", "pp": "1", "seq_len": "4096", "mbs": "1"} | changes
    found = case(**row)
    assert (found.plan.fsdp, found.plan.ep > 1) == ("fsdp" in filled, "ep" in filled)
    assert f"not stated, and without it the run would not fit: {filled}" in found.assumptions
    assert found.row.values == ROW | row
    stated = case(**row | {"fsdp": row["fsdp"] or "0", "ep": "1"})
    assert (stated.plan.fsdp, stated.plan.ep) == (False, 1)


# Experts that fit whole on no GPU: split as the rest of the model is, not sharded anew at each use.
SPLIT = {
    "model": "mixtral-8x22b",
    "gpus": "64",
    "gbs": "256",
    "mbs": "1",
    "seq_len": "4096",
    "fsdp": "",
    "etp": "",
}
SPLIT |= {"date": "2025-06", "container": "Megatron-LM"}


@pytest.mark.parametrize(
    ("changes", "etp", "fsdp"),
    [
        ({"tp": "8", "pp": "1", "ep": "2"}, 8, False),
        ({"tp": "4", "pp": "2", "ep": "4"}, 4, False),
        ({"model": "grok1-314b", "gpus": "256", "tp": "8", "pp": "4", "ep": "2"}, 8, False),
        ({"tp": "8", "pp": "1", "ep": "2", "etp": "1"}, 1, True),
        (
            {"tp": "8", "pp": "1", "ep": "2", "source": "Megatron-MoE-ModelZoo"},
            1,
            True,
        ),  # whose commands say 1
        ({"model": "mixtral-8x7b", "tp": "4", "pp": "1", "ep": "8"}, 1, False),  # which fits
    ],
)
def test_experts_are_split_before_parameters_are_sharded(changes, etp, fsdp):
    """FSDP was invented: 4 to 7 times the time of the same row that states its experts' size."""
    found = case(**SPLIT | changes)
    assert (found.plan.etp, found.plan.fsdp) == (etp, fsdp)
    words = f"not stated, and without it the run would not fit: etp {etp}"
    assert (words in found.assumptions) == (etp > 1)
    (read,) = validate([found.row])["rows"]
    assert "etp" not in {each["column"] for each in read["unsaid"]} or etp == 1


def test_experts_are_spread_before_a_run_recomputes_what_it_does_not_say():
    row = {"model": "qwen3-30b-a3b", "system": "dgx-b300", "gpus": "8", "gbs": "512", "mbs": "4"}
    row |= {"tp": "1", "pp": "1", "seq_len": "4096", "fsdp": "0", "ep": "", "recompute_granularity": ""}
    found = case(**row)
    assert (found.plan.ep, found.plan.recompute) == (8, "none")
    assert "not stated, and without it the run would recompute: ep 8" in found.assumptions
    whole = case(**row | {"ep": "1"})
    assert (whole.plan.ep, whole.plan.recompute) == (1, "full")
    roomy = case(**row | {"mbs": "1"})
    assert (roomy.plan.ep, roomy.plan.recompute) == (1, "none")


def test_accumulation_tells_the_micro_batch():
    for pp, samples in (("8", 32), ("1", 4)):
        found = case(mbs="", ga="8", fsdp="", tp="8", pp=pp, gbs="1024")
        assert found.plan.micro_batch == 1024 // found.plan.dp // 8 == samples
        assert any("by its gradient accumulation" in words for words in found.assumptions)
    assert case(mbs="1", ga="8").plan.micro_batch == 1


@pytest.mark.parametrize(
    ("stack", "modules", "layers"),
    [("nemo-24.01", False, True), ("nemo-26.06", True, True), ("torchtitan-26.09", False, False)],
)
def test_only_what_its_software_has_is_recomputed(stack, modules, layers):
    """Megatron-Core has modules from 0.12 on, and a number of layers all along; torchtitan takes all or none."""
    found = case()
    plans = [plan for plan, _ in recomputes(found.row, found.model, found.plan, stack)]
    assert any(plan.recompute == "selective" for plan in plans) == modules
    assert any(0 < plan.recompute_num_layers < found.model.num_layers for plan in plans) == layers
    assert any(plan.recompute == "full" for plan in plans)
