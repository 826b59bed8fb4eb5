"""Bytes a second and latency between the ranks of a run: `python -m executor.workers.link OUT.json BYTES`.

Collectives of a run's own size, as limits of a link hold back large messages more than small ones, and of a small one:
the line through both gives latency and bandwidth of what each rank puts on its link (the cost model's w).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.workers.device import take_device

SMALL = 2**12  # bytes of the whole buffer
REPEATS = 15
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def main(out: Path, message: int) -> None:
    """Measure every kind and size, between all ranks."""
    cuda = torch.cuda.is_available()
    if cuda:
        take_device(timed=True)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    ranks = dist.get_world_size()
    found: dict[str, Any] = {"ranks": ranks, "kinds": {}}
    for kind in KINDS:
        share = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks
        points = [(size * share, seconds(kind, size, ranks, cuda)) for size in (SMALL, message)]
        (small, first), (large, last) = points
        bandwidth = (large - small) / (last - first)
        found["kinds"][kind] = {
            "points": points,
            "bandwidth": bandwidth,
            "latency": max(0.0, first - small / bandwidth),
        }
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def seconds(kind: str, size: int, ranks: int, cuda: bool) -> float:
    """Lower quartile of one collective of `size` bytes in all, as the slowest rank sees it. [s]

    The quartile and not the median: other work makes ranks meet late, which is no cost of the link.
    """
    device = "cuda" if cuda else "cpu"
    part = torch.ones(size // 4 // ranks, device=device)
    whole = torch.ones(part.numel() * ranks, device=device)
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        if kind == "all_gather":
            dist.all_gather_into_tensor(whole, part)
        elif kind == "reduce_scatter":
            dist.reduce_scatter_tensor(part, whole)
        else:
            dist.all_reduce(whole)
        if cuda:
            torch.cuda.synchronize()
        spent = torch.tensor([time.perf_counter() - start], device=device)
        dist.all_reduce(spent, op=dist.ReduceOp.MAX)
        times.append(float(spent))
    return statistics.quantiles(times[1:], n=4)[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
