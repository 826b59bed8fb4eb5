"""Collectives and point-to-point messages between the processes of a run, by kind, size and group."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from executor.workers.calibrate_timing import Entry, Meter, Part, summary

CPU_SIZES = [2**12, 2**15, 2**18, 2**20, 2**22, 2**24]
GPU_SIZES = [2**12, 2**16, 2**20, 2**23, 2**26, 2**29]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
MOST_REPEATS, LEAST_REPEATS = 40, 6


def parts(cuda: bool) -> list[Part]:
    """Every kind and size; groups of 2, 4, ... ranks and of all."""
    return [
        Part("collectives", f"{kind}, {size / 2**10:g} KiB", 0.7, partial(collective, kind=kind, size=size))
        for kind in KINDS
        for size in (GPU_SIZES if cuda else CPU_SIZES)
    ]


def group_sizes(ranks: int) -> list[int]:
    """2, 4, 8, ... and all ranks. [1]"""
    sizes = [2**power for power in range(1, ranks.bit_length()) if 2**power < ranks]
    return [*sizes, ranks]


_GROUPS: dict[int, Any] = {}


def group_of(size: int) -> Any:
    """This rank's group of `size` neighbours; every rank makes all of them, in the same order."""
    if not _GROUPS:
        ranks = dist.get_world_size()
        for number in group_sizes(ranks):
            for first in range(0, ranks - number + 1, number):
                members = list(range(first, first + number))
                made = dist.new_group(members)
                if dist.get_rank() in members:
                    _GROUPS[number] = made
    return _GROUPS.get(size)


def collective(meter: Meter, seconds: float, kind: str, size: int) -> list[Entry]:
    """Seconds of one kind and size for each group; point-to-point between the first two ranks alone."""
    ranks = dist.get_world_size()
    sizes = [2] if kind == "send_recv" else group_sizes(ranks)
    found = []
    for number in sizes:
        group = group_of(number)
        # Whole numbers of floats for every rank, so that any number of ranks can share.
        part = torch.randn(max(1, size // 4 // number), device=meter.device)
        whole = torch.randn(part.numel() * number, device=meter.device)
        call = message(kind, whole, part, group)
        times = repeated(meter, call if group is not None else lambda: None, seconds / len(sizes))
        found.append({"kind": kind, "bytes": whole.numel() * 4, "ranks": number, **summary(times)})
    return found


def message(kind: str, whole: torch.Tensor, part: torch.Tensor, group: Any) -> Callable[[], Any]:
    """The call that sends `whole`, shared by the group's ranks where it is a gathered buffer."""
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    if kind == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole, group=group)
    rank = dist.get_rank()
    return lambda: dist.send(whole, 1) if rank == 0 else dist.recv(whole, 0) if rank == 1 else None


def repeated(meter: Meter, call: Callable[[], Any], seconds: float) -> list[float]:
    """Times of a call that all ranks begin together; rank 0 decides how often."""
    times: list[float] = []
    number = LEAST_REPEATS
    while len(times) < number:
        dist.barrier()
        start = time.perf_counter()
        meter.once(call)
        # Wall time: what one rank waits for the other is part of a message's cost.
        times.append(time.perf_counter() - start)
        if len(times) == 2:
            box: list[Any] = [min(MOST_REPEATS, max(LEAST_REPEATS, int(seconds / max(times[1], 1e-6))))]
            dist.broadcast_object_list(box)
            number = int(box[0])
    return times[1:]
