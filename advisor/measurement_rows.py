"""Rows of a table of published training runs, as text by column with the types that columns have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Columns that hold a number above 0 or nothing; of COUNTS a whole one, of OFFSETS also 0.
COUNTS = ("gpus", "gbs", "mbs", "seq_len", "tp", "pp", "cp", "vp", "ep", "etp")
OFFSETS = ("act_offload_layers", "first_stage_layers", "last_stage_layers")
AMOUNTS = ("step_time_s", "tokens_per_sec_per_gpu", "peak_memory_gb", "peak_reserved_gb")
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


@dataclass(frozen=True)
class Row:
    """One row of a table, as text by column. surplus: its cells and the header's columns, where it has more."""

    values: Mapping[str, str]
    surplus: str = ""

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

    def fault(self) -> str:
        """The first number that cannot be meant: its column, what stands there and the rule; '' when none."""
        if self.surplus:
            return f"{self.surplus}: which cell is whose is open. Quote cells with commas, and write 8192, not 8,192."
        for name in (*COUNTS, *OFFSETS, *AMOUNTS):
            text = self.text(name).strip()
            value = self.number(name)
            if not text or (name in OFFSETS and text.strip("0.") == ""):
                continue
            whole = "whole " if name not in AMOUNTS else ""
            if value is None or (whole and value % 1):
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                return (
                    f"{name} {shown!r} is not a {whole}number above 0. Correct it, or leave the cell empty."
                )
        return ""

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
