"""TOML files as tables that check what they give: every error is one line with file, key, rule and way out."""

from __future__ import annotations

import difflib
import math
import stat
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from hardware_db.schema import CALIBRATION_KEYS, KINDS, Quantity
from hardware_db.units import BASE, LARGEST, UNITS_OF, to_base

LARGEST_FILE = 2**20  # bytes; a data file is a few KiB
DEEPEST = 8  # levels of fitted tables; ours have four
# A value and unit to show for each base unit, where one is missing.
EXAMPLES = {
    "byte/s": (8.0, "TB/s"),
    "byte": (80, "GiB"),
    "FLOP/s": (990, "TFLOP/s"),
    "s": (2, "us"),
    "1": (132, "1"),
}


def example(base: str | None) -> str:
    """A quantity of a base unit as a file writes it."""
    value, unit = EXAMPLES.get(base or "", EXAMPLES["byte/s"])
    return (
        f'{{ value = {value}, unit = "{unit}", kind = "datasheet", source = "where", read_on = 2026-11-21 }}'
    )


def shown(text: str) -> str:
    """Text of a user as it may stand in one line."""
    return text if text.isprintable() else repr(text)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """ "Did you mean a, b?" for close names, "" when none is."""
    near = difflib.get_close_matches(word, sorted(set(known)), n=3, cutoff=cutoff)
    return f"Did you mean {', '.join(near)}?" if near else ""


def read_toml(path: Path) -> Table:
    """The file as a table. ValueError in one line for whatever is wrong with it."""
    name = shown(str(path))
    if "\0" in str(path):
        raise ValueError(f"{name} is no name of a file. Name a TOML file, as in ./mine.toml.")
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{name} is a folder, not a TOML file. Name the file inside it.")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file. Write the TOML to a file and name that.")
        if status.st_size > LARGEST_FILE:
            raise ValueError(f"{name} is larger than {LARGEST_FILE >> 20} MiB, which no hardware file is.")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{name} does not exist. `advisor hardware` lists what is known.") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not text. A hardware file is TOML in UTF-8.") from None
    return Table(path, "", _parsed(name, text))


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{name} is not valid TOML: nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{name} is not valid TOML: {shown(str(error))}.") from None


@dataclass(frozen=True)
class Table:
    """One table of a file. where is its own key, "" for the whole file."""

    path: Path
    where: str
    entries: Mapping[str, Any]

    def key(self, name: str) -> str:
        """The dotted key of an entry, fit for a message."""
        return shown(f"{self.where}.{name}" if self.where else name)

    def error(self, name: str, rule: str) -> ValueError:
        """What is wrong with one entry."""
        return ValueError(f"{shown(str(self.path))}, key {self.key(name)}: {rule}")

    def text(self, name: str, default: str | None = None) -> str:
        """One line of text; `default` when the key is absent."""
        value = self.entries.get(name, default)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, f'text is missing, as in {name} = "b200".')
        line = " ".join(value.split())
        if not line.isprintable():
            raise self.error(name, f"{value!r} holds characters that cannot be printed.")
        return line

    def one_of(self, name: str, known: Collection[str], default: str) -> str:
        """A word out of a list, in small letters."""
        word = self.text(name, default).lower()
        if word not in known:
            raise self.error(name, f"{word!r} is not known. {nearest(word, known) or _listed(known)}")
        return word

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, empty when the key is absent."""
        value = self.entries.get(name, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(name, 'not a list of texts, as in ["one", "two"].')
        return tuple(value)

    def count(self, name: str, default: int) -> int:
        """A whole number from 1 to 2**20."""
        value = self.entries.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**20:
            raise self.error(name, f"{_brief(value)} is not a whole number from 1 to {2**20}.")
        return value

    def flag(self, name: str) -> bool:
        """true or false; false when the key is absent."""
        value = self.entries.get(name, False)
        if not isinstance(value, bool):
            raise self.error(name, f"{_brief(value)} is not true or false.")
        return value

    def table(self, name: str) -> Table:
        """A table inside this one, empty when the key is absent."""
        value = self.entries.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, f"not a table. Write it as [{self.key(name)}].")
        return Table(self.path, self.key(name), value)

    def tables(self) -> dict[str, Table]:
        """All entries, each of which must be a table."""
        return {name: self.table(name) for name in self.entries}

    def check_words(self, words: Collection[str], quantities: Collection[str]) -> None:
        """ValueError for a key that is not known, unless it is a quantity of its own unlike any known key."""
        for name, value in self.entries.items():
            if name in words or name in quantities:
                continue
            near = nearest(name, (*words, *quantities), 0.75)
            if near or not (isinstance(value, Mapping) and "value" in value):
                raise self.error(name, f"unknown. {near or _listed((*words, *quantities))}")

    def quantity(self, name: str, base: str | None = None, above_zero: bool = False) -> Quantity:
        """One quantity; `base` is the base unit that it must have."""
        record = self.entries.get(name)
        if record is None:
            raise self.error(name, f"missing. Write {name} = {example(base)}.")
        if not isinstance(record, Mapping) or "value" not in record or "unit" not in record:
            raise self.error(name, f"a quantity needs value and unit, as in {example(base)}.")
        table = Table(self.path, self.key(name), record)
        unit = record["unit"]
        if not isinstance(unit, str) or unit not in BASE:
            near = nearest(str(unit), BASE)
            raise self.error(name, f"unit {_brief(unit)} is unknown. {near or _listed(BASE, 'Units')}")
        if base is not None and BASE[unit] != base:
            raise self.error(name, f"unit {unit!r} does not fit. {_listed(UNITS_OF[base], 'Units')}")
        kind = record.get("kind", "assumed")
        if kind not in KINDS:
            raise self.error(name, f"kind {_brief(kind)} is not one of {', '.join(KINDS)}.")
        return Quantity(
            value=_number(self, name, record["value"], unit, above_zero),
            unit=unit,
            kind=kind,
            source=table.text("source", f"{self.path.name}, no source given"),
            read_on=_date(table, "read_on"),
            note=table.text("note") if record.get("note") else "",
            residual=_number(table, "residual", record["residual"], "1") if "residual" in record else None,
        )

    def quantities(self, bases: Mapping[str, str], above_zero: Collection[str] = ()) -> dict[str, Quantity]:
        """All quantities of the table, those of `bases` with that base unit."""
        return {
            name: self.quantity(name, bases.get(name), name in above_zero)
            for name, record in self.entries.items()
            if name in bases or (isinstance(record, Mapping) and "value" in record)
        }

    def nested(self, depth: int = 0) -> dict[str, Any]:
        """Tables within tables, a Quantity at every leaf; plain words beside them are left out.

        ValueError where they are nested too deep.
        """
        if depth > DEEPEST:
            raise ValueError(f"{shown(str(self.path))}: tables are nested deeper than {DEEPEST} levels.")
        result: dict[str, Any] = {}
        for name, record in self.entries.items():
            if isinstance(record, Mapping):
                leaf = "value" in record
                base = CALIBRATION_KEYS.get(name)
                result[name] = self.quantity(name, base) if leaf else self.table(name).nested(depth + 1)
        return result


def _number(table: Table, name: str, value: Any, unit: str, above_zero: bool = False) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    # Whole numbers beyond a float compare correctly but do not convert.
    if not number or not 0 <= value <= 1e300 or not math.isfinite(value) or (above_zero and value == 0):
        bound = "above 0" if above_zero else "from 0 up"
        raise table.error(name, f"value {_brief(value)} is not a number {bound}.")
    base = BASE[unit]
    if to_base(float(value), unit) > LARGEST[base]:
        raise table.error(
            name,
            f"value {value:g} {unit if unit != '1' else ''} is more than any machine has. Check the unit.",
        )
    return float(value)


def _date(table: Table, name: str) -> date | None:
    value = table.entries.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise table.error(name, f"{_brief(value)} is not a date, as in read_on = 2026-11-21.") from None


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"of type {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _listed(known: Iterable[str], title: str = "Known") -> str:
    return f"{title}: {', '.join(known)}."
