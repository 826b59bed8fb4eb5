"""Rows of a table of published training runs, as text by column with the types that columns have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


@dataclass(frozen=True)
class Row:
    """One row of a table, as text by column."""

    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """A column's text, '' when empty or absent."""
        return self.values.get(name, "") or ""

    def number(self, name: str) -> float | None:
        """A column as a number above 0, None when empty or not one."""
        try:
            value = float(self.text(name))
        except ValueError:
            return None
        return value if math.isfinite(value) and value > 0 else None

    def count(self, name: str, default: int = 1) -> int:
        """A column as a whole number, `default` when empty."""
        value = self.number(name)
        return int(value) if value is not None else default

    def flag(self, name: str, default: bool) -> bool:
        """A column of 0 and 1, or of false and true, `default` when empty: unknown is not off."""
        return SWITCHES.get(self.text(name).strip().lower(), default)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON column, {} when empty. ValueError in one line when it is no object."""
        text = self.text(name).strip() or "{}"
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise ValueError(
                f'{name} {shown!r} is no JSON object. Write it as {{"num_layers": 40}}, or leave it empty.'
            )
        return found
