"""The section of docs/accuracy.md on rows read without their source: what columns state, and the name of the software.

`measurements/habits.toml` knows how each published source runs. A table that it does not know, as a user's own, gives
no more than its columns and its software, and so are all rows read here. Of software whose recipes are known by its
release (containers of NeMo) that is as much; the others are told apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from accuracy_sections import percent, table

from advisor.measurements import Row
from advisor.measurements.habits import habit_of
from advisor.validation import validate

# Software whose name stands in a row's source alone.
SOFTWARE = ("torchtitan", "AutoModel", "Megatron-Bridge")
# What tells the source, or was joined from its repository.
OF_SOURCE = ("source_file", "source_commit", "recipe_key", "recipe_match")


def nameless(row: Row) -> Row:
    """A row without its source and the recipe that was joined to it: the name of its software stays."""
    software = next((name for name in SOFTWARE if name in row.text("source")), "unknown")
    return Row(row.values | dict.fromkeys(OF_SOURCE, "") | {"source": software})


def blind_section(rows: Sequence[Row], report: dict[str, Any]) -> list[str]:
    """Errors and coverage of the report's rows without their source, and of those whose recipe nobody knows then."""
    known = {row["id"]: row for row in report["rows"]}
    without = [nameless(row) for row in rows]
    open_ids = {row.text("id") for row in without if habit_of(row).get("anyone", False)}
    blind = [row for row in validate(without)["rows"] if row["id"] in known]
    some = [row for row in blind if row["id"] in open_ids]
    parts = (
        ("all rows, as shipped", list(known.values())),
        ("all rows, source unknown", blind),
        ("no known recipe then, as shipped", [known[row["id"]] for row in some]),
        ("no known recipe then, source unknown", some),
    )
    sources: dict[str, list[dict[str, Any]]] = {}
    for row in some:
        sources.setdefault(known[row["id"]]["source"], []).append(row)
    most = sorted(sources.items(), key=lambda each: -len(each[1]))
    return [
        "",
        "## If nobody knew the source",
        "",
        "How a published source runs is known from its recipes, scripts and pages "
        "(`advisor/measurements/habits.toml`). A table that is not known, as a user's own, tells no more than its "
        f"columns and its software. So are all rows read here. {len(blind) - len(some)} are of software whose recipes "
        f"follow from its release. Of the other {len(some)} an empty column may stand for anything: it is read in "
        "other ways too, one at a time, and the interval holds them all (`advisor/measurements/readings.py`).",
        "",
        *table(("rows", "runs", "mean", "median", "in 90 % interval"), [_line(*part) for part in parts]),
        "",
        "Those without a known recipe, by source:",
        "",
        *table(("source", "runs", "mean", "median", "in 90 % interval"), [_line(*part) for part in most]),
    ]


def _line(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    sizes = [abs(row["rel_error"]) for row in rows]
    inside = statistics.mean(row["low"] <= row["measured"] <= row["high"] for row in rows)
    told = (percent(value) for value in (statistics.mean(sizes), statistics.median(sizes), inside))
    return [name, str(len(rows)), *told]
