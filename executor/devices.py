"""NVIDIA devices of this machine, asked of nvidia-smi: torch is not imported to know them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import hardware_db
from executor.workers.device import shares_gpus

# Ranks that may share a device: each has a context of its own there, half a GiB. [1]
RANKS_OF_ONE = 8


def num_gpus() -> int:
    """NVIDIA devices that stand ready. [1]"""
    return sum(path.name[len("nvidia") :].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def most_ranks(nodes: int = 1) -> int:
    """Ranks that this machine's NVIDIA devices take: one each, or some where a run on one node shares them. [1]"""
    return num_gpus() * (RANKS_OF_ONE if shares_gpus() and nodes == 1 else 1)


def gpu_here() -> str:
    """The name in hardware_db of this machine's GPU. ValueError, one line, when it cannot be told."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise ValueError("nvidia-smi does not tell which GPU this is. Name it: --gpu h200.") from None
    return known_gpu(done.stdout.splitlines()[0] if done.stdout.strip() else "")


def known_gpu(title: str) -> str:
    """The name in hardware_db for a name such as "NVIDIA H200" or "NVIDIA H100 80GB HBM3"."""
    words = re.findall(r"[a-z]*\d+[a-z]*", title.lower())
    names = [one.name for one in hardware_db.list_gpus()]
    for word in words:
        near = sorted(name for name in names if name.split("-")[0] == word)
        if near:
            # Variants of one chip differ in memory: "A100-SXM4-80GB".
            return max(near, key=lambda name: sum(part + "gb" in words for part in name.split("-")))
    raise ValueError(f"this machine's GPU, {title!r}, is not in the catalogue. Name one like it: --gpu h200.")
