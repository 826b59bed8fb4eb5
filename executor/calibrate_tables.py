"""Measured kernels and collectives as constants of the cost model's formulas: `executor.workers.calibrate` to tables.

Each table is fitted through the formula that will use it (`costmodel.timing`), on log(model / measured), robust
against slow repeats; its leaf says the residual.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from types import SimpleNamespace
from typing import Any

import numpy as np

from costmodel.robust import Belief, Fitted, fit
from costmodel.symbols import COLLECTIVES
from costmodel.timing import kernels
from costmodel.timing.network import mesh_share
from costmodel.work.linear import gemm_bytes

Record = dict[str, Any]
ELEMENT = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
# Timings of one machine scatter by a few per cent; what lies beyond this is an outlier.
SCATTER = 0.05
# Dispatched operations of an eager CPU layer for each kernel that a fused GPU layer launches
# (515 against 135 in ten llama layers of a Megatron-Core dry run).
EAGER_OPS_PER_KERNEL = 3.8


class Leaf:
    """Makes quantities of one measurement: value, unit, how it was known, where and when."""

    def __init__(self, source: str) -> None:
        self.source, self.day = source, date.today()

    def __call__(
        self, value: float, unit: str, residual: float = 0.0, kind: str = "measured", note: str = ""
    ) -> Record:
        """One quantity as a TOML table. residual: mean |log(model / measured)|."""
        number = float(f"{value:.5g}")
        record = {"value": number, "unit": unit, "kind": kind, "source": self.source, "read_on": self.day}
        return (
            record | ({"residual": round(residual, 3)} if residual else {}) | ({"note": note} if note else {})
        )


def peaks(measured: Record) -> dict[str, float]:
    """The best rate of each format's products: what stands for the peak of a device without a data sheet. [FLOP/s]"""
    found: dict[str, float] = {}
    for entry in measured["gemm"]:
        m, n, k = entry["shape"]
        found[entry["dtype"]] = max(found.get(entry["dtype"], 0.0), 2 * m * n * k / entry["seconds"])
    return found


def copy_bandwidth(measured: Record) -> float:
    """Bytes a second of the largest copy. [byte/s]"""
    largest = max(
        (entry for entry in measured["stream"] if entry["name"] == "copy"), key=lambda one: one["bytes"]
    )
    return float(largest["bytes"] / largest["seconds"])


def tables(
    measured: Record,
    peak: Mapping[str, float],
    bandwidth: float,
    sms: int,
    leaf: Leaf,
    peer_links: int = 1,
) -> Record:
    """The fitted tables in the form of hardware_db. peak [FLOP/s] and bandwidth [byte/s]: what fractions are of.

    peer_links: those of the measured GPUs' link [1].
    """
    op = statistics.median(entry["seconds"] for entry in measured["host"])
    dtypes = dict.fromkeys(entry["dtype"] for entry in measured["gemm"])
    gemm = {dtype: gemm_table(measured, dtype, peak[dtype], bandwidth, sms, op, leaf) for dtype in dtypes}
    attended = dict.fromkeys(entry["dtype"] for entry in measured["attention"])
    return {
        "gemm": gemm,
        "attention": {
            dtype: attention_table(measured, dtype, peak[dtype], gemm[dtype]["launch"]["value"] * 1e-6, leaf)
            for dtype in attended
        },
        "memory": memory_table(measured, bandwidth, leaf),
        "host": {
            "kernel_launch": leaf(op * EAGER_OPS_PER_KERNEL * 1e6, "us"),
            "graph_launch": leaf(op * 1e6, "us"),
        },
        "collective": collective_tables(measured.get("collectives", []), leaf, peer_links),
    }


def _mean_size(found: Fitted) -> float:
    return float(np.abs(found.residuals).mean())


def gemm_table(
    measured: Record, dtype: str, peak: float, bandwidth: float, sms: int, op: float, leaf: Leaf
) -> Record:
    """Fraction of the peak, of the bandwidth where memory binds, and fixed time, through `kernels.gemm_time`."""
    entries = [entry for entry in measured["gemm"] if entry["dtype"] == dtype]
    # As the step calls them: forward (M, N, K), data gradient (M, K, N), weight gradient (N, K, M).
    order = {"forward": (0, 1, 2), "dgrad": (0, 2, 1), "wgrad": (1, 2, 0)}
    m, n, k = np.array(
        [[entry["shape"][axis] for axis in order[entry["pass"]]] for entry in entries], dtype=float
    ).T[..., None]
    seconds = np.array([[entry["seconds"]] for entry in entries])
    width = ELEMENT[dtype]
    moved = gemm_bytes(m, n, k, width, max(width, 2))

    def residuals(values: Any) -> Any:
        fraction, reached, launch = values
        modelled = kernels.gemm_time(
            m, n, k, peak=peak, fraction=fraction, num_sms=sms, wave_weight=0.0, launch=launch,
            num_bytes=moved, bandwidth=reached * bandwidth,
        )  # fmt: skip
        return np.log(modelled / seconds)

    # A product whose operands stay in a cache moves faster than memory.
    beliefs = [Belief(0.8, 0.5, 0.02, 1.2), Belief(1.0, 1.0, 0.05, 50.0), Belief(op, 1.0, 1e-7, 1e-2)]
    found = fit(residuals, beliefs, SCATTER)
    fraction, reached, launch = found.values
    return {
        "fraction": leaf(fraction, "1", _mean_size(found)),
        "bandwidth_fraction": leaf(reached, "1"),
        "launch": leaf(launch * 1e6, "us"),
        "wave_weight": leaf(0, "1"),
    }


def attention_table(measured: Record, dtype: str, peak: float, launch: float, leaf: Leaf) -> Record:
    """Fraction and half length of each pass, and the half head dimension, through `kernels.attention_time`."""
    entries = [entry for entry in measured["attention"] if entry["dtype"] == dtype]
    length, heads, dim = np.array([entry["shape"] for entry in entries], dtype=float).T[..., None]
    flops = 2 * length**2 * heads * dim
    forward = np.array([[entry["forward"]["seconds"]] for entry in entries])
    both = np.array([[entry["both"]["seconds"]] for entry in entries])
    backward = np.maximum(both - forward, 0.2 * both)

    def modelled(factor: float, fraction: float, half_seq: float, half_dim: float) -> Any:
        return kernels.attention_time(
            factor * flops, length, dim, peak=peak, fraction=fraction, half_seq=half_seq, half_dim=half_dim,
            launch=launch,
        )  # fmt: skip

    def residuals(values: Any) -> Any:
        first, second = (
            modelled(1.0, values[0], values[1], values[4]),
            modelled(2.5, values[2], values[3], values[4]),
        )
        return np.log(np.concatenate([first / forward, second / backward]))

    halves = Belief(64.0, 1.5, 0.1, 1e4)
    fractions = Belief(0.5, 1.0, 0.005, 2.0)
    found = fit(residuals, [fractions, halves, fractions, halves, Belief(32.0, 1.0, 0.1, 1e3)], SCATTER)
    values, size = found.values, _mean_size(found)
    return {
        "forward": {"fraction": leaf(values[0], "1", size), "half_seq": leaf(values[1], "1")},
        "backward": {"fraction": leaf(values[2], "1", size), "half_seq": leaf(values[3], "1")},
        "half_dim": leaf(values[4], "1"),
    }


def memory_table(measured: Record, bandwidth: float, leaf: Leaf) -> Record:
    """Fractions of the copy's bandwidth on the cost model's nominal bytes; eager kernels show as low ones."""
    streams = {entry["name"]: entry for entry in measured["stream"]}

    def fraction(name: str) -> float:
        return float(streams[name]["bytes"] / streams[name]["seconds"] / bandwidth)

    more = streams["norm_both"]["bytes"] - streams["norm"]["bytes"]
    longer = max(streams["norm_both"]["seconds"] - streams["norm"]["seconds"], 1e-9)
    return {
        "stream": leaf(fraction("optimizer"), "1", streams["optimizer"]["spread"]),
        "norm": leaf(fraction("norm"), "1", streams["norm"]["spread"]),
        "norm_backward": leaf(more / longer / bandwidth, "1"),
        "elementwise": leaf(fraction("elementwise_both"), "1", streams["elementwise_both"]["spread"]),
    }


def wire_factor(kind: str, ranks: int, peer_links: int = 1) -> float:
    """Bytes a rank puts on its link over the bytes of the buffer: nccl-tests' bus over algorithm bandwidth. [1]

    Over the share of the link that so many ranks of a mesh reach; a message between two is of their one link.
    """
    if kind == "send_recv":
        return 1.0
    share = float(mesh_share(SimpleNamespace(peer_links=peer_links), ranks))
    return (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1) / share


def fit_messages(points: Sequence[tuple[float, int, float]]) -> Fitted:
    """Latency, bandwidth, latency of each further rank and half_ranks, in the form of `network.domain_time`, robustly.

    points: bytes on the wire, ranks, seconds. With groups of one size the last two are zero.
    """
    size, ranks, seconds = np.array(points, dtype=float).T[..., None]
    small, large = float(seconds[np.argmin(size), 0]), float(seconds[np.argmax(size), 0])
    start = (max(float(seconds.min()), 1e-7), float(size.max() / max(large - small, 0.1 * large)))
    several = len(np.unique(ranks)) > 1

    def residuals(values: Any) -> Any:
        latency, bandwidth, per_rank, half = values
        growth = ranks / (ranks + half * several)
        modelled = latency + several * per_rank * (ranks - 1) + size / (bandwidth * growth)
        return np.log(modelled / seconds)

    beliefs = [
        Belief(start[0], 3.0),
        Belief(start[1], 3.0),
        Belief(start[0] / 4, 1.5),
        Belief(0.1, 1.5, 1e-3, 10.0),
    ]
    # Messages scatter more than kernels: ranks meet late.
    return fit(residuals, beliefs, 2 * SCATTER)


def collective_tables(entries: Sequence[Record], leaf: Leaf, peer_links: int = 1) -> Record:
    """Latency and bandwidth of each kind. One protocol: both forms of the two-protocol formula are the same line.

    Bandwidths are those of a whole mesh, as the cost model reads them, but for send_recv, which has one link.
    """
    found: Record = {}
    for kind in (*COLLECTIVES, "send_recv"):
        own = [entry for entry in entries if entry["kind"] == kind]
        if not own:
            continue
        # The lower quartile: other work makes ranks meet late, which is no cost of the message.
        points = [
            (entry["bytes"] * wire_factor(kind, entry["ranks"], peer_links), entry["ranks"], entry["quick"])
            for entry in own
        ]
        fitted = fit_messages(points)
        latency, bandwidth, per_rank, half = fitted.values
        size = _mean_size(fitted)
        if kind == "send_recv":
            found[kind] = {
                "latency": leaf(latency * 1e6, "us", size),
                "bandwidth": leaf(bandwidth / 1e9, "GB/s", size),
            }
            continue
        several = len({ranks for _, ranks, _ in points}) > 1
        found[kind] = {
            **{name: leaf(latency * 1e6, "us", size) for name in ("latency", "low_latency")},
            **{
                name: leaf(per_rank * 1e6 * several, "us")
                for name in ("latency_per_rank", "low_latency_per_rank")
            },
            **{name: leaf(bandwidth / 1e9, "GB/s", size) for name in ("bandwidth", "low_latency_bandwidth")},
            "half_ranks": leaf(half * several, "1"),
        }
    return found


def warnings_of(
    measured: Record,
    noisy: float,
    cores: int,
    shown: Callable[[float], str] = lambda share: f"{100 * share:.0f} %",
) -> list[str]:
    """What makes a measurement uncertain: other load on the machine, queueing for a core, scattered repeats."""
    found = []
    if measured.get("crowded"):
        found.append(
            f"{measured['ranks']} processes share {cores} cores: their waiting for a core is in every time"
        )
    if measured["load"] > cores:
        found.append(
            f"other work ran while measuring (load {measured['load']:.1f} on {cores} cores): times may be too long"
        )
    if measured.get("queued", 0.0) > noisy and not measured.get("crowded"):
        # The clock knows the queueing of its own thread, not that of the threads which that one waits for.
        rest = (
            "that is taken out, slower caches are not"
            if measured.get("threads", 1) == 1
            else "threads that waited for one another may make times several times too long"
        )
        found.append(f"{shown(measured['queued'])} of the time went into waiting for a core: {rest}")
    spread = statistics.median(entry["spread"] for entry in measured["gemm"])
    if spread > noisy:
        found.append(f"repeats of one matmul differ by {shown(spread)}: measure again on a quiet machine")
    return found
