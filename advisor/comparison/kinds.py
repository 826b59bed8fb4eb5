"""Which kind of thing a path names: a plan file, a run's folder, a trace, or a log."""

from __future__ import annotations

import tomllib
from pathlib import Path

from executor.profiles.read import is_profile

# Plan files are a few kilobytes. [byte]
LARGEST_PLAN = 1 << 20


def kind_of(path: str) -> str:
    """`plan`, `run`, `trace` or `log`; what does not exist is a plan, whose reader says what is wrong."""
    file = Path(path).expanduser()
    if file.is_dir():
        return "run"
    if not file.is_file() or file.suffix == ".toml":
        return "plan"
    if is_profile(file):
        return "trace"
    if 0 < file.stat().st_size <= LARGEST_PLAN:
        try:
            return "plan" if tomllib.loads(file.read_text(encoding="utf-8")) else "log"
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            pass
    return "log"
