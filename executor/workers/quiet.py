"""A clock that stands still while this thread waits for a core that other work holds.

Wall time less the time that the thread spent runnable but not running, which Linux counts (schedstat). On a
quiet machine it is wall time; on a loaded one it is about what a quiet machine would show, caches and clocks
apart. Waiting for messages, disks and sleep counts: only the queue for a core does not.
"""

from __future__ import annotations

import os
import threading
from time import perf_counter


class QuietClock:
    """Seconds of wall time without queueing for a core, of the thread that made it. [s]"""

    def __init__(self) -> None:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        try:
            self._file: int | None = os.open(path, os.O_RDONLY)
            self.queued()
        except (OSError, ValueError, IndexError):
            self._file = None

    @property
    def counts(self) -> bool:
        """Whether the kernel counts queueing here; elsewhere this is wall time."""
        return self._file is not None

    def queued(self) -> float:
        """Seconds that the thread has waited for a core in its life. [s]"""
        if self._file is None:
            return 0.0
        # running, waiting and slices; nanoseconds twice. Source: Linux, Documentation/scheduler/sched-stats.rst.
        return int(os.pread(self._file, 96, 0).split()[1]) * 1e-9

    def __call__(self) -> float:
        """A reading; differences of two are seconds. [s]"""
        return perf_counter() - self.queued()
