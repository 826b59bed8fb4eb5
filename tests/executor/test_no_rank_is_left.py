"""However the launcher ends, and even when a rank hangs, no rank outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.faults import classify
from executor.launch import RunFailed, run_worker, signals_kept
from executor.run import missing_software

launches = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends ranks with their parent"),
]

# A rank that tells its process id and then waits; no torch, so that it starts at once.
WORKER = """\
import os, sys, time
from pathlib import Path
path = Path(sys.argv[1], "pid-" + os.environ["RANK"])
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
time.sleep(300)
"""

# The end of a torchrun log: rank 0 was killed; rank 1 hung until torchrun killed it after 30 s.
HUNG = """\
W1121 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 22 closing signal SIGTERM
W1121 torch/distributed/elastic/multiprocessing/api.py:1047] Unable to shutdown process 22 via 15, forcefully \
exiting via 9
Failures:
[1]:
  time      : 2026-11-21_07:11:09
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 22)  (SIGKILL)
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_07:10:39
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 11)
"""


def state(process: int) -> str | None:
    """Letter of the process's state, None when there is none; a zombie counts as none."""
    try:
        letter = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if letter == "Z" else letter


def ranks_of(folder: Path) -> list[int]:
    """Process ids that the ranks told."""
    return [int(path.read_text()) for path in sorted(folder.glob("pid-?"))]


def wait_until_gone(processes: list[int]) -> list[int]:
    """Those still there after some seconds, which are then ended."""
    end = time.monotonic() + 20
    while any(map(state, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    left = [process for process in processes if state(process)]
    for process in left:
        os.kill(process, signal.SIGKILL)
    return left


@pytest.fixture
def sleepers(tmp_path, monkeypatch):
    """A folder, and the waiting worker made importable."""
    (tmp_path / "sleeping_rank.py").write_text(WORKER)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


class TestLaunches:
    """Real torchrun, waiting ranks."""

    pytestmark = launches

    def test_a_rank_that_hangs_is_ended_at_the_limit(self, sleepers):
        def poll() -> None:
            for process in ranks_of(sleepers):
                # A stopped process answers no SIGTERM, like one inside a driver call.
                os.kill(process, signal.SIGSTOP)

        with pytest.raises(RunFailed, match="no end after 10 s"):
            run_worker("sleeping_rank", [str(sleepers)], 2, sleepers, 10, poll)
        ranks = ranks_of(sleepers)
        assert len(ranks) == 2
        assert wait_until_gone(ranks) == []

    @pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
    def test_ranks_end_with_their_launcher(self, sleepers, number):
        code = (
            "import signal, sys; from pathlib import Path\n"
            "from executor.launch import run_worker\n"
            # As from a terminal, even where these tests run under nohup.
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
            "run_worker('sleeping_rank', sys.argv[1:], 2, Path(sys.argv[1]), 120)\n"
        )
        launcher = subprocess.Popen(
            [sys.executable, "-c", code, str(sleepers)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        end = time.monotonic() + 60
        while len(ranks_of(sleepers)) < 2:
            assert launcher.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        launcher.send_signal(number)
        launcher.wait(timeout=60)
        assert wait_until_gone(ranks_of(sleepers)) == []


def test_a_closed_terminal_unwinds_like_an_interrupt():
    def ours(*_) -> None:
        """Instead of the default, which would end the tests."""

    before = signal.signal(signal.SIGHUP, ours)
    try:
        with pytest.raises(KeyboardInterrupt), signals_kept():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is ours
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_nohup_a_closed_terminal_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_kept():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hung_rank_that_torchrun_kills_is_not_the_cause(tmp_path):
    log = tmp_path / "worker.log"
    log.write_text(HUNG.format(code=-9))
    assert classify(tmp_path, 1, log).line.startswith("rank 0 was killed by SIGKILL")
    log.write_text(HUNG.format(code=1))
    (tmp_path / "failure-0.json").write_text('{"rank": 0, "error": "ValueError: wrong", "traceback": ""}')
    assert classify(tmp_path, 1, log).line.startswith("rank 0 failed: ValueError: wrong. ")


@pytest.mark.parametrize(
    ("at_end", "ends", "code"),
    [("abort", "", 0), ("abort", "raise SystemExit(0)", 0), ("getpid", "raise SystemExit(3)", 3)],
)
def test_what_libraries_do_at_the_end_fails_no_rank_that_is_done(tmp_path, at_end, ends, code):
    """PyTorch's threads aborted a rank whose record was whole: the run was said to be killed."""
    (tmp_path / "work.py").write_text(
        f"import atexit, os\natexit.register(os.{at_end})\nprint('done', end='')\n{ends}\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    rank = subprocess.run(
        [sys.executable, "-m", "executor.workers.leash", "SIGKILL", "work"],
        env=os.environ | {"PYTHONPATH": paths, "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (rank.returncode, rank.stdout) == (code, "done")
