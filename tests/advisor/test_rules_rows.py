"""No false refusals: published runs ran, so that their plans break no ERROR rule.

`data/rule_rows.csv` holds rows of the table of measurements: every model with experts, every source, and for
each family of models every feature of a plan that occurs; of each software family also the first use of every feature
of `advisor/rules/features.toml`, so that no release is told to lack what it ran. Source: column `source` of each row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.measurements import Case, read_rows, row_case
from advisor.rules import violations

ROWS = {row.text("id"): row for row in read_rows(Path(__file__).with_name("data") / "rule_rows.csv")}


def errors(case: Case) -> dict[str, str]:
    """ERROR rules that the plan of a row breaks, with what they say."""
    gpus = case.row.count("gpus", 0)
    found = violations(case.model, case.workload, case.cluster, case.plan, gpus, stack=case.stack)
    return {v.id: v.text for v in found if v.severity == "ERROR"}


@pytest.mark.parametrize("name", ROWS)
def test_a_published_run_is_not_refused(name: str) -> None:
    case = row_case(ROWS[name])
    assert isinstance(case, Case), case
    assert errors(case) == {}


def test_the_rows_hold_every_family() -> None:
    cases = [case for row in ROWS.values() if isinstance(case := row_case(row), Case)]
    assert {"dense", "moe", "mla-moe", "hybrid", "hybrid-moe", "gated-delta-moe"} <= {
        case.model.family for case in cases
    }
    assert {case.workload.task for case in cases} == {"pretrain", "sft", "lora"}
    assert any(case.plan.fsdp for case in cases)
    assert any(case.plan.pipeline_layout for case in cases)
    assert any(case.plan.overlap_moe_comm for case in cases)
