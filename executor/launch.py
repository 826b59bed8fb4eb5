"""Starts worker processes through torchrun and ends them, all of them, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Seconds that ranks get to end by themselves before they are killed.
GRACE = 5.0


class RunFailed(RuntimeError):
    """A worker died or hung; the message names rank and cause in one line."""


def run_worker(
    module: str,
    arguments: list[str],
    processes: int,
    folder: Path,
    limit: float,
    tell: Callable[[str], None],
    poll: Callable[[], None] = lambda: None,
) -> None:
    """Run `python -m module arguments` in `processes` ranks until all end.

    folder receives worker.log. Raises RunFailed after `limit` seconds or when a rank fails; an interrupt
    ends the ranks first and is then passed on. `poll` is called about five times a second.
    """
    threads = max(1, (os.cpu_count() or 1) // processes)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "TORCHDYNAMO_DISABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONUNBUFFERED": "1",
    }
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
        *("--max-restarts=0", "-m", module, *arguments),
    ]
    log = folder / "worker.log"
    with log.open("w") as sink:
        # A process group of its own, so that one signal reaches torchrun and every rank.
        child = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            end = time.monotonic() + limit
            while child.poll() is None:
                if time.monotonic() > end:
                    raise RunFailed(
                        f"no end after {limit:.0f} s: a rank hangs. Its last words stand in {log}."
                    )
                poll()
                time.sleep(0.2)
        finally:
            end_group(child)
    poll()
    if child.returncode:
        raise RunFailed(failure(folder, child.returncode, log))


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End torchrun and every rank it started: politely, then for certain."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        stop = time.monotonic() + GRACE
        while time.monotonic() < stop and _alive(child.pid):
            child.poll()
            time.sleep(0.05)
        if not _alive(child.pid):
            break
    child.wait()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def failure(folder: Path, code: int, log: Path) -> str:
    """The first rank's own reason where it left one, else what torchrun said last."""
    reasons = sorted(folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime)
    if reasons:
        record = json.loads(reasons[0].read_text())
        first = str(record["error"]).splitlines()[0]
        return f"rank {record['rank']} failed: {first}. Its traceback stands in {reasons[0]}."
    text = log.read_text(errors="replace")
    for line in reversed(text.splitlines()):
        if "exitcode" in line and "Signal" in text:
            return f"a rank was killed from outside ({line.strip()}). Log: {log}."
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
    return f"the ranks ended with exit code {code}: {last[:200]}. Log: {log}."
