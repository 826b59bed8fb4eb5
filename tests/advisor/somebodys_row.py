"""A row of somebody's own table, the case that it becomes with some cells changed, and why it is refused."""

from __future__ import annotations

from advisor.measurements import Case, Skip, row_case
from advisor.measurements.rows import Row

ROW = {
    "id": "run",
    "source": "somebody's benchmark",
    "container": "nemo:26.04",
    "date": "2026-04",
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": "64",
    "precision": "bf16",
    "gbs": "128",
    "mbs": "1",
    "seq_len": "8192",
    "fsdp": "0",
    "tp": "4",
    "pp": "4",
    "vp": "5",
    "step_time_s": "10",
}


def case(**changes: str) -> Case:
    found = row_case(Row(ROW | changes))
    assert isinstance(found, Case), found
    return found


def refused(**changes: str) -> str:
    found = row_case(Row(ROW | changes))
    assert isinstance(found, Skip)
    assert "\n" not in found.reason
    return found.reason


def said(found: Case, words: str) -> bool:
    return any(words in each for each in found.assumptions)
