"""What is said of a run of several ranks that share a GPU: whatever is not as the plan says."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.plan import Plan
from executor import shared_ranks
from executor.compare import Row
from executor.record import write_json
from executor.shared_ranks import CHECKS, Check, judged

GROUPS = ("dp", "tp", "pp", "cp", "ep")


def steps(loss: float = 5.0) -> list[dict]:
    """Of a run."""
    return [
        {"step": number, "warmup": False, "seconds": 1.0, "loss": loss - number, "grad_norm": 2.0}
        for number in range(3)
    ]


@pytest.fixture
def result(tmp_path):
    """A run of two data-parallel ranks with nothing wrong."""
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps()))
    write_json(tmp_path / "job.json", {"model": {"name": "m"}})
    spans = [["", "forward", 0.0, 1.0]]
    ranks = [{"rank": rank, "stage": 0, "spans": spans} for rank in range(2)]
    write_json(tmp_path / "timeline.json", {"step": 1, "seconds": 1.0, "ranks": ranks})
    mib = 2**20
    return SimpleNamespace(
        record=tmp_path,
        measured={"exposed": {"dp": 0.1, "mp": 0.0}},
        warnings=["2 ranks shared a GPU"],
        rows=[Row("of it live tensors", 1000.0 * mib, 1050.0 * mib, "byte", "as predicted")],
        features=[SimpleNamespace(name="overlap_grad_reduce", observed="3 beside compute")],
    )


CHECK = Check("dp2", Plan(dp=2), ("dp",), (("overlap_grad_reduce", "beside compute"),))


def test_nothing_is_wrong(result, monkeypatch):
    monkeypatch.setattr(shared_ranks, "record_trace", lambda folder: {})
    found = judged(CHECK, result, steps(5.001))
    assert found.wrong == []
    assert found.exposed == {"dp": 0.1}
    assert found.line() == "dp2                    loss 3.0000  live tensors  1.05 of told  waited dp 0.100 s"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measured": {"exposed": {"dp": 0.0}}}, "nothing was waited for in the group dp"),
        ({"features": []}, "the receipt says '' of overlap_grad_reduce, not 'beside compute'"),
        ({"warnings": ["rank 0 holds 8 bytes of gradients, counted were 4"]}, "rank 0 holds 8 bytes"),
        (
            {"rows": [Row("of it live tensors", 1e9, 1.3e9, "byte", "")]},
            "live tensors are 1.30 of the 954 MiB",
        ),
    ],
    ids=["waits", "receipt", "state", "memory"],
)
def test_what_is_wrong_is_said(result, monkeypatch, change, said):
    monkeypatch.setattr(shared_ranks, "record_trace", lambda folder: {})
    vars(result).update(change)
    (wrong,) = judged(CHECK, result, steps()).wrong
    assert said in wrong


def test_another_loss_and_a_record_without_a_trace_are_wrong(result):
    (result.record / "timeline.json").unlink()
    found = judged(CHECK, result, steps(6.0))
    assert found.wrong[0] == "loss of step 0 is 5.0000, of one rank 6.0000"
    assert found.wrong[-1].startswith("no trace: ")


def test_a_plan_that_cannot_run_is_told_and_the_others_go_on(tmp_path):
    told: list[str] = []
    check = Check("fp4", Plan(precision="nvfp4"), ())
    found = shared_ranks.tried(check, hardware_db.load_cluster("dgx-h100"), tmp_path / "run", [], told.append)
    assert len(found.wrong) == 1
    assert math.isnan(found.loss)
    assert told[0].startswith("fp4: ")


def test_every_kind_of_group_is_waited_for_by_some_check():
    assert {group for check in CHECKS for group in check.waits} == set(GROUPS)
    assert max(check.plan.world for check in CHECKS) == 4
    assert len({check.name for check in CHECKS}) == len(CHECKS)
