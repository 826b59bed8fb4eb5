"""Fit the constants of collectives inside one domain from NCCL curves; used by `tools/fit_tables.py`."""

from __future__ import annotations

import csv
import datetime
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from scipy.optimize import least_squares

from costmodel.symbols import COLLECTIVE_CONSTANTS
from costmodel.timing import network

READ_ON = datetime.date(2026, 11, 21)
AIC = "NVIDIA aiconfigurator@095f58a (Apache-2.0)"


def leaf(value: float, unit: str, kind: str, source: str, **extra: object) -> dict[str, object]:
    """One constant as the TOML files hold it."""
    return {
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "kind": kind,
        "source": source,
        "read_on": READ_ON,
        **extra,
    }


def collective_tables(
    folder: Path, systems: Iterable[tuple[str, str]], report: list[str]
) -> dict[str, dict[str, dict[str, object]]]:
    """[collective.OPERATION] of every GPU with an NCCL table: `domain_time` fitted over ranks and sizes."""
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    with (folder / "kernels" / "nccl_intra_aiconfigurator.csv").open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            rows[row["system"], row["op"]].append(
                (float(row["gpus"]), float(row["size_bytes"]), float(row["time_us"]))
            )
    names = {
        "all_gather": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "all_reduce": "all_reduce",
        "alltoall": "all_to_all",
    }
    tables: dict[str, dict[str, dict[str, object]]] = {}
    report += [
        "",
        "## Collectives in one domain (NCCL, 2 to 8 GPUs, 512 B to 512 MiB)",
        "",
        "| GPU | operation | points | bandwidth [GB/s] | half ranks | latency [us] + per rank | mean abs log error |",
        "|---|---|---|---|---|---|---|",
    ]
    for gpu, system in systems:
        for table_name, operation in names.items():
            points = rows.get((system, table_name))
            if not points:
                continue
            ranks, size, us = np.array(points).T
            wire = size * (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)

            def model(
                p: np.ndarray, operation: str = operation, wire: np.ndarray = wire, ranks: np.ndarray = ranks
            ) -> np.ndarray:
                x = SimpleNamespace(
                    intra_scale=1.0,
                    peer_links=1,
                    **{
                        f"{operation}_{name}": value
                        for name, value in zip(COLLECTIVE_CONSTANTS, np.exp(p), strict=True)
                    },
                )
                return network.domain_time(x, operation, wire, ranks)

            def cost(p: np.ndarray, us: np.ndarray = us, model=model) -> np.ndarray:
                return np.log(model(p) / (us * 1e-6))

            starts = [
                [15e-6, 4e-6, 400e9, 0.8, 7e-6, 1.5e-6, 150e9],
                [60e-6, 1e-6, 250e9, 0.5, 12e-6, 1e-6, 80e9],
                [20e-6, 10e-6, 30e9, 0.2, 5e-6, 2e-6, 10e9],
            ]
            bounds = np.log(
                [[1e-6, 1e-8, 1e9, 0.01, 1e-6, 1e-8, 1e8], [200e-6, 30e-6, 2e12, 8, 60e-6, 10e-6, 1e12]]
            )
            tries = [
                least_squares(cost, np.log(start), bounds=bounds, loss="soft_l1", f_scale=0.1)
                for start in starts
            ]
            result = min(tries, key=lambda one: one.cost)
            values = dict(zip(COLLECTIVE_CONSTANTS, np.exp(result.x), strict=True))
            error = float(np.abs(cost(result.x)).mean())
            units = {
                "bandwidth": ("GB/s", 1e-9),
                "low_latency_bandwidth": ("GB/s", 1e-9),
                "half_ranks": ("1", 1.0),
            }
            tables.setdefault(gpu, {})[operation] = {}
            for name, value in values.items():
                unit, scale = units.get(name, ("us", 1e6))
                extra = (
                    {"residual": float(f"{error:.2g}"), "num_points": len(points)}
                    if name == "bandwidth"
                    else {}
                )
                tables[gpu][operation][name] = leaf(
                    value * scale, unit, "measured", f"{AIC}, nccl-tests on one node", **extra
                )
            report.append(
                f"| {gpu} | {operation} | {len(points)} | {values['bandwidth'] / 1e9:.0f} | {values['half_ranks']:.2f} "
                f"| {values['latency'] * 1e6:.1f} + {values['latency_per_rank'] * 1e6:.1f} | {error:.3f} |"
            )
    return tables
