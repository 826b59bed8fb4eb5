"""Rows of a table of published training runs, as text by column with the types that columns have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        """A column of 0 and 1, `default` when empty: unknown is not off."""
        return {"1": True, "0": False}.get(self.text(name), default)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON column, {} when empty or broken."""
        try:
            found = json.loads(self.text(name) or "{}")
        except json.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}
