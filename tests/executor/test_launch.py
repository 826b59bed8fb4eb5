"""Why a run ended is said in one line that names the rank; signals end it all."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.faults import classify
from executor.launch import RunFailed, run_worker, signals_kept, threads_of
from executor.outcome import rank_environment
from executor.run_job import make_job

# The end of a torchrun log where rank 1 was killed and rank 0 ended by torchrun.
TORCHRUN = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_07:00:00
  host      : here
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 4242)
  error_file: <N/A>
  traceback : Signal {number} received by PID 4242
============================================================
"""


def failed(folder, rank: int, error: str, when: float = 0.0) -> None:
    """A rank's own last words."""
    path = folder / f"failure-{rank}.json"
    path.write_text(json.dumps({"rank": rank, "error": error, "traceback": "..."}))
    os.utime(path, (when, when))


def test_the_first_rank_that_failed_is_named(tmp_path):
    failed(tmp_path, 0, "RuntimeError: Connection closed by peer", 200.0)
    failed(tmp_path, 1, "ValueError: no such layer.\nmore", 100.0)
    text = classify(tmp_path, 1, tmp_path / "worker.log").line
    assert text.startswith("rank 1 failed: ValueError: no such layer. ")
    assert "failure-1.json" in text
    assert "\n" not in text


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV")])
def test_a_kill_is_the_cause_of_lost_connections(tmp_path, number, name):
    failed(tmp_path, 0, "RuntimeError: Connection closed by peer")
    log = tmp_path / "worker.log"
    log.write_text(TORCHRUN.format(rank=1, code=-number, number=number))
    assert classify(tmp_path, 1, log).line.startswith(f"rank 1 was killed by {name}")


def test_what_torchrun_ends_itself_is_no_cause(tmp_path):
    failed(tmp_path, 0, "ValueError: wrong")
    log = tmp_path / "worker.log"
    log.write_text(TORCHRUN.format(rank=1, code=-15, number=15))
    assert classify(tmp_path, 1, log).line.startswith("rank 0 failed: ValueError: wrong. ")


def test_without_reasons_the_first_error_of_the_log(tmp_path):
    log = tmp_path / "worker.log"
    log.write_text("start\n[rank1]: RuntimeError: bad shape\nE1121 something\n=======\n")
    assert "RuntimeError: bad shape" in classify(tmp_path, 1, log).line
    log.write_text("only this\n=====\n")
    assert "exit code 7: only this" in classify(tmp_path, 7, log).line
    log.unlink()
    assert "no output" in classify(tmp_path, 7, log).line


def test_a_cut_reason_is_passed_over(tmp_path):
    (tmp_path / "failure-0.json").write_text('{"rank": 0, "er')
    assert "exit code 1" in classify(tmp_path, 1, tmp_path / "worker.log").line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_waits_until_the_run_looks(number, code):
    """An interrupt that a destructor swallows, or that leaves Popen's lock taken, ended no run."""

    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    with contextlib.suppress(KeyboardInterrupt), signals_kept() as kept:
        Swallows()
        signal.raise_signal(signal.SIGTERM)  # of several, the first counts
    with pytest.raises(KeyboardInterrupt) as ended:
        kept.unwind()
    assert 128 + getattr(ended.value, "number", signal.SIGINT) == code
    assert signal.getsignal(number) == before


def test_a_signal_that_nobody_looked_for_unwinds_at_the_end():
    with pytest.raises(KeyboardInterrupt), signals_kept():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("said", "threads"), [("3", 3), ("5,2", 5), ("", 4), (None, 4)])
def test_a_run_computes_with_the_threads_it_was_measured_with(monkeypatch, said, threads):
    """OMP_NUM_THREADS held for the measurement of a machine, not for the training that it predicts."""
    monkeypatch.setattr("executor.launch.os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert threads_of(2) == threads
    plan = Plan(dp=2, precision="fp32")
    job = make_job(plan, Workload(64, 4), load_model("tiny-gpt"), steps=1, warmup=0, cuda=False)
    assert job["threads"] == threads


@pytest.mark.parametrize("said", ["many", "0", "-1", "2.5"])
def test_no_number_of_threads_is_one_line(monkeypatch, said):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    with pytest.raises(
        ValueError, match=f"^OMP_NUM_THREADS={said} is not a number of threads.*Try .*unset it.$"
    ):
        threads_of(1)


def test_ranks_see_no_other_run_and_torchrun_no_options_of_another(tmp_path, monkeypatch):
    """PET_NNODES=2, which torchrun reads as --nnodes, had a run on one node wait for a second one."""
    given = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1"}
    for name, value in (given | {"MEANT": "1"}).items():
        monkeypatch.setenv(name, value)
    environment = rank_environment(tmp_path)
    assert not set(given) & set(environment)
    assert environment["MEANT"] == "1"


@pytest.mark.launch
def test_a_worker_that_is_not_there(tmp_path):
    with pytest.raises(RunFailed, match="No module named"):
        run_worker("executor.workers.nosuch", [], 1, tmp_path, 60)


@pytest.mark.launch
def test_a_run_over_its_limit_is_ended(tmp_path):
    with pytest.raises(RunFailed, match="no end after 1 s"):
        run_worker("executor.workers.calibrate", [str(tmp_path / "m.json"), "60"], 2, tmp_path, 1)
