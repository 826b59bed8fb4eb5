"""The machine as checks see it: files, environment, commands, versions. Tests give another one.

Nothing here imports torch: its version and CUDA are read from the installed files.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata, util
from pathlib import Path

# Seconds that a command such as nvidia-smi gets; with a broken driver it hangs.
PATIENCE = 20.0
# What nvidia-smi is asked: every driver of today knows the first, some the rest.
BASIC = "index,name,driver_version,compute_cap,memory.total,memory.used,power.limit,power.default_limit"
MORE = (
    "clocks.max.sm,clocks.current.sm,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_slowdown,"
    "clocks_throttle_reasons.sw_thermal_slowdown,persistence_mode,mig.mode.current"
)
# Distributions whose versions count, by the name that rules use.
DISTRIBUTIONS = {
    "torch": ("torch",),
    "megatron-core": ("megatron-core",),
    "transformer-engine": ("transformer-engine",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "triton": ("triton",),
    "deep-ep": ("deep-ep",),
    "nemo": ("nemo-toolkit",),
}


@dataclass(frozen=True)
class Machine:
    """root: where /proc, /sys and /dev lie. run: a command's output, None where it is not there or fails.

    distributions: installed version by name of distribution; torch_cuda, torch_hip: the CUDA or ROCm that torch was
    built for, empty where it was not; limits: soft limits by name, -1 for none; record: where records are written.
    """

    root: Path
    environment: Mapping[str, str]
    run: Callable[[tuple[str, ...]], str | None]
    distributions: Mapping[str, str]
    torch_cuda: str
    limits: Mapping[str, int]
    cores: int
    affinity: int
    record: Path
    torch_hip: str = ""
    free: Callable[[Path], int] = field(default=lambda path: shutil.disk_usage(path).free)
    writable: Callable[[Path], bool] = field(
        default=lambda path: path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    )

    def text(self, path: str) -> str:
        """A file below root, empty where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """Names in a folder below root, sorted; none where there is no folder."""
        try:
            return sorted(each.name for each in (self.root / path.lstrip("/")).iterdir())
        except OSError:
            return []

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions by the names that the table of pairs uses."""
        found = {"python": ".".join(map(str, sys.version_info[:3]))}
        for name, packages in DISTRIBUTIONS.items():
            version = next(
                (self.distributions[each] for each in packages if each in self.distributions), None
            )
            if version is not None:
                found[name] = version
        if self.torch_cuda:
            found["cuda"] = self.torch_cuda
        if self.torch_hip:
            found["rocm"] = self.torch_hip
        for gpu in self.gpus[:1]:
            found["driver"] = gpu["driver_version"]
            if re.fullmatch(r"\d+\.\d+", gpu.get("compute_cap", "")):
                found["gpu"] = gpu["compute_cap"]
        return found

    @cached_property
    def amd_gpus(self) -> int:
        """GPUs of AMD by the kernel's list of what computes, where a processor's gpu_id is 0. [1]

        Source: Linux drivers/gpu/drm/amd/amdkfd, kfd_topology.c (from memory).
        """
        nodes = "/sys/class/kfd/kfd/topology/nodes"
        ids = [self.text(f"{nodes}/{node}/gpu_id").strip() for node in self.names(nodes)]
        return sum(each not in ("", "0") for each in ids)

    @cached_property
    def gpus(self) -> list[dict[str, str]]:
        """One record a GPU, as nvidia-smi tells it; empty where there is no nvidia-smi."""
        # Names change between drivers, and one unknown name refuses the whole question: ask for less then.
        for fields in (f"{BASIC},{MORE}", BASIC):
            names = fields.split(",")
            text = self.run(("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"))
            rows = [[part.strip() for part in line.split(",")] for line in (text or "").splitlines()]
            found = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
            if found:
                return found
        return []


def this_machine(record: Path) -> Machine:
    """The machine on which this runs."""
    limits = {}
    for name in ("memlock", "nofile"):
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        limits[name] = -1 if soft == resource.RLIM_INFINITY else soft
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        root=Path("/"),
        environment=dict(os.environ),
        run=_run,
        distributions=_distributions(),
        torch_cuda=_torch_built_for("cuda"),
        torch_hip=_torch_built_for("hip"),
        limits=limits,
        cores=os.cpu_count() or 1,
        affinity=affinity,
        record=record,
    )


def _run(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _distributions() -> dict[str, str]:
    names = [each for packages in DISTRIBUTIONS.values() for each in packages]
    found = {}
    for name in [*names, "transformer-engine-cu12", "transformer-engine-cu13"]:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _torch_built_for(name: str) -> str:
    """The version of "cuda" or "hip". From torch/version.py, without importing torch, which takes seconds."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return ""
    found = re.search(rf"^{name}\b[^=]*=\s*['\"]([\d.]+)", text, flags=re.MULTILINE)
    return found.group(1) if found else ""
