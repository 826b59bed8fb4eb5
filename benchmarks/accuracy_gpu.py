"""The section on runs that we measured ourselves: records in hardware_db/measured beside predictions of today."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

from accuracy_sections import percent, table

import hardware_db
from executor.gpu_records import BASES, PROFILE, Row, median_error, read_rows, records_of

MEASURED = Path(hardware_db.__file__).parent / "measured"


def gpu_sections() -> list[str]:
    """A table for each folder of records, with what the machine was."""
    lines = ["", "## Runs of our own on one GPU", ""]
    lines += [
        "Layer stacks trained by `scripts/gpu_checks.sh` with Megatron-Core and Transformer Engine. *As shipped* is",
        "what `advisor predict` says without having seen the machine. *Kernels measured* takes matrix products and",
        "attention as `advisor calibrate` measured them there. *Told by the others* adds what the other runs of the",
        "table teach (`advisor calibrate --from`), each run predicted without itself. No run is in the fit.",
    ]
    for folder in sorted(each for each in MEASURED.iterdir() if each.is_dir() and records_of(each)):
        lines += folder_section(folder)
    return lines


def folder_section(folder: Path) -> list[str]:
    """One machine's table."""
    gpu = tomllib.loads((folder / PROFILE).read_text())["gpu"]
    rows = read_rows(folder, hardware_db.resolve(gpu["name"], None)[0])
    versions = json.loads((records_of(folder)[0] / "environment.json").read_text()).get("versions", {})
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version)
    headers = [
        "run",
        "measured [s]",
        "spread",
        *BASES.values(),
        "bound by",
        "live tensors [GiB]",
        "predicted",
    ]
    medians = [
        f"{title} {percent(error)}"
        for name, title in BASES.items()
        if (error := median_error(rows, name)) is not None
    ]
    return [
        "",
        f"### {gpu['title']}, `hardware_db/measured/{folder.name}`",
        "",
        *([f"Software: {told}.", ""] if told else []),
        f"Median errors of the step: {', '.join(medians)}.",
        "",
        *table(headers, [cells(row) for row in rows]),
    ]


def cells(row: Row) -> list[str]:
    """A row of the table; errors beside the measured step."""
    errors = [getattr(row, name) / row.measured - 1 for name in BASES]
    return [
        row.name,
        f"{row.measured:.3f}",
        percent(row.spread),
        *("" if math.isnan(error) else percent(error, sign=True) for error in errors),
        row.bound_by,
        f"{row.memory / 2**30:.1f}",
        percent(row.memory_predicted / row.memory - 1, sign=True),
    ]
