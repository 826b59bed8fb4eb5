"""Where a command may write: never over its own other file or a file of another kind, such as most that it reads."""

from __future__ import annotations

import gzip
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.plan_file import check_writable

# Begins of a file that tell a page or a trace; a TOML file of ours is read as a whole, up to this. [byte]
HEAD, WHOLE = 1 << 16, 1 << 24


def check_output(
    option: str, path: str | Path, kind: str, inputs: Iterable[str | Path | None] = (), also: str | None = ""
) -> None:
    """ValueError in one line where writing to `path` would lose a file; OSError where nothing can be written.

    option: that names the path; kind: one of `KINDS`, what is written; inputs: what the command reads, names that are
    no files among them; also: another file that it writes. A plan that was read may be written back, changed: `predict
    plan.toml --tp 2 --save plan.toml`.
    """
    target = Path(path).expanduser()
    for given in inputs:
        reads = given and os.path.exists(there := os.path.expanduser(given)) and _same(target, Path(there))
        if reads and not KINDS[kind](target):
            raise ValueError(
                f"{option} {path} is what the command reads: it would be lost. Name another file."
            )
    if also and _same(target, Path(os.path.expanduser(also))):
        raise ValueError(
            f"{option} {path} is to hold two things: one would replace the other. Name another file."
        )
    check_writable(target)
    if target.is_file() and target.stat().st_size and not KINDS[kind](target):
        raise ValueError(
            f"{option} {path} is there and is no {kind}: it would be lost. Name another file, or remove it first."
        )


def _same(one: Path, other: Path) -> bool:
    """Whether two paths mean one file, there or not yet, by whatever links. What is no path is none."""
    try:
        if os.path.exists(one) and os.path.exists(other):
            return os.path.samefile(one, other)
        return os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):
        return False


def _head(path: Path) -> str:
    """The beginning of a file as text, unpacked where it is packed; "" where it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(HEAD).decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    except (OSError, EOFError):
        return ""


def _toml(path: Path) -> Mapping[str, Any]:
    """A TOML file's values, none where it is no TOML."""
    try:
        with path.open("rb") as file:
            return tomllib.loads(file.read(WHOLE).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}


# What a command writes -> whether a file that is there is of that kind.
KINDS: dict[str, Callable[[Path], bool]] = {
    "page": lambda path: _head(path)[:14].lower().startswith(("<!doctype html", "<html")),
    "trace": lambda path: _head(path).startswith("{") and '"traceEvents"' in _head(path),
    "plan file": lambda path: isinstance(_toml(path).get("model"), dict),
    "model file": lambda path: "num_layers" in _toml(path),
    "profile": lambda path: "calibration" in _toml(path),
}
