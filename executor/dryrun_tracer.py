"""The process that traces stages for a dry run: Megatron-Core loaded once, each stage in a fork of it.

Loading takes some five seconds and one stage of most plans under one. Imports no torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from costmodel.rank_amounts import RankAmounts

LIMIT = 600.0  # Longest that one stage may take. [s]
# Elsewhere libraries that are loaded do not survive a fork, or there is none: each stage loads its own.
FORKS = sys.platform == "linux"
WORKER = (sys.executable, "-m", "executor.workers.dryrun")


class DryRunFailed(Exception):
    """A stage that could not be traced, with Megatron-Core's own reason in one line."""


class Tracer:
    """Traces stage after stage; a context, after which its process has ended. It starts with the first stage.

    core: where Megatron-Core stands, None where Python finds it.
    """

    def __init__(self, core: Path | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._core = core

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and kind is not None:
            self._process.kill()
        self._end()

    def stage(self, job: dict[str, Any], folder: Path, limit: float = LIMIT) -> RankAmounts:
        """What one stage counts; its files stay in `folder`. limit: in seconds.

        DryRunFailed with one line if it cannot be traced.
        """
        stage = job["stage"]
        path = folder / f"job-{stage}.json"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(job))
        answer, failure = folder / f"amounts-{stage}.json", folder / f"failure-{stage}.json"
        for old in (answer, failure):
            old.unlink(missing_ok=True)
        log = folder / f"worker-{stage}.log"
        with log.open("wb") as sink:
            status = self._ask(path, sink, limit)
        if status is None:
            raise DryRunFailed(f"stage {stage} took longer than {limit:.0f} s to trace")
        if failure.exists():
            raise DryRunFailed(json.loads(failure.read_text())["error"])
        if status or not answer.exists():
            raise DryRunFailed(f"the dry run of stage {stage} ended with status {status}: see {log}")
        return RankAmounts.from_dict(json.loads(answer.read_text()))

    def _ask(self, path: Path, log: IO[bytes], limit: float) -> int | None:
        """Exit status of the job's trace, None when it took too long."""
        if self._process is None:
            self._process = _start(path, log, self._core)
        process, late = self._process, threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, end)
        timer.start()
        try:
            said = _answer(process, path) if FORKS else b""
            # Without an answer it traces this one job alone, or it ended while it loaded: its log says why.
            status = int(said) if said else self._end()
        finally:
            timer.cancel()
        return None if late.is_set() else status

    def _end(self) -> int:
        """Wait for the process, which ends when nothing more can be asked; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            pass
        return process.returncode


def _answer(process: subprocess.Popen[bytes], path: Path) -> bytes:
    """The line that the process says of a job, nothing where it is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{path.resolve()}\n".encode())
    except BrokenPipeError:
        return b""
    return process.stdout.readline()


def _start(path: Path, log: IO[bytes], core: Path | None) -> subprocess.Popen[bytes]:
    """The worker; what it says while it loads stands in the log of its first stage."""
    places = [
        *([str(core)] if core else []),
        str(Path(__file__).parent.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = os.environ | {
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(places),
    }
    command = [*WORKER, *([] if FORKS else [str(path)])]
    answers = subprocess.PIPE if FORKS else log
    return subprocess.Popen(
        command, env=environment, bufsize=0, stdin=subprocess.PIPE, stdout=answers, stderr=log
    )
