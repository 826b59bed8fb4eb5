"""What a rank leaves for its launcher: who it is, how far it came, why it ended, where it hangs.

All of it lies in the run's record, whose folder the launcher names in ADVISOR_RECORD; without that name
nothing is written. Standard library only: a rank that cannot import torch still says so.

    pulse-RANK      process id, host, and how far the rank came; its time of change is the pulse
    stack-RANK.txt  Python stacks of all threads, written when the launcher sends SIGUSR1
    failure-RANK.json  the reason of a rank that failed
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import traceback
from pathlib import Path
from typing import Any

RECORD = "ADVISOR_RECORD"
# Bytes set aside by the launcher and freed by a rank that fails: room for reasons on a full disk.
RESERVE = "reserve"
_LENGTH = 128
_pulse: int | None = None
_stacks: Any = None


def begin() -> None:
    """Show this rank's pulse, and answer SIGUSR1 with the stacks of its threads."""
    global _pulse, _stacks
    folder, rank = os.environ.get(RECORD), os.environ.get("RANK")
    if folder is None or rank is None:
        return
    # Stacks first: the launcher asks only ranks whose pulse it sees, as SIGUSR1 ends all others.
    _stacks = open(Path(folder, f"stack-{rank}.txt"), "w")  # noqa: SIM115  for the life of the process
    faulthandler.register(signal.SIGUSR1, file=_stacks, all_threads=True)
    _pulse = os.open(Path(folder, f"pulse-{rank}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _write("")


def pulse(doing: str) -> None:
    """Tell that this rank came as far as `doing`, such as "step 3". Some microseconds."""
    if _pulse is not None:
        _write(doing)


def _write(doing: str) -> None:
    assert _pulse is not None
    text = f"{os.getpid()}\n{socket.gethostname()[:64]}\n{doing}\n".encode()
    # Of one length, so that on a disk that became full it overwrites and needs no more room.
    with contextlib.suppress(OSError):
        os.pwrite(_pulse, text[:_LENGTH].ljust(_LENGTH), 0)
        os.utime(_pulse)


def leave_reason(folder: Path, rank: int, error: BaseException) -> None:
    """Write failure-RANK.json whole; on a full disk into the room kept for it. What was written first stays."""
    path = folder / f"failure-{rank}.json"
    if path.exists():
        return
    reason = {
        "rank": rank,
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }
    temporary = path.with_suffix(".json.tmp")
    for text in (json.dumps(reason), json.dumps(reason | {"traceback": ""})):
        with contextlib.suppress(OSError):
            temporary.write_text(text)
            os.replace(temporary, path)
            return
        (folder / RESERVE).unlink(missing_ok=True)
