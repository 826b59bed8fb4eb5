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
# Columns that hold a switch; `fsdp` may hold ranks to shard over too. Beside SWITCHES, cells that say nothing.
FLAGS = (
    "moe_a2a_overlap",
    "moe_force_balance",
    "tp_comm_overlap",
    "sequence_parallel",
    "nccl_ub",
    "fp8_param_gather",
    "grad_reduce_in_fp32",
    "precision_aware_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
)
UNSAID = ("", "-", "?", "n/a", "na", "nan", "none", "null", "unknown")
ZERO2 = (
    "zero2-like"  # in `fsdp`, as the Llama 3 paper shards: gradients and optimizer state, weights stay whole
)
SWITCHES = dict.fromkeys(("1", "1.0", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "0.0", "false", "no", "off"), False
)


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
        return self._switch_fault()

    def _switch_fault(self) -> str:
        """The first switch that is neither on nor off, which would silently count as not said; '' when none."""
        for name in ("fsdp", *FLAGS):
            text = self.text(name).strip().lower()
            ranks = name == "fsdp" and (text.isdigit() or text == ZERO2)
            if text not in UNSAID and text not in SWITCHES and not ranks:
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                return f"{name} {shown!r} is neither on nor off. Write 1 or 0, or leave the cell empty."
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
