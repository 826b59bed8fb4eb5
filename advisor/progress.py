"""Progress on standard error, only where a person watches and only when a search takes its time."""

from __future__ import annotations

import sys
import time
from types import TracebackType

# Searches shorter than this say nothing. [s]
PATIENCE = 1.0


class Progress:
    """Callable with (done, total, what); shows one line that it takes away again.

    Used as a context manager. Silent when standard error is not a terminal, or when it is not wanted.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted and sys.stderr.isatty()
        self._start = time.monotonic()
        self._shown = 0

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: float, total: float, what: str = "plans") -> None:
        """Tell how far it is; done and total in any one unit."""
        if not self._wanted or time.monotonic() - self._start < PATIENCE:
            return
        share = min(1.0, done / total) if total else 0.0
        line = f"searching {what}: {share:4.0%}"
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
