"""The profile of this machine: measured constants in the schema of hardware_db, kept in the user's cache.

`executor.workers.calibrate` measures; here its medians become constants (two-point and least-squares
fits) and a TOML file that `--gpu` takes like any other. Sourced data is never edited.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import statistics
import tempfile
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from executor.launch import run_worker

SECONDS = 12.0
# Dispatched operations of an eager CPU layer for each kernel that a fused GPU layer launches
# (515 against 135 in ten llama layers of a Megatron-Core dry run).
EAGER_OPS_PER_KERNEL = 3.8
NOISY = 0.10  # spread above which a measurement is flagged

Record = dict[str, Any]


def home() -> Path:
    """Folder of profiles and run records: $ADVISOR_HOME, else the user's cache folder."""
    if os.environ.get("ADVISOR_HOME"):
        return Path(os.environ["ADVISOR_HOME"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "advisor"


def profile_path(processes: int) -> Path:
    """File of the profile measured on this machine, with this torch and this many processes."""
    try:
        torch = metadata.version("torch").replace("+", "-")
    except metadata.PackageNotFoundError:
        torch = "none"
    return home() / f"local-{platform.node() or 'machine'}-{os.cpu_count()}-torch{torch}-{processes}.toml"


def local_profile(processes: int, again: bool, tell: Callable[[str], None]) -> tuple[Path, list[str]]:
    """The profile of this machine, measured now when there is none (or `again`), and warnings about it."""
    path = profile_path(processes)
    if path.is_file() and not again:
        tell(f"using the profile of this machine, {path}")
        return path, _kept_warnings(path)
    tell(
        f"measuring this machine with {processes} processes, about {SECONDS:.0f} s: matmul, attention, memory, gloo"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the profile, so that a folder that cannot be written is known at once, and a log outlives failure.
    folder = Path(tempfile.mkdtemp(prefix="measuring-", dir=path.parent))
    out = folder / "measured.json"
    try:
        run_worker("executor.workers.calibrate", [str(out), str(SECONDS)], processes, folder, 180.0, tell)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise
    measured = json.loads(out.read_text())
    shutil.rmtree(folder)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(tomli_w.dumps(profile(measured, processes)))
    os.replace(temporary, path)
    return path, warnings_of(measured)


def _kept_warnings(path: Path) -> list[str]:
    """What was uncertain when an older profile was measured; a broken file is told by its loader."""
    try:
        kept = tomllib.loads(path.read_text()).get("warnings", [])
    except (OSError, ValueError):
        return []
    return [f"{warning} (when the profile was measured; --recalibrate measures again)" for warning in kept]


def warnings_of(measured: Record) -> list[str]:
    """What makes the profile uncertain: other load on the machine, or scattered repeats."""
    found = []
    cores = os.cpu_count() or 1
    if measured["load"] > cores:
        found.append(
            f"other work ran while measuring (load {measured['load']:.1f} on {cores} cores): times may be too long"
        )
    spreads = [entry["spread"] for entry in measured["gemm"]]
    if statistics.median(spreads) > NOISY:
        found.append(
            f"repeats of one matmul differ by {statistics.median(spreads):.0%}: measure again on a quiet machine"
        )
    return found


def fit_line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Latency and bandwidth of t = latency + bytes / bandwidth from (bytes, seconds), by relative error.

    The smallest messages give the latency (their quickest), the largest the bandwidth; robust against one
    slow repeat, which on a shared machine is common.
    """
    ordered = sorted(points)
    latency = min(seconds for _, seconds in ordered[: max(1, len(ordered) // 2)])
    rates = [size / (seconds - latency) for size, seconds in ordered[-2:] if seconds > latency]
    return latency, (sum(rates) / len(rates) if rates else ordered[-1][0] / ordered[-1][1])


def profile(measured: Record, processes: int) -> Record:
    """The TOML document of a measurement."""
    today = datetime.date.today()
    source = f"measured here with torch {measured['torch']}, {processes} processes"

    def leaf(value: float, unit: str, spread: float = 0.0, kind: str = "measured", note: str = "") -> Record:
        record: Record = {
            "value": float(f"{value:.5g}"),
            "unit": unit,
            "kind": kind,
            "source": source,
            "read_on": today,
        }
        return record | ({"residual": round(spread, 3)} if spread else {}) | ({"note": note} if note else {})

    rates = [
        (2 * m * n * k / entry["seconds"], entry["spread"])
        for entry in measured["gemm"]
        for m, n, k in [entry["shape"]]
    ]
    best = max(rate for rate, _ in rates)
    flops = sum(2 * m * n * k for entry in measured["gemm"] for m, n, k in [entry["shape"]])
    typical = flops / sum(entry["seconds"] for entry in measured["gemm"])
    memory = _memory_bytes() / max(1, processes)
    copy = measured["stream"]["copy"]
    bandwidth = copy["bytes"] / copy["seconds"]
    op = measured["host"]["seconds"] / 100
    return {
        "warnings": warnings_of(measured),
        "gpu": {
            "name": "local",
            "title": f"this machine ({platform.processor() or platform.machine()}, {os.cpu_count()} cores), CPU",
            "vendor": "local",
            "generation": "cpu",
            "sm_count": leaf(1, "1"),
            "hbm_capacity_usable": leaf(
                memory / 2**30, "GiB", note="memory of the machine over the processes"
            ),
            "hbm_bandwidth": leaf(bandwidth / 1e9, "GB/s", copy["spread"]),
            "power": leaf(65, "W", kind="assumed", note="a processor's share; not measured"),
            "peak_fp32": leaf(best / 1e9, "GFLOP/s", note="the best product measured"),
        },
        "cluster": {
            "name": "local",
            "title": f"{processes} processes on this machine, gloo",
            "gpus_per_node": os.cpu_count() or 1,
            "domain_size": 2**16,
            "intra": "shared-memory",
            "inter": "shared-memory",
            "host_link": "shared-memory",
        },
        "links": {
            "shared-memory": {
                "title": "shared memory of this machine",
                "bandwidth": leaf(bandwidth / 1e9, "GB/s"),
                "latency": leaf(50, "us", kind="assumed"),
            }
        },
        "calibration": {
            "gemm": {
                "fp32": _gemm(leaf, typical / best, op, statistics.median(spread for _, spread in rates))
            },
            "attention": {"fp32": _attention(leaf, measured["attention"], best)},
            "memory": _memory(leaf, measured["stream"], bandwidth),
            "host": {
                "kernel_launch": leaf(op * EAGER_OPS_PER_KERNEL * 1e6, "us"),
                "graph_launch": leaf(op * 1e6, "us"),
            },
            "collective": _collectives(leaf, measured["collectives"]),
            "step": _step(leaf),
        },
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gemm(leaf: Callable[..., Record], fraction: float, op: float, spread: float) -> Record:
    return {
        "fraction": leaf(fraction, "1", spread),
        "bandwidth_fraction": leaf(1, "1"),
        "launch": leaf(op * 1e6, "us"),
        "wave_weight": leaf(0, "1"),
    }


def _attention(leaf: Callable[..., Record], entries: list[Record], best: float) -> Record:
    """Rates at the shortest and the longest sequence of head dimension 32 give fraction and half length."""

    def rate(entry: Record, backward: bool) -> float:
        s, heads, d = entry["shape"]
        flops = 2 * s * s * heads * d
        forward = entry["forward"]["seconds"]
        return float(
            2.5 * flops / max(entry["both"]["seconds"] - forward, 1e-9) if backward else flops / forward
        )

    def half_length(backward: bool) -> float:
        (s0, r0), (s1, r1) = ((entry["shape"][0], rate(entry, backward)) for entry in (same[0], same[-1]))
        return max(0.0, (r1 / r0 - 1) / (1 / s0 - r1 / r0 / s1)) if 1 / s0 > r1 / r0 / s1 else 0.0

    def long_rate(entry: Record, backward: bool) -> float:
        return rate(entry, backward) * (1 + half_length(backward) / entry["shape"][0])

    same = [entry for entry in entries if entry["shape"][2] == entries[0]["shape"][2]]
    wide = entries[-1]
    # rate(d) ~ 1 / (1 + half / d): from two head dimensions, both at the rate of endless sequences.
    d0, d1 = same[-1]["shape"][2], wide["shape"][2]
    ratio = min(max(long_rate(wide, False) / long_rate(same[-1], False), 1.01), d1 / d0 * 0.99)
    half_dim = (ratio - 1) * d0 * d1 / (d1 - ratio * d0)
    at_dim = (1 + half_dim / 128) / (1 + half_dim / d0)
    table: Record = {}
    for name, backward in (("forward", False), ("backward", True)):
        table[name] = {
            "fraction": leaf(long_rate(same[-1], backward) / best / at_dim, "1"),
            "half_seq": leaf(half_length(backward), "1"),
        }
    table["half_dim"] = leaf(half_dim, "1")
    return table


def _memory(leaf: Callable[..., Record], streams: Record, bandwidth: float) -> Record:
    """Fractions of the copy bandwidth on the cost model's nominal bytes; eager kernels show as low ones."""

    def fraction(name: str) -> float:
        return float(streams[name]["bytes"] / streams[name]["seconds"] / bandwidth)

    def backward(name: str) -> float:
        num = streams[f"{name}_both"]["bytes"] - streams[name]["bytes"]
        return float(
            num / max(streams[f"{name}_both"]["seconds"] - streams[name]["seconds"], 1e-9) / bandwidth
        )

    return {
        "stream": leaf(fraction("optimizer"), "1", streams["optimizer"]["spread"]),
        "norm": leaf(fraction("norm"), "1", streams["norm"]["spread"]),
        "norm_backward": leaf(backward("norm"), "1"),
        "elementwise": leaf(fraction("elementwise_both"), "1", streams["elementwise_both"]["spread"]),
    }


def _collectives(leaf: Callable[..., Record], measured: Record) -> Record:
    tables: Record = {}
    for name, entries in measured.items():
        ranks = entries[0]["ranks"]
        factor = 1.0 if name == "send_recv" else (ranks - 1) / ranks * (2 if name == "all_reduce" else 1)
        latency, bandwidth = fit_line([(entry["bytes"] * factor, entry["seconds"]) for entry in entries])
        if name == "send_recv":
            tables[name] = {"latency": leaf(latency * 1e6, "us"), "bandwidth": leaf(bandwidth / 1e9, "GB/s")}
            continue
        # One protocol: both forms of the two-protocol formula are the same line.
        tables[name] = {
            **{key: leaf(latency * 1e6, "us") for key in ("latency", "low_latency")},
            **{key: leaf(0, "us") for key in ("latency_per_rank", "low_latency_per_rank")},
            **{key: leaf(bandwidth / 1e9, "GB/s") for key in ("bandwidth", "low_latency_bandwidth")},
            "half_ranks": leaf(0, "1"),
        }
    return tables


def _step(leaf: Callable[..., Record]) -> Record:
    """Step constants: kernels were measured as the step runs them, so their factors are one."""
    note = "kernels were measured under the load of a run"
    rates = (
        "gemm_rate",
        "library_rate",
        "attention_rate",
        "elementwise_rate",
        "kernel_fusion",
        "intra_rate",
        "inter_rate",
    )
    return {
        **{name: leaf(1, "1", note=note) for name in rates},
        "overlap_slowdown": leaf(1, "1", kind="assumed", note="communication runs on the same cores"),
        "unfused_gemm_fraction": leaf(1, "1", kind="assumed"),
        "straggler": leaf(0, "1", kind="assumed"),
        "step_overhead": leaf(5, "ms", kind="assumed"),
        "host_kernel": leaf(0, "us", note="a CPU issues and computes in one; counted as launch gaps"),
        "fragmentation": leaf(0, "1", kind="assumed"),
        "graph_pool": leaf(0, "1", kind="assumed"),
        "context_bytes": leaf(0, "byte", note="the record counts memory beyond the loaded libraries"),
    }
