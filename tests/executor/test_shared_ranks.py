"""What is said of a run of several ranks that share a GPU: whatever is not as the plan says."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.plan import Plan
from executor import gpu_checks, run, shared_ranks
from executor.compare import Row
from executor.devices import known_gpu
from executor.record import write_json
from executor.resolve import Here
from executor.shared_ranks import CHECKS, Check, judged
from executor.workers.device import SHARE

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


def test_a_norm_that_no_rank_told_is_wrong(result, monkeypatch):
    """The optimizer leaves a step out whose gradients are not numbers, and has no norm of it."""
    monkeypatch.setattr(shared_ranks, "record_trace", lambda folder: {})
    silent = [each | {"grad_norm": None} for each in steps()]
    (result.record / "steps.jsonl").write_text("".join(json.dumps(each) + "\n" for each in silent))
    wrong = judged(CHECK, result, steps()).wrong
    assert wrong[0] == "grad_norm of step 0 is nan, of one rank 2.0000"
    assert len(wrong) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shared-ranks", "--only", "dp3"], "--only 'dp3' is in the name of no check. There are dp2, "),
        (["--only", "dp2"], "--only chooses among plans of several ranks. Try it with --shared-ranks."),
        (["--shared-ranks"], "this machine's GPU, 'NVIDIA X1', is not in the catalogue."),
    ],
)
def test_what_cannot_be_checked_is_one_line(monkeypatch, capsys, arguments, said):
    """A misspelt name was "0 plans, 0 with something wrong" and exit code 0, an unknown GPU a traceback."""
    monkeypatch.setattr(gpu_checks.run, "has_cuda", lambda: True)
    monkeypatch.setattr(gpu_checks, "gpu_here", lambda: known_gpu("NVIDIA X1"))
    monkeypatch.setattr(gpu_checks, "shared", lambda *_: 0)
    assert gpu_checks.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: {said}")


def test_ranks_are_told_to_share_and_nothing_else_is(tmp_path, monkeypatch):
    """The variable was set for the whole process, so for all that it ran afterwards."""
    given: list[dict] = []

    def execute(*_, **named):
        given.append(named)
        raise RuntimeError("rank 0 is gone")

    monkeypatch.setattr(run, "here", lambda: Here(cuda=True, te=True, apex=False))
    monkeypatch.setattr(run, "execute", execute)
    monkeypatch.delenv(SHARE, raising=False)
    cluster = hardware_db.load_cluster("dgx-h100")
    (alone, found) = shared_ranks.check_all([CHECK], cluster, tmp_path, lambda line: None)
    assert alone.wrong == found.wrong == ["rank 0 is gone"]
    assert [named["variables"][SHARE] for named in given] == ["1", "1"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in given[0]["variables"]
    assert SHARE not in os.environ


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
