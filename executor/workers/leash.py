"""Ties a process to its parent's life: `python -m executor.workers.leash SIGNAL MODULE [ARGUMENT ...]`.

torchrun gives every rank a session of its own, so no signal to torchrun's group reaches them, and a rank that
hangs outlives a torchrun that was killed. The kernel of Linux sends SIGNAL when the parent ends, however it
ends; elsewhere the module just runs. A rank of a run shows its pulse and leaves its reason when it fails. One that is
done goes without Python's and the libraries' own ends: a thread that PyTorch still held there aborted a rank whose
record was whole ("terminate called without an active exception").
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

from executor.workers import last_words

PR_SET_PDEATHSIG = 1  # prctl(2)


def tie(number: int) -> None:
    """Have the kernel send signal `number` to this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def follow(module: str) -> None:
    """Run the module as the program; whatever ends a rank early leaves its reason, one that is done goes at once."""
    folder, rank = os.environ.get(last_words.RECORD), os.environ.get("RANK")
    try:
        last_words.begin()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:
        ended = isinstance(error, SystemExit) and not error.code
        if not ended:
            if folder is not None and rank is not None:
                last_words.leave_reason(Path(folder), int(rank), error)
            raise
    if rank is None:  # torchrun, which has files of its own to take away
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    tie(signal.Signals[sys.argv[1]])
    module, sys.argv[:] = sys.argv[2], sys.argv[2:]
    follow(module)
