"""Papers are known by their numbers and titles too, not only as our own table calls them."""

from __future__ import annotations

import pytest
from published_rows import VTRAIN, case

from advisor.measurements.habits import habit_of
from advisor.measurements.release import row_date
from advisor.measurements.rows import Row


@pytest.mark.parametrize(
    ("source", "container", "date", "entry"),
    [
        ("The Llama 3 Herd of Models", "", "", "Llama 3 paper"),
        ("arXiv:2407.21783v3, table 4", "", "", "Llama 3 paper"),
        ("SC21 paper, arXiv 2104.04473", "Megatron-LM", "", "Narayanan"),
        ("https://arxiv.org/abs/2205.05198v1", "", "", "Korthikanti"),
        ("arXiv:2402.15627", "Megatron-LM", "2024", "MegaScale"),
        ("arXiv:2603.07685", "", "", "MoE report"),
        (
            "Heterogeneous Parallelism Mappings for Large-Scale MoE",
            "Megatron-Core",
            "2025",
            "Parallel Folding",
        ),
        ("DeepSeek-V3 Technical Report", "", "", "HAI-LLM"),
        ("BigScience", "", "2022-03", "Megatron-DeepSpeed"),
        ("Megatron-Turing NLG (arXiv:2201.11990)", "", "", "Megatron-DeepSpeed"),
        ("a paper", "DeepSpeed + Megatron-LM", "2022-03", "Megatron-DeepSpeed"),
        ("a paper", "Megatron-DeepSpeed", "", "Megatron-DeepSpeed"),
        ("a paper", "Megatron-DeepSpeed", "2024-03", "Megatron"),
        ("a paper", "Megatron-LM", "", "Megatron"),
        ("2407.217835", "", "", ""),
    ],
)
def test_a_paper_is_known_however_it_is_cited(source, container, date, entry):
    assert habit_of(Row({"source": source, "container": container, "date": date}))["match"] == entry


@pytest.mark.parametrize(
    "source", ["arXiv:2412.19437", "https://arxiv.org/abs/2412.19437", "arxiv.org/pdf/2412.19437v2"]
)
def test_the_month_of_a_paper_is_in_its_number(source):
    assert row_date(Row({"source": source})) == "24.12"


DEEPSEEK = VTRAIN | {
    "source": "DeepSeek-V3 technical report",
    "container": "",
    "model": "deepseek-v3",
    "system": "H800",
    "gpus": "2048",
    "precision": "fp8",
    "gbs": "15360",
    "mbs": "",
    "seq_len": "4096",
    "tp": "1",
    "pp": "16",
    "ep": "64",
    "fsdp": "",
}


def test_deepseeks_own_run_is_as_its_report_says():
    """It was read with delayed scaling, all-to-all and no overlap: 2.6 times its time."""
    plan = case(DEEPSEEK).plan
    assert (plan.precision, plan.moe_dispatcher, plan.overlap_moe_comm) == ("fp8-sc", "deepep", True)
    assert (plan.recompute, set(plan.recompute_modules)) == (
        "selective",
        {"layernorm", "mla_up_proj", "moe_act"},
    )
    assert (plan.pp, plan.vpp) == (16, 1)
    stated = case(DEEPSEEK, recompute_granularity="none", moe_a2a_overlap="0").plan
    assert (stated.recompute, stated.overlap_moe_comm) == ("none", False)
