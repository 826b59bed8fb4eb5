"""Measures this machine under the load of a run: `python -m executor.workers.calibrate OUT.json SECONDS`.

Started by torchrun with as many processes as the run will have, so that they compete for memory and
caches as they will then. Rank 0 writes medians and spreads; what is fitted from them is decided by
`executor.local_profile`, which imports no torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
import torch.distributed as dist
import torch.nn.functional as functional

# Rows (tokens), columns, inner size of the products measured: those of models that train on a CPU.
GEMMS = [
    (256, 768, 256),
    (256, 1408, 256),
    (256, 256, 704),
    (512, 1536, 512),
    (512, 512, 1408),
    (256, 4096, 256),
    (1024, 1024, 1024),
]
# Sequence length, heads, head dimension.
ATTENTIONS = [(128, 8, 32), (256, 8, 32), (512, 8, 32), (1024, 8, 64)]
MESSAGES = [2**12, 2**16, 2**18, 2**20, 2**22, 2**24]


def timed(function: Callable[[], Any], seconds: float, least: int = 5) -> dict[str, float]:
    """Median and spread (interquartile over median) of repeated calls within `seconds`. [s]"""
    function()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < stop:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
        if len(times) > 400:
            break
    ordered = torch.tensor(times).sort().values
    quarter = len(times) // 4
    median = float(ordered[len(times) // 2])
    return {
        "seconds": median,
        "spread": float(ordered[-1 - quarter] - ordered[quarter]) / median,
        "repeats": len(times),
    }


def measure_kernels(share: float) -> dict[str, Any]:
    """GEMMs, attention, element-wise kernels and the optimizer in this process."""
    results: dict[str, Any] = {"gemm": [], "attention": [], "stream": {}}
    for m, n, k in GEMMS:
        # Several weights in turn, so that none stays in the cache between calls.
        weights = [torch.randn(n, k) for _ in range(4)]
        x = torch.randn(m, k)

        def products(weights: Any = weights, x: Any = x) -> None:
            for weight in weights:
                functional.linear(x, weight)

        entry = timed(products, share)
        results["gemm"].append({"shape": [m, n, k], **entry, "seconds": entry["seconds"] / len(weights)})
    for s, heads, d in ATTENTIONS:
        q, k, v = (torch.randn(1, heads, s, d, requires_grad=True) for _ in range(3))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        grad = torch.randn_like(out)
        forward = timed(
            lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), share
        )

        def both(q: Any = q, k: Any = k, v: Any = v, grad: Any = grad) -> None:
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)

        whole = timed(both, share)
        results["attention"].append({"shape": [s, heads, d], "forward": forward, "both": whole})
    results["stream"] = measure_streams(share)
    small = torch.randn(16)
    results["host"] = timed(lambda: [small + 1.0 for _ in range(100)], share)
    return results


def measure_streams(share: float) -> dict[str, Any]:
    """Seconds and nominal bytes of streaming kernels, as the cost model counts their bytes."""
    large = torch.randn(2**24)
    copy = torch.empty_like(large)
    x = torch.randn(256, 256, requires_grad=True)
    weight = torch.ones(256, requires_grad=True)
    h = torch.randn(256, 1408, requires_grad=True)
    grad_x, grad_h = torch.randn(256, 256), torch.randn(256, 704)

    def swiglu() -> torch.Tensor:
        first, second = torch.chunk(h, 2, dim=-1)
        return functional.silu(first) * second

    def norm() -> torch.Tensor:
        return functional.rms_norm(x, (256,), weight, 1e-5)

    parameters = [torch.nn.Parameter(torch.randn(2**18)) for _ in range(8)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-9)
    count = sum(parameter.numel() for parameter in parameters)
    cases: dict[str, tuple[Callable[[], Any], float]] = {
        "copy": (lambda: copy.copy_(large), 2 * large.numel() * 4),
        "norm": (norm, 2 * x.numel() * 4),
        "norm_both": (lambda: norm().backward(grad_x), 5 * x.numel() * 4),
        "elementwise": (swiglu, 3 * h.numel() // 2 * 4),
        "elementwise_both": (lambda: swiglu().backward(grad_h), 8 * h.numel() // 2 * 4),
        # Reads gradient, parameter and two moments, writes three; its norm reads the gradient again.
        "optimizer": (optimizer.step, 28 * count),
    }
    return {name: {**timed(function, share), "bytes": float(num)} for name, (function, num) in cases.items()}


def measure_collectives(share: float) -> dict[str, Any]:
    """Seconds of each collective by size over all processes."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    results: dict[str, Any] = {}

    def run(name: str, function: Callable[[], Any], size: int) -> None:
        times = []
        for _ in range(12 if size < 2**22 else 6):
            dist.barrier()
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        times.sort()
        results.setdefault(name, []).append(
            {"bytes": size, "seconds": times[len(times) // 2], "ranks": ranks}
        )

    for size in MESSAGES:
        # Whole numbers of floats for every rank, so that any number of ranks can share.
        part = torch.randn(max(1, size // 4 // ranks))
        whole = torch.randn(part.numel() * ranks)
        size = whole.numel() * 4
        run("all_reduce", lambda whole=whole: dist.all_reduce(whole), size)
        run("all_gather", lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part), size)
        run("reduce_scatter", lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole), size)
        other = torch.empty_like(whole)
        run("all_to_all", lambda whole=whole, other=other: dist.all_to_all_single(other, whole), size)

        def hop(whole: Any = whole) -> None:
            if rank == 0:
                dist.send(whole, 1)
            elif rank == 1:
                dist.recv(whole, 0)

        run("send_recv", hop, size)
    return results


def main(out: Path, seconds: float) -> None:
    """Measure within about `seconds`; rank 0 writes."""
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group("gloo")
    load = os.getloadavg()[0]
    results = measure_kernels(seconds / 30)
    results["collectives"] = measure_collectives(seconds / 30) if several else {}
    results["load"] = load
    results["torch"] = torch.__version__
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(results))
    if several:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
