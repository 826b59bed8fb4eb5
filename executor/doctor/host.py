"""The host: memory, shared memory, huge pages, limits, cores and NUMA, clock, disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executor.doctor.finding import Finding
from executor.doctor.machine import Machine

GIB = 1 << 30
# Host memory that a rank takes before its model: libraries, and on CUDA the context and pinned buffers. [GiB]
RANK_GIB = 0.5
SHM_GIB = 1.0
OPEN_FILES = 4096
# Below this a record can be cut short; below the first it surely is. [byte]
DISK_FAIL, DISK_WARN = 16 << 20, 1 << 30


def host(machine: Machine, plan: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Everything that is no device and no software."""
    ranks = max(1, len(machine.gpus)) if plan is None or machine.gpus else int(plan.get("ranks_here", 1))
    yield from _memory(machine, ranks)
    yield from _shared(machine)
    yield from _limits(machine)
    yield from _cores(machine, ranks)
    yield from _clock(machine)
    yield from _disk(machine)


def _meminfo(machine: Machine) -> dict[str, int]:
    """Figures of /proc/meminfo in bytes, pages as counts."""
    found = {}
    for line in machine.text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def cgroup_limit(machine: Machine) -> int | None:
    """Bytes of memory that a container may use, None where nothing limits it."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = machine.text(path).strip()
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _memory(machine: Machine, ranks: int) -> Iterator[Finding]:
    info = _meminfo(machine)
    if not info:
        return
    total, free = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    limit = cgroup_limit(machine)
    least = min(free, limit) if limit is not None else free
    pages = info.get("HugePages_Total", 0)
    huge = f", {pages} huge pages of {info.get('Hugepagesize', 0) >> 20} MiB set aside" if pages else ""
    capped = f", limited to {limit / GIB:.1f} by its container" if limit is not None and limit < total else ""
    there = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free{capped}{huge}"
    if least < ranks * RANK_GIB * GIB:
        yield Finding(
            "memory",
            "fail",
            there,
            f"{ranks} ranks load libraries of {RANK_GIB} GiB each before their model",
            "End other work, or start fewer ranks",
        )
    else:
        yield Finding("memory", "ok", there)


def _shared(machine: Machine) -> Iterator[Finding]:
    """/dev/shm by the size that its mount says: Docker gives 64 MiB."""
    size = None
    for line in machine.text("/proc/mounts").splitlines():
        words = line.split()
        if len(words) >= 4 and words[1] == "/dev/shm":
            size = next(
                (part[5:] for part in words[3].split(",") if part.startswith("size=")), "half of memory"
            )
    if size is None:
        return
    small = size.endswith("k") and int(size[:-1]) * 1024 < SHM_GIB * GIB
    if small:
        yield Finding(
            "shared memory",
            "warn",
            f"/dev/shm holds {int(size[:-1]) / 1024:.0f} MiB",
            "NCCL and data loaders keep their buffers there, and a rank dies with SIGBUS when it is full",
            "In a container: --shm-size=16g or --ipc=host",
            "NCCL user guide, troubleshooting (Docker)",
        )
    else:
        told = f"{int(size[:-1]) / 2**20:.1f} GiB" if size[:-1].isdigit() and size[-1] == "k" else size
        yield Finding("shared memory", "ok", f"/dev/shm holds {told}")


def _limits(machine: Machine) -> Iterator[Finding]:
    locked, files = machine.limits.get("memlock", -1), machine.limits.get("nofile", -1)
    if locked != -1 and machine.names("/sys/class/infiniband"):
        yield Finding(
            "limits",
            "fail" if locked < 1 << 20 else "warn",
            f"ulimit -l is {locked >> 10} KiB",
            "RDMA locks its buffers in memory, and NCCL fails when it may not",
            "ulimit -l unlimited (in Slurm: PropagateResourceLimitsExcept=MEMLOCK; in Docker: --ulimit memlock=-1)",
            "NCCL user guide, troubleshooting (memlock)",
        )
    if files != -1 and files < OPEN_FILES:
        yield Finding(
            "limits",
            "warn",
            f"ulimit -n is {files}",
            "each connection between ranks is an open file",
            "ulimit -n 65536",
        )
    elif files != -1 or locked == -1:
        there = "unlimited" if files == -1 else str(files)
        yield Finding("limits", "ok", f"open files {there}, locked memory {_bytes(locked)}")


def _bytes(limit: int) -> str:
    """A limit in bytes as the kernel tells it, -1 for none."""
    return "unlimited" if limit == -1 else f"{limit / 2**20:,.0f} MiB"


def _cores(machine: Machine, ranks: int) -> Iterator[Finding]:
    nodes = [name for name in machine.names("/sys/devices/system/node") if name[4:].isdigit()]
    domains = f"{len(nodes)} NUMA nodes" if len(nodes) > 1 else "1 NUMA node"
    there = f"{machine.affinity} of {machine.cores} cores usable, {domains}"
    if machine.affinity < min(ranks, machine.cores):
        yield Finding(
            "cores",
            "warn",
            there,
            f"{ranks} ranks are pinned to {machine.affinity} cores and take turns",
            "Widen it: taskset, --cpus-per-task in Slurm, --cpuset-cpus in Docker",
        )
    elif (
        len(nodes) > 1
        and (machine.gpus or machine.amd_gpus)
        and machine.text("/proc/sys/kernel/numa_balancing").strip() == "1"
    ):
        yield Finding(
            "cores",
            "warn",
            f"{there}, automatic NUMA balancing is on",
            "the kernel moves pages between sockets while ranks run, which shows as jitter",
            "sudo sysctl kernel.numa_balancing=0, and bind ranks (--cpu-binding)",
            "NVIDIA performance guides, CPU binding"
            if machine.gpus
            else "ml-engineering, accelerators (MI300X)",
        )
    else:
        yield Finding("cores", "ok", there)


def _clock(machine: Machine) -> Iterator[Finding]:
    """Logs of several nodes are put side by side by their clocks; rendezvous does not need them."""
    text = machine.run(("timedatectl", "show", "--property=NTPSynchronized", "--value"))
    if text is None:
        return
    if text.strip() == "yes":
        yield Finding("clock", "ok", "synchronised")
    else:
        yield Finding(
            "clock",
            "warn",
            "not synchronised with a time server",
            "events of several nodes cannot be put in order, and stragglers not found",
            "Start chrony or systemd-timesyncd",
        )


def _disk(machine: Machine) -> Iterator[Finding]:
    place = machine.record
    while not place.exists() and place != place.parent:
        place = place.parent
    if not machine.writable(place):
        yield Finding(
            "disk",
            "fail",
            f"{place} is no folder that this user can write",
            "the record of a run is written as it goes",
            "Set ADVISOR_HOME to another folder, or mend its permissions",
        )
        return
    free = machine.free(place)
    there = f"{free / GIB:.1f} GiB free for records at {machine.record}"
    if free >= DISK_WARN:
        yield Finding("disk", "ok", there)
        return
    yield Finding(
        "disk",
        "fail" if free < DISK_FAIL else "warn",
        there,
        "the record of a run is written as it goes",
        "Free room, or set ADVISOR_HOME to another disk",
    )
