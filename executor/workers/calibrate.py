"""Measures this machine under the load of a run: `python -m executor.workers.calibrate OUT.json SECONDS`.

Started by torchrun with as many processes as the run will have, so that they compete for memory and
caches as they will then. Rank 0 writes medians and spreads, and after each part how far it is; what is fitted from
them is decided by `executor.calibrate_tables`, which imports no torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
import torch.distributed as dist

from executor.workers import calibrate_collectives, calibrate_kernels
from executor.workers.calibrate_timing import Meter
from executor.workers.device import take_device


def main(out: Path, seconds: float) -> None:
    """Measure within about `seconds`; rank 0 writes."""
    torch.manual_seed(0)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if cuda:
        take_device(timed=True)
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    load = os.getloadavg()[0]
    crowded = not cuda and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > (os.cpu_count() or 1)
    meter, results, began = Meter(cuda, crowded), {}, time.monotonic()
    parts = calibrate_kernels.parts(cuda) + (calibrate_collectives.parts(cuda) if ranks > 1 else [])
    whole = sum(part.weight for part in parts)
    for index, part in enumerate(parts):
        # What parts before took too long or left over is shared out among the rest.
        left = max(seconds - (time.monotonic() - began), 0.2 * seconds)
        share = left * part.weight / max(sum(other.weight for other in parts[index:]), 1e-9)
        if ranks > 1:
            share = agreed(share)
        results.setdefault(part.table, []).extend(part.measure(meter, share))
        if rank == 0:
            done = sum(other.weight for other in parts[: index + 1]) / whole
            tell(out.with_name("progress.json"), {"done": done, "what": part.title})
    results |= {
        "load": load,
        "queued": meter.queued_share,
        "crowded": crowded,
        "threads": 1 if cuda else torch.get_num_threads(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "ranks": ranks,
        "seconds": time.monotonic() - began,
    }
    if cuda:
        free, total = torch.cuda.mem_get_info()
        properties = torch.cuda.get_device_properties(0)
        results |= {"memory_bytes": total, "free_bytes": free, "sms": properties.multi_processor_count}
    if rank == 0:
        tell(out, results)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def agreed(share: float) -> float:
    """Rank 0's number on every rank, so that all repeat collectives equally often."""
    box: list[Any] = [share]
    dist.broadcast_object_list(box)
    return float(box[0])


def tell(path: Path, content: Any) -> None:
    """Write whole or not at all: another process reads."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content))
    os.replace(temporary, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
