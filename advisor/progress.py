"""Progress on standard error, only where a person watches and only when a search takes its time."""

from __future__ import annotations

import sys
import time
from types import TracebackType

# Searches shorter than this say nothing. [s]
PATIENCE = 1.0


class Progress:
    """Callable with (share done, what is being done); shows one line that it takes away again.

    Used as a context manager. Silent when standard error is not a terminal, or when it is not wanted.
    """

    def __init__(self, wanted: bool = True, patience: float | None = None) -> None:
        self._wanted = wanted and sys.stderr.isatty()
        self._patience = PATIENCE if patience is None else patience
        self._start = time.monotonic()
        self._shown = 0

    def __enter__(self) -> Progress:
        return self

    def __call__(self, share: float, what: str) -> None:
        """Tell how far it is; share from 0 to 1."""
        if not self._wanted or time.monotonic() - self._start < self._patience:
            return
        line = f"{min(1.0, max(0.0, share)):4.0%}  {what}"
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
