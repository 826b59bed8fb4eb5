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

# Rows (tokens), columns, inner size of the products measured: those of models that train on a CPU,
# layers and vocabulary.
GEMMS = [
    (256, 512, 256),
    (1024, 1408, 256),
    (1024, 256, 704),
    (1024, 8192, 256),
    (256, 2816, 512),
    (1024, 512, 1408),
    (1024, 8192, 512),
]
ROWS, HIDDEN, FFN, HEADS, HEAD_DIM = 1024, 256, 704, 12, 32  # tokens and widths of element-wise kernels
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
        weights = [torch.randn(n, k) for _ in range(4 if n * k < 2**21 else 1)]
        x, grad = torch.randn(m, k), torch.randn(m, n)

        def products(weights: Any = weights, x: Any = x, grad: Any = grad) -> None:
            for weight in weights:
                functional.linear(x, weight)
                grad.matmul(weight)
                grad.t().matmul(x)

        entry = timed(products, share)
        # One product of the three that a step needs: forward, gradient of the input, of the weight.
        seconds = entry["seconds"] / len(weights) / 3
        results["gemm"].append({"shape": [m, n, k], **entry, "seconds": seconds})
    for s, heads, d in ATTENTIONS:
        # Sequence first and half as many key heads, as the model's layers hand them over.
        q = torch.randn(s, 1, heads, d, requires_grad=True)
        k, v = (torch.randn(s, 1, heads // 2, d, requires_grad=True) for _ in range(2))
        grad = torch.randn(s, 1, heads * d)

        def attend(q: Any = q, k: Any = k, v: Any = v) -> torch.Tensor:
            heads_first = (tensor.permute(1, 2, 0, 3) for tensor in (q, k, v))
            out = functional.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
            return out.permute(2, 0, 1, 3).reshape(q.shape[0], 1, -1)

        def both(attend: Any = attend, grad: Any = grad) -> None:
            attend().backward(grad)

        forward, whole = timed(attend, share), timed(both, share)
        results["attention"].append({"shape": [s, heads, d], "forward": forward, "both": whole})
    results["stream"] = measure_streams(share)
    small = torch.randn(16)
    results["host"] = timed(lambda: [small + 1.0 for _ in range(100)], share)
    return results


def measure_streams(share: float) -> dict[str, Any]:
    """Seconds and nominal bytes of streaming kernels, as the cost model counts their bytes."""
    large = torch.randn(2**24)
    copy = torch.empty_like(large)
    x = torch.randn(ROWS, HIDDEN, requires_grad=True)
    weight = torch.ones(HIDDEN, requires_grad=True)
    h = torch.randn(ROWS, 2 * FFN, requires_grad=True)
    heads = torch.randn(ROWS, HEADS, HEAD_DIM, requires_grad=True)
    angles = torch.randn(ROWS, 1, HEAD_DIM)
    cos, sin = angles.cos(), angles.sin()
    grad_x, grad_h, grad_heads = torch.randn_like(x), torch.randn(ROWS, FFN), torch.randn_like(heads)

    def elementwise() -> list[torch.Tensor]:
        """SwiGLU, rotary embedding and a residual, as Megatron-Core runs them without fused kernels."""
        first, second = torch.chunk(h, 2, dim=-1)
        low, high = torch.chunk(heads, 2, dim=-1)
        rotated = heads * cos + torch.cat((-high, low), dim=-1) * sin
        return [functional.silu(first) * second, rotated, x.detach() + grad_x]

    def elementwise_both() -> None:
        activated, rotated, _ = elementwise()
        torch.autograd.backward([activated, rotated], [grad_h, grad_heads])
        # Where branch and residual meet, their gradients are added.
        torch.add(grad_x, grad_x)

    def norm() -> torch.Tensor:
        return functional.rms_norm(x, (HIDDEN,), weight, 1e-5)

    # More than a cache holds, as any model does.
    parameters = [torch.nn.Parameter(torch.randn(2**20)) for _ in range(8)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-9)
    count = sum(parameter.numel() for parameter in parameters)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    # Elements once read and once written: residual 3, SwiGLU 3 forward and 5 backward, rotary 2 each.
    forward = 3 * FFN * ROWS + 2 * heads.numel() + 3 * x.numel()
    backward = 5 * FFN * ROWS + 2 * heads.numel() + 3 * x.numel()
    cases: dict[str, tuple[Callable[[], Any], float]] = {
        "copy": (lambda: copy.copy_(large), 2 * large.numel() * 4),
        "norm": (norm, 2 * x.numel() * 4),
        "norm_both": (lambda: norm().backward(grad_x), 5 * x.numel() * 4),
        "elementwise": (elementwise, forward * 4),
        "elementwise_both": (elementwise_both, (forward + backward) * 4),
        # Reads gradient, parameter and two moments, writes three; its norm reads the gradient again.
        "optimizer": (update, 28 * count),
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
