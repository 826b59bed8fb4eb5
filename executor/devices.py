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
    """The name in hardware_db for a name such as "NVIDIA H200", "NVIDIA H100 80GB HBM3" or "NVIDIA RTX A6000".

    Variants of one chip differ in form, which is SXM where the title names none, and in memory: "A100-SXM4-80GB".
    ValueError, one line, where none is known.
    """
    text = re.sub(r"(sxm)\d", r"\1", title.lower())
    words = set(re.findall(r"[a-z]+\d*|\d+[a-z]*", text)) | set(re.findall(r"[a-z]*\d+[a-z]*", text))
    forms = {"pcie", "nvl"} & words or {"sxm"}

    def place(name: str) -> tuple[int, int, int, str]:
        parts = set(name.split("-")[1:])
        sizes = {part: part.removesuffix("gb") for part in parts}
        said = {part for part, size in sizes.items() if {size, f"{size}g", f"{size}gb"} & (words | forms)}
        return len(forms & parts), len(said) - len(parts), len(said), name

    names = [one.name for one in hardware_db.list_gpus()]
    near = [name for name in names if _chip(name) <= words]
    if not near:
        raise ValueError(
            f"this machine's GPU, {title!r}, is not in the catalogue. Name one like it: --gpu h200."
        )
    return max(near, key=place)


def _chip(name: str) -> set[str]:
    """The words that every title of a GPU has: h100 of h100-sxm-500w, rtx and 4090 of rtx4090, rtx, 6000 and ada."""
    parts = re.findall(r"rtx|[a-z]*\d+[a-z]*|[a-z]+", name)
    return set(parts) if parts[0] == "rtx" else {parts[0]}
