"""How often the order of two plans held, by how far apart they are predicted."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hardware_db.evidence import EVIDENCE_FILE

ORDER_FILE = EVIDENCE_FILE.with_name("order.toml")


@dataclass(frozen=True)
class Order:
    """Pairs of published plans of the same work that are predicted about as far apart, and how their order held.

    above, below: ends of that difference, slower over faster less 1 [1]; below is infinite for the last. right of
    `pairs` were measured in the predicted order.
    """

    above: float
    below: float
    pairs: int
    right: int

    @property
    def share(self) -> float:
        """Share whose order held. [1]"""
        return self.right / self.pairs

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"share": self.share, "pairs": self.pairs}


@lru_cache(maxsize=4)
def load_order(path: Path = ORDER_FILE) -> tuple[Order, ...]:
    """The classes of difference on file, smallest first. Source: tools/write_order.py."""
    with path.open("rb") as file:
        rows = tomllib.load(file)["order"]
    ends = [row["above"] for row in rows[1:]] + [float("inf")]
    return tuple(
        Order(row["above"], end, row["pairs"], row["right"]) for row, end in zip(rows, ends, strict=True)
    )


def order_held(difference: float) -> Order:
    """What published pairs say of two plans that are predicted `difference` apart: slower over faster, less 1. [1]"""
    return next(each for each in load_order() if each.above <= difference < each.below)
