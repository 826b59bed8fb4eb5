"""Progress on standard error, only where a person watches and only when a search takes its time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType

# Called with the share done, from 0 to 1, and what is being done; a `Progress` is one.
Tell = Callable[[float, str], None]
# Searches shorter than this say nothing. [s]
PATIENCE = 1.0
# Columns of the bar, and the share from which the time that is left can be told. [1]
BAR, LEAST = 24, 0.05


class Progress:
    """Callable with (share done, what is being done); shows one line that it takes away again.

    Used as a context manager. Silent when standard error is not a terminal that can
    take a line back, or when it is not wanted.
    """

    def __init__(self, wanted: bool = True, patience: float | None = None) -> None:
        self._wanted = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._patience = PATIENCE if patience is None else patience
        self._start = time.monotonic()
        self._shown = 0

    def __enter__(self) -> Progress:
        return self

    def __call__(self, share: float, what: str) -> None:
        """Tell how far it is; share from 0 to 1."""
        if not self._wanted or time.monotonic() - self._start < self._patience:
            return
        line = self._line(min(1.0, max(0.0, share)), what)
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def _line(self, share: float, what: str) -> str:
        """[#####.....]  50%  what is done, 12 s left; no wider than the terminal, so that it can be taken away."""
        gone = time.monotonic() - self._start
        left = f", {gone * (1 / share - 1):.0f} s left" if share > LEAST and gone > self._patience else ""
        filled = round(share * BAR)
        line = f"[{'#' * filled}{'.' * (BAR - filled)}] {share:4.0%}  {what}{left}"
        return line[: shutil.get_terminal_size().columns - 1]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
