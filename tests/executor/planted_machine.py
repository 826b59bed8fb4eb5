"""A machine that is made up: what `executor.workers.calibrate` would write for it, from the cost model's formulas."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from costmodel.timing import kernels
from costmodel.work.linear import gemm_bytes
from executor.calibrate_tables import wire_factor

SIZES = [2**12, 2**16, 2**18, 2**20, 2**22, 2**24]
SHAPES = [(64, 96, 64), (256, 768, 256), (512, 512, 1408), (1024, 1024, 1024), (256, 4096, 512)]
ATTENTIONS = [(64, 8, 32), (128, 8, 32), (512, 8, 32), (512, 4, 64), (1024, 8, 64)]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@dataclass
class Machine:
    """Planted constants, base units. noise: relative; outliers: share of the timings that are three times too long."""

    rate: float = 50e9
    copy: float = 10e9
    op: float = 2e-6
    latency: float = 1e-4
    bandwidth: float = 2e9
    half_seq: float = 64.0
    half_dim: float = 16.0
    ranks: int = 2
    spread: float = 0.02
    noise: float = 0.0
    outliers: float = 0.0
    seed: int = 0
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def timing(self, seconds: float) -> dict[str, Any]:
        """An entry with its noise."""
        seconds *= 1 + self.noise * self.draw.uniform(-1, 1)
        if self.draw.random() < self.outliers:
            seconds *= 3
        return {"seconds": seconds, "quick": seconds, "spread": self.spread, "cv": self.spread, "repeats": 9}

    def measured(self) -> dict[str, Any]:
        """The whole measurement."""
        products = [
            {
                "dtype": "fp32",
                "pass": name,
                "shape": list(shape),
                **self.timing(self.product(shape, name)),
            }
            for shape in SHAPES
            for name in ("forward", "dgrad", "wgrad")
        ]
        return {
            "gemm": products,
            "attention": [self.attention(shape) for shape in ATTENTIONS],
            "stream": self.streams(),
            "host": [{"name": "operation", **self.timing(self.op)}],
            "collectives": [self.message(kind, size) for kind in KINDS for size in SIZES]
            if self.ranks > 1
            else [],
            "load": 0.1,
            "queued": 0.0,
            "torch": "2.6",
        }

    def product(self, shape: tuple[int, int, int], name: str) -> float:
        """Seconds of a product: fixed time, and its rate or its bytes."""
        m, n, k = shape
        m, n, k = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}[name]
        moved = gemm_bytes(m, n, k, 4, 4)
        return self.op + max(2 * m * n * k / self.rate, moved / self.copy)

    def attention(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Both passes of one length; the rate is half the products' for long sequences and heads of 128."""
        s, heads, d = shape
        seconds = kernels.attention_time(
            2 * s * s * heads * d, s, d, peak=self.rate, fraction=0.5, half_seq=self.half_seq,
            half_dim=self.half_dim, launch=self.op,
        )  # fmt: skip
        both = 3.5 * (seconds - self.op) + 2 * self.op
        return {
            "dtype": "fp32",
            "shape": list(shape),
            "forward": self.timing(seconds),
            "both": self.timing(both),
        }

    def streams(self) -> list[dict[str, Any]]:
        """Every stream at the copy's bandwidth."""
        found = []
        for name, size in (("copy", 1e8), ("norm", 5e5), ("elementwise", 1e6), ("optimizer", 6e7)):
            found.append({"name": name, "bytes": size, **self.timing(size / self.copy)})
            if name in ("norm", "elementwise"):
                found.append({"name": f"{name}_both", "bytes": 3 * size, **self.timing(3 * size / self.copy)})
        return found

    def message(self, kind: str, size: int) -> dict[str, Any]:
        """One kind and size among all ranks."""
        seconds = self.latency + size * wire_factor(kind, self.ranks) / self.bandwidth
        return {"kind": kind, "bytes": size, "ranks": self.ranks, **self.timing(seconds)}


def planted(ranks: int = 2, **constants: Any) -> dict[str, Any]:
    """What the worker writes for a machine with these constants."""
    return Machine(ranks=ranks, **constants).measured()
