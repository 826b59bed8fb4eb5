"""Memory on published runs: `python benchmarks/memory_accuracy.py MEASUREMENTS.csv` prints the section.

Allocated is what torch's allocator counts as live tensors at the peak, reserved what it took from the device.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from advisor.measurements import read_rows
from advisor.validation import validate

Result = Mapping[str, Any]
KINDS = (
    ("allocated", "allocated_gib", "measured_memory_gib"),
    ("reserved", "reserved_gib", "measured_reserved_gib"),
)


def table(headers: list[str], rows: Iterable[list[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]]


def memory_section(report: Mapping[str, Any]) -> list[str]:
    """The section Memory: errors by source against published peaks, runs said not to fit, every published peak."""
    rows = report["rows"]
    unfit = [row for row in rows if not row["fits"]]
    lines = [
        "## Memory",
        "",
        "Published peaks against the prediction. Allocated is what the allocator counts as live tensors, reserved "
        "what it took from the device (torchtitan prints reserved alone).",
        "",
        *table(
            ["source", "figure", "runs", "mean error", "median", "worst", "bias"],
            [line for kind in KINDS for line in _by_source(rows, *kind)],
        ),
        "",
        f"{1 - len(unfit) / max(len(rows), 1):.1%} of {len(rows)} published runs are said to fit.",
    ]
    if unfit:
        lines += [
            "",
            "Said not to fit:",
            "",
            *table(
                ["row", "run", "predicted [GiB]", "device [GiB]"],
                [
                    [
                        row["id"],
                        f"{row['model']} x{row['gpus']} {row['plan']}",
                        f"{row['peak_memory_gib']:.1f}",
                        f"{row['device_gib']:.1f}",
                    ]
                    for row in unfit
                ],
            ),
        ]
    lines += [
        "",
        *table(
            ["row", "plan", "figure", "published [GiB]", "predicted [GiB]", "error"],
            [
                [
                    row["id"],
                    row["plan"],
                    kind,
                    f"{row[there]:.1f}",
                    f"{row[here]:.1f}",
                    f"{_error(row, here, there):+.1%}",
                ]
                for row in rows
                for kind, here, there in KINDS
                if row[there]
            ],
        ),
    ]
    return lines


def _error(row: Result, here: str, there: str) -> float:
    return float(row[here] / row[there] - 1)


def _by_source(rows: Iterable[Result], kind: str, here: str, there: str) -> list[list[str]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row[there]:
            groups[row["source"]].append(_error(row, here, there))
    return [
        [
            source,
            kind,
            str(len(errors)),
            f"{statistics.fmean(map(abs, errors)):.1%}",
            f"{statistics.median(map(abs, errors)):.1%}",
            f"{max(map(abs, errors)):.1%}",
            f"{statistics.fmean(errors):+.1%}",
        ]
        for source, errors in sorted(groups.items())
    ]


if __name__ == "__main__":
    print("\n".join(memory_section(validate(read_rows(Path(sys.argv[1]))))))
