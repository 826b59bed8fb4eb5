"""Starts worker processes through torchrun and ends them, all of them, whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Seconds that ranks get to end by themselves before they are killed.
GRACE = 5.0
LEASH = "executor.workers.leash"
# Signals that end a run as Ctrl-C does.
ENDING = (signal.SIGTERM, signal.SIGHUP)


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
    # Each process ends with its parent: torchrun ends its ranks when asked, a rank cannot be asked when it hangs.
    command = [
        *(sys.executable, "-m", LEASH, "SIGTERM", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={processes}", "--max-restarts=0"),
        *("-m", LEASH, "SIGKILL", module, *arguments),
    ]
    log = folder / "worker.log"
    with log.open("w") as sink, terminated_like_interrupted():
        # A process group of its own: Ctrl-C in the terminal reaches this process alone, which then ends torchrun.
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


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and a closed terminal unwind as Ctrl-C does: ranks have a session of their own.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    numbers = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End torchrun and every rank it started: politely, then for certain. A second Ctrl-C waits."""
    if threading.current_thread() is not threading.main_thread():
        _end_group(child)
        return
    before = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, *ENDING)}
    try:
        _end_group(child)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _end_group(child: subprocess.Popen[bytes]) -> None:
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
    """Why a run ended, in one line: a rank that was killed, else a rank's own reason, else torchrun's."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    # Others fail of a lost connection when one is killed: the kill is the cause. torchrun itself ends the others
    # with SIGTERM, and after 30 s for certain; those it names beforehand.
    ended = set(re.findall(r"Unable to shutdown process (\d+)", text))
    killed = r"rank\s*:\s*(\d+).*?\n\s*exitcode\s*:\s*-(\d+) \(pid: (\d+)\)"
    for rank, number, pid in re.findall(killed, text):
        if int(number) != signal.SIGTERM and pid not in ended:
            name = signal.Signals(int(number)).name
            hint = " (often memory ran out)" if int(number) == signal.SIGKILL else ""
            return f"rank {rank} was killed by {name}{hint}. Log: {log}."
    reasons = sorted(folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime)
    for path in reasons:
        try:
            record = json.loads(path.read_text())
        except json.JSONDecodeError:
            continue
        first = str(record["error"]).splitlines()[0]
        return f"rank {record['rank']} failed: {first.rstrip('.')}. Its traceback stands in {path}."
    # torchrun's report of its children follows theirs; what they said stands before it.
    said = re.split(r"^(?:[EWI]\d{4} |.*ChildFailedError)", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.strip() for line in said.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b", line)]
    last = errors[0] if errors else lines[-1] if lines else "no output"
    return f"the ranks ended with exit code {code}: {last[:200]}. Log: {log}."
