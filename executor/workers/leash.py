"""Ties a process to its parent's life: `python -m executor.workers.leash SIGNAL MODULE [ARGUMENT ...]`.

torchrun gives every rank a session of its own, so no signal to torchrun's group reaches them, and a rank that
hangs outlives a torchrun that was killed. The kernel of Linux sends SIGNAL when the parent ends, however it
ends; elsewhere the module just runs.
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def tie(number: int) -> None:
    """Have the kernel send signal `number` to this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    tie(signal.Signals[sys.argv[1]])
    module, sys.argv[:] = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
