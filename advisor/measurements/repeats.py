"""Rows that stand twice in a table: copies count once, with an id or without; other values of one id each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from advisor.measurements.rows import Row


@dataclass(frozen=True)
class Repeat:
    """An id of several rows. lines: where they stand in the file; counted: those of them that count."""

    id: str
    lines: tuple[int, ...]
    counted: tuple[int, ...]

    def words(self) -> str:
        """The id, its lines, and which of them count."""
        lines = _listed(self.lines)
        if len(self.counted) == len(self.lines):
            return f"{self.id!r} in {lines}: other values, each counts"
        count = "counts" if len(self.counted) == 1 else "count"
        return f"{self.id!r} in {lines}: {_listed(self.counted)} {count}, the rest are copies"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"id": self.id, "lines": list(self.lines), "counted": list(self.counted)}


def repeats(rows: Sequence[Row]) -> list[Repeat]:
    """Ids that more than one row has, in the order of the table; rows without an id have none in common."""
    by_id: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if name := row.text("id").strip():
            by_id[name].append(row)
    return [
        Repeat(name, tuple(row.line for row in same), tuple(row.line for row in _first_of_each(same)))
        for name, same in by_id.items()
        if len(same) > 1
    ]


def copies(rows: Sequence[Row]) -> dict[int, Row]:
    """Rows that say what an earlier one says, its id too where it has one: place in `rows` -> that row."""
    first: dict[tuple[tuple[str, str], ...], Row] = {}
    found: dict[int, Row] = {}
    for place, row in enumerate(rows):
        same = first.setdefault(_values(row), row)
        if same is not row:
            found[place] = same
    return found


def repeats_line(found: Sequence[Repeat]) -> str:
    """The ids in one sentence with the way out, "" where every id is of one row."""
    if not found:
        return ""
    shown = [each.words() for each in found[:4]]
    more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
    counted = "1 id stands" if len(found) == 1 else f"{len(found)} ids stand"
    return f"{counted} in several lines: {'; '.join(shown)}{more}. Give each run an id of its own."


def _first_of_each(rows: Sequence[Row]) -> list[Row]:
    dropped = copies(rows)
    return [row for place, row in enumerate(rows) if place not in dropped]


def _values(row: Row) -> tuple[tuple[str, str], ...]:
    """What a row says, without the columns that it leaves empty."""
    return tuple(sorted((name, text.strip()) for name, text in row.values.items() if text.strip()))


def _listed(lines: Sequence[int]) -> str:
    first, last = [str(line) for line in lines[:-1]], str(lines[-1])
    return f"lines {', '.join(first)} and {last}" if first else f"line {last}"
