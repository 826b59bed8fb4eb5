"""Records of runs on one GPU beside predictions of today: with shipped constants, with kernels measured there, and with
what the other runs taught on top.

A folder holds a record of each run, as `executor.run` wrote it, and perhaps the machine's profile (profile.toml).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hardware_db
from costmodel.predict import predict
from executor.calibrate_fit import learn, tell_apart
from executor.calibrate_records import Observed, read_observed
from executor.record import read_steps
from executor.run_job import stack_of
from executor.summary import tensors
from hardware_db import Cluster

PROFILE, LEARNED = "profile.toml", "learned.toml"


@dataclass(frozen=True)
class Row:
    """One run: seconds measured, their spread, and predicted with shipped constants, with kernels measured there, and
    with what the other runs taught (nan where it is not known); bytes of live tensors on the worst rank, and predicted.
    """

    name: str
    measured: float
    spread: float
    shipped: float
    kernels: float
    others: float
    memory: float
    memory_predicted: float
    bound_by: str = ""


# What a prediction rests on, by the field of a row.
BASES = {"shipped": "as shipped", "kernels": "kernels measured", "others": "told by the others"}


def records_of(folder: Path) -> list[Path]:
    """Records of a folder that hold a measured step, in the order of their names."""
    return [
        each
        for each in sorted(folder.iterdir())
        if (each / "job.json").is_file() and any(not step["warmup"] for step in read_steps(each))
    ]


def read_rows(folder: Path, cluster: Cluster) -> list[Row]:
    """A row for each record. cluster: the machine, with the constants that ship."""
    records = records_of(folder)
    runs = [read_observed(record) for record in records]
    profile = folder / PROFILE
    own = hardware_db.load_cluster(str(profile)) if profile.is_file() else None
    apart = told_apart(runs, own or cluster)
    return [_row(run, record, cluster, own, apart) for run, record in zip(runs, records, strict=True)]


def told_apart(runs: Sequence[Observed], cluster: Cluster) -> Mapping[str, float]:
    """log(predicted / measured) of each run by constants that the others taught, {} for few runs."""
    return tell_apart(learn(runs, cluster), runs, cluster).apart if runs else {}


def _row(
    run: Observed, record: Path, cluster: Cluster, own: Cluster | None, apart: Mapping[str, float]
) -> Row:
    stack = stack_of(run.device == "cuda")
    shipped = predict(run.model, run.workload, cluster, run.plan, stack)
    kernels = predict(run.model, run.workload, own, run.plan, stack).step_time_s if own else math.nan
    measured = run.seconds["step"]
    return Row(
        run.name,
        measured,
        run.spread,
        shipped.step_time_s,
        kernels,
        measured * math.exp(apart.get(run.name, math.nan)),
        max(tensors(read_steps(record)), default=math.nan),
        shipped.allocated_bytes,
        shipped.bound_by,
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Predicted beside measured, a line each, and the median errors."""
    lines = [
        f"{'run':29} {'measured':>9} {'spread':>6} "
        + " ".join(f"{title:>18}" for title in BASES.values())
        + "  live tensors"
    ]
    for row in rows:
        told = " ".join(_told(getattr(row, name), row.measured) for name in BASES)
        memory = (
            f"{row.memory / 2**30:6.1f} GiB {row.memory_predicted / row.memory - 1:+6.1%}"
            if row.memory > 0
            else f"{'-':>6}"
        )
        lines.append(f"{row.name:29} {row.measured:8.3f}s {row.spread:6.1%} {told}  {memory}")
    for name, title in BASES.items():
        if (error := median_error(rows, name)) is not None:
            lines.append(f"median error, {title}: {error:.1%}")
    return lines


def median_error(rows: Sequence[Row], name: str) -> float | None:
    """Median |predicted / measured - 1| of one basis, None where no row has it. [1]"""
    errors = [
        abs(getattr(row, name) / row.measured - 1) for row in rows if not math.isnan(getattr(row, name))
    ]
    return statistics.median(errors) if errors else None


def _told(predicted: float, measured: float) -> str:
    return f"{'-':>18}" if math.isnan(predicted) else f"{predicted:9.3f}s {predicted / measured - 1:+7.1%}"
