"""A number bound to a symbol, with where it was read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A number in base units, where it was read, and what a reader must know about it (else empty)."""

    value: float
    source: str
    note: str = ""
