"""Run records: one folder a run, written as the run goes, readable after a kill."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import math
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "megatron-core", "transformer-engine", "numpy", "advisor")


def new_record(home: Path, name: str) -> Path:
    """An empty folder for one run, named by time and model."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    safe = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name)
    path = home / "runs" / f"{stamp}-{safe}"
    for attempt in range(1000):
        folder = path if attempt == 0 else path.with_name(f"{path.name}-{attempt}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise ValueError(f"{path}: too many runs in one second. Wait a moment and try again.")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a record while ranks write into it; ValueError where another run does.

    The kernel lets go of it when this process ends, however it ends.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is being written by another `advisor run`. Wait for its end, or end it first."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write whole or not at all, and on the disk when this returns."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        file.write(json.dumps(content, indent=2))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def environment() -> dict[str, Any]:
    """Versions and machine, so that a record can be read years later."""
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": versions,
        "time": datetime.datetime.now().isoformat(timespec="seconds"),
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("NCCL_", "CUDA_", "NVTE_", "OMP_"))
        },
    }


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """Steps of a record; lines that are no step are left out, as the last one that a kill cut short."""
    try:
        lines = (folder / "steps.jsonl").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    steps = []
    for line in lines:
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(step, dict) and is_step(step):
            steps.append(step)
    return steps


def is_step(line: dict[str, Any]) -> bool:
    """Whether a line tells a step: its number, a time above 0, whether it is warm-up, and phases by name if any."""
    seconds = line.get("seconds")
    timed = isinstance(seconds, int | float) and 0 < seconds < math.inf
    return (
        timed
        and isinstance(line.get("step"), int)
        and "warmup" in line
        and isinstance(line.get("phases", {}), dict)
    )


def read_ranks(folder: Path) -> list[dict[str, Any]]:
    """Facts of every rank, once all have taken a step: host, stage, exact bytes of state, observed features."""
    try:
        return list(json.loads((folder / "ranks.json").read_text())["ranks"])
    except FileNotFoundError:
        return []


def most_on_device(ranks: list[dict[str, Any]]) -> int:
    """Most ranks on one device, of the facts of `read_ranks`: 1 unless they share GPUs (workers/device.py). [1]"""
    return max((rank.get("ranks_on_device", 1) for rank in ranks), default=1)


def read_memory(folder: Path) -> list[dict[str, Any]]:
    """Memory of every rank that reached its end; a file that tells none is left out."""
    found = []
    for path in sorted(folder.glob("memory-*.json")):
        with contextlib.suppress(ValueError):  # JSON and its encoding
            told = json.loads(path.read_text())
            if isinstance(told, dict) and {"peak_bytes", "base_bytes"} <= set(told):
                found.append(told)
    return found
