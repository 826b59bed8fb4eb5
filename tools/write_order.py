"""Write how often the order of two plans held, by how far apart they are predicted.

    python tools/write_order.py MEASUREMENTS.csv

Every pair of published plans of the same work, machine and software is predicted as `advisor validate` does; layouts or
precisions differ. The file, hardware_db/calibrated/order.toml, is what `explain` and `compare` say of a difference.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from advisor.measurements import read_rows
from advisor.ranking import Pair, pairs
from advisor.validation import judged, timed
from hardware_db.order import ORDER_FILE

# Upper ends of the classes of predicted difference: slower over faster, less 1.
CLASSES = (0.01, 0.03, 0.1, 0.2)
KINDS = ("plan", "precision")
HEADER = (
    "# Written by tools/write_order.py; do not edit. Pairs of published plans, by how far apart they are predicted:\n"
    "# how many there are, and how many were measured in that order. above: slower over faster, less 1.\n"
)


def counted(found: Sequence[Pair]) -> list[dict[str, float]]:
    """Pairs and right ones of each class of predicted difference; each class holds what is above its `above`."""
    rows: list[dict[str, float]] = []
    apart = [(max(each.predicted_ratio, 1 / each.predicted_ratio) - 1, each.right) for each in found]
    for above, end in zip((0.0, *CLASSES), (*CLASSES, float("inf")), strict=True):
        members = [right for size, right in apart if above <= size < end]
        rows.append({"above": above, "pairs": len(members), "right": sum(members)})
    return rows


def main(path: Path) -> None:
    """Predict the table's runs and write the file."""
    runs = [timed(case, result) for case, result in judged(read_rows(path))[0]]
    # Two measurements of two plans have an order however near they are: no pair is left out as noise.
    found = [each for each in pairs(runs, noise=0.0) if each.kind in KINDS]
    record = {
        "unit": "1",
        "kind": "measured",
        "source": f"{len(found)} pairs of published plans, predicted by tools/write_order.py",
        "read_on": datetime.date.today(),
        "order": counted(found),
    }
    ORDER_FILE.write_text(HEADER + tomli_w.dumps(record))
    print(ORDER_FILE.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="measurements.csv")
    main(parser.parse_args().table)
