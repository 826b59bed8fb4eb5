"""The section of docs/accuracy.md on rows read as if nobody knew their source: what a row states, and its software.

`measurement_habits.toml` knows how each published source runs. A source that it does not know, as a user's own table,
gives no more than its columns and the name of its software, and so are all rows read here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from accuracy_sections import percent, table

from advisor.measurements import Row
from advisor.validation import validate

# Software whose name stands in a row's source alone.
SOFTWARE = ("torchtitan", "AutoModel", "Megatron-Bridge")
# Predictions closer than this are of the same reading.
SAME = 0.003
SHOWN = 10


def nameless(row: Row) -> Row:
    """A row without its source: the name of its software stays."""
    software = next((name for name in SOFTWARE if name in row.text("source")), "unknown")
    return Row(row.values | {"source": software, "source_file": "", "source_commit": ""})


def blind_section(rows: Sequence[Row], report: dict[str, Any]) -> list[str]:
    """Errors and coverage of the report's rows read without their source, and of those that are read otherwise so."""
    known = {row["id"]: row for row in report["rows"]}
    blind = [row for row in validate(map(nameless, rows))["rows"] if row["id"] in known]
    changed = [row for row in blind if abs(row["predicted"] / known[row["id"]]["predicted"] - 1) > SAME]
    parts = (
        ("all rows, as shipped", list(known.values())),
        ("all rows, source unknown", blind),
        ("rows read otherwise so, as shipped", [known[row["id"]] for row in changed]),
        ("rows read otherwise so, source unknown", changed),
    )
    sources: dict[str, list[dict[str, Any]]] = {}
    for row in changed:
        sources.setdefault(known[row["id"]]["source"], []).append(row)
    most = sorted(sources.items(), key=lambda each: -len(each[1]))[:SHOWN]
    return [
        "",
        "## If nobody knew the source",
        "",
        "How a published source runs is known from its recipes, scripts and pages (`advisor/measurement_habits.toml`). "
        "A table that is not known, as a user's own, tells no more than its columns and its software. Read so, "
        f"{len(changed)} of {len(blind)} rows are read otherwise. What such rows leave open is read in other ways too, "
        "one at a time, and the interval holds them all (`advisor/measurement_readings.py`).",
        "",
        *table(("rows", "runs", "mean", "median", "in 90 % interval"), [_line(*part) for part in parts]),
        "",
        "Where most are read otherwise, source unknown:",
        "",
        *table(("source", "runs", "mean", "median", "in 90 % interval"), [_line(*part) for part in most]),
    ]


def _line(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    sizes = [abs(row["rel_error"]) for row in rows]
    inside = statistics.mean(row["low"] <= row["measured"] <= row["high"] for row in rows)
    told = (percent(value) for value in (statistics.mean(sizes), statistics.median(sizes), inside))
    return [name, str(len(rows)), *told]
