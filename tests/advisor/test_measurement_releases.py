"""Which release a row of measurements ran on, by its container, its source and its date."""

from __future__ import annotations

import pytest
from published_rows import MPT, VTRAIN
from somebodys_row import case, said

from advisor.measurements import stack_of
from advisor.measurements.habits import habit_of, row_release
from advisor.measurements.release import row_date
from advisor.measurements.rows import Row


def test_stacks():
    assert stack_of(Row(VTRAIN)) == "deepspeed-23.06"
    assert stack_of(Row(MPT)) == "llm_foundry-23.11"
    assert stack_of(Row({"source": "somebody's blog"})).startswith("mcore-")


@pytest.mark.parametrize(
    ("source", "container", "recipe", "stack"),
    [
        (
            "Megatron-Bridge verification card",
            "pytorch:26.04-py3",
            "HEAD:moonlight_16b_sft_8k_config",
            "nemo-26.08",
        ),
        ("Megatron-Bridge verification card", "nemo:26.10", "HEAD:moonlight_16b_sft_8k_config", "nemo-26.10"),
        ("Megatron-Bridge verification card", "nemo:26.06", "", "nemo-26.06"),
        (
            "Megatron-Bridge perf summary 26.04",
            "nemo:26.04",
            "v0.4.0:moonlight_16b_sft_8k_config",
            "nemo-26.04",
        ),
    ],
)
def test_cards_of_a_repository_head_have_the_release_that_it_became(source, container, recipe, stack):
    row = Row({"source": source, "container": container, "recipe_key": recipe})
    assert stack_of(row) == stack


@pytest.mark.parametrize(
    ("container", "stack"),
    [
        ("torchtitan 0.2", "torchtitan-25.10"),
        ("torchtitan v0.2.0", "torchtitan-25.10"),
        ("torchtitan==0.2.2", "torchtitan-26.02"),
        ("torchtitan 0.3.7", "torchtitan-26.09"),
        ("Megatron-Core 0.15.3", "mcore-25.11"),
    ],
)
def test_a_patch_is_of_its_own_month_where_the_table_has_one(container, stack):
    assert stack_of(Row({"source": "somebody's blog", "container": container})) == stack


@pytest.mark.parametrize(
    ("container", "date", "precision"),
    [
        ("nemo:26.04", "", "fp8-cs"),
        ("nemo:24.12", "", "fp8-delayed"),
        ("torchtitan", "2025-06", "fp8-cs"),
        ("Megatron-Core 0.15", "2025-12", "fp8-delayed"),
        ("HAI-LLM", "2024-12", "fp8-sc"),
    ],
)
def test_fp8_without_a_scaling_is_what_its_software_does(container, date, precision):
    found = case(precision="FP8", container=container, date=date)
    assert found.plan.precision == precision
    assert said(found, "names no scaling")


@pytest.mark.parametrize(
    ("date", "container", "source", "month"),
    [
        ("2025-10-03", "", "", "25.10"),
        ("2025/3/1", "", "", "25.03"),
        ("20251001", "", "", "25.10"),
        ("3 October 2025", "", "", "25.10"),
        ("10/2025", "", "", "25.10"),
        ("2025", "", "", "25.06"),
        ("", "torch 2.9.0.dev20250815", "", "25.08"),
        ("", "", "a report (arXiv:2405.04434v2)", "24.05"),
        ("", "", "a blog of March 2024", "24.03"),
        ("", "", "a blog", ""),
    ],
)
def test_months(date, container, source, month):
    assert row_date(Row({"date": date, "container": container, "source": source})) == month


@pytest.mark.parametrize(
    ("container", "source", "date", "stack"),
    [
        ("nvcr.io/nvidia/nemo:25.07", "", "2026-01", "nemo-25.07"),
        ("nvcr.io/nvidia/nemo:26.02.alpha", "", "", "nemo-26.02"),
        ("nvcr.io/nvidia/nemo:26.02.01", "", "", "nemo-26.02.01"),
        ("nemo:26.06.01", "", "", "nemo-26.06"),
        ("nemo:25.04.00", "", "", "nemo-25.04"),
        ("", "Megatron-Bridge performance summary 26.10", "", "nemo-26.10"),
        ("", "Megatron-Bridge performance summary", "2025-12", "nemo-25.12"),
        ("Megatron-Bridge v0.3.1", "", "", "nemo-26.02"),
        ("NeMo 2.3.0", "", "2025-09", "nemo-25.04"),
        ("NeMo Framework", "somebody's blog", "2025-03", "nemo-25.03"),
        ("MLPerf v5.0", "", "2025-06", "nemo-25.06"),
        ("megatron-core 0.16", "", "", "mcore-26.02"),
        ("megatron-core 0.20", "", "", "mcore-26.08"),
        ("Megatron-LM core_v0.12.1", "", "2026-01", "mcore-25.04"),
        ("Megatron-Core with Megatron-FSDP", "", "2025-10", "mcore-25.10"),
        ("NGC PyTorch 24.10", "", "", "mcore-24.10"),
        ("torchtitan v0.1.0", "", "", "torchtitan-25.06"),
        ("PyTorch 2.5, DeepSpeed ZeRO-3", "", "2024-11", "torchtitan-24.11"),
        ("OLMo-core", "", "2024-12", "torchtitan-24.12"),
        ("", "modalities 0.5.0", "2024-07", "torchtitan-24.07"),
    ],
)
def test_software(container, source, date, stack):
    assert stack_of(Row({"container": container, "source": source, "date": date})) == stack


def test_software_without_a_date_is_not_taken_for_the_first_of_its_kind():
    """Megatron-LM and DeepSpeed's ZeRO-3 of a row without a date were those of 2021."""
    for container in ("Megatron-LM", "DeepSpeed ZeRO-3"):
        habit = habit_of(Row({"container": container}))
        assert habit["modern"]
        assert row_release(Row({"container": container}), habit) == ""
    assert case(container="Megatron-LM", date="").plan.attention_backend == "fused"
    early = case(container="DeepSpeed ZeRO-3", date="2021-04", fsdp="1", tp="1", pp="1", vp="")
    assert early.plan.attention_backend == "unfused"


def test_attention_before_flash_attention_writes_its_scores():
    early = {"container": "in-house trainer", "date": "2022-05"}
    assert case(**early).plan.attention_backend == "unfused"
    assert said(case(**early), "before FlashAttention")
    assert case(**early | {"source": "FlashAttention, Table 2"}).plan.attention_backend == "fused"
    assert case(**early | {"date": "2023-05"}).plan.attention_backend == "fused"


def test_gpt_neox_has_fused_attention_since_2023():
    for date, backend in (("2022-04", "unfused"), ("2023-04", "fused")):
        plan = case(container="GPT-NeoX", date=date, fsdp="", vp="").plan
        assert (plan.attention_backend, plan.recompute, plan.sequence_parallel) == (backend, "full", False)


def test_a_release_that_nobody_published_runs_of_is_told():
    assert said(
        case(container="nemo:26.10"), "no run of nemo-26.10 is known: what is fitted to nemo-26.08 counts"
    )
    assert not said(case(), "no run of")


def test_software_that_is_not_known_is_told():
    assert said(case(container="in-house trainer", date="2025-03"), "software not recognised")
    assert not said(case(container="Megatron-LM", date="2025-03"), "software not recognised")


def test_deepspeed_sums_gradients_of_bf16_in_fp32():
    here = case(source="a paper", container="Megatron-DeepSpeed (2022)", precision="bf16", date="2022")
    assert here.plan.grad_reduce_in_fp32
