"""What a table of rows that we do not have may show: `python benchmarks/unseen_rows.py MEASUREMENTS.csv`.

Ids of a source are numbered, and some numbers are missing. Rows are drawn from those that are there, of each source
as many as it lacks, and judged like any table: median and mean errors, coverage of the intervals, pairs ranked right.
Errors are those of constants fitted without the row's model (`held_error` of hardware_db/calibrated/evidence.csv), or
as shipped where a row is not in the fit. An estimate: missing rows may be of other models, or of layouts that are
harder to tell.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.measurements import Case, read_rows, row_case
from advisor.ranking import pairs
from advisor.validation import timed, validate
from costmodel.evidence import evidence_table

DRAWS = 2000
# What the table has to show: median, mean of dense and of other models, coverage, pairs.
MEDIAN, DENSE, OTHERS, COVERED, PAIRS = 0.03, 0.06, 0.10, (0.85, 0.95), 0.90


@dataclass(frozen=True)
class Told:
    """A row as it would be told unseen: its error, whether its interval holds, and its family."""

    error: float
    inside: bool
    dense: bool


def numbered(identity: str) -> tuple[str, int]:
    """Source and number of an id."""
    found = re.match(r"(.*?)[-_]?(\d+)$", identity)
    return (found[1], int(found[2])) if found else (identity, 0)


def lacking(present: Sequence[str]) -> dict[str, float]:
    """Of each source, missing numbers over those that are there. [1]"""
    numbers: dict[str, set[int]] = defaultdict(set)
    for identity in present:
        source, number = numbered(identity)
        numbers[source].add(number)
    return {name: (max(found) - min(found) + 1 - len(found)) / len(found) for name, found in numbers.items()}


def verdicts(rows: Sequence[Told], ranked: Mapping[str, Sequence[bool]]) -> dict[str, tuple[float, bool]]:
    """Each figure of a table and whether it is met. ranked: pairs told right, by what they share."""
    sizes = [abs(row.error) for row in rows]
    dense, others = ([abs(row.error) for row in rows if row.dense == kind] for kind in (True, False))
    covered = statistics.mean(row.inside for row in rows)
    found = {
        "median": (statistics.median(sizes), statistics.median(sizes) <= MEDIAN),
        "mean, dense": (statistics.mean(dense), statistics.mean(dense) <= DENSE),
        "mean, others": (statistics.mean(others), statistics.mean(others) <= OTHERS),
        "inside": (covered, COVERED[0] <= covered <= COVERED[1]),
    }
    for kind, right in ranked.items():
        share = statistics.mean(right) if right else 1.0
        found[kind] = (share, share >= PAIRS)
    return found


def main(path: Path) -> None:
    """Print each figure's mean over the draws, and in how many draws it is met."""
    rows = read_rows(path)
    results = {result["id"]: result for result in validate(rows)["rows"]}
    held = {run.id: run.held_error for run in evidence_table().runs}
    told, runs = {}, []
    for row in rows:
        case = row_case(row)
        if not isinstance(case, Case) or case.id not in results:
            continue
        result = results[case.id]
        error = result["predicted"] / result["measured"] - 1
        if not math.isnan(held.get(case.id, math.nan)):
            error = math.expm1(held[case.id])
        inside = result["low"] <= result["measured"] <= result["high"]
        told[case.id] = Told(error, inside, case.model.family == "dense")
        run = timed(case, result)
        runs.append(replace(run, predicted=run.measured * (1 + error)))
    ranked = pairs(runs)
    share = lacking([row.text("id") for row in rows])
    sources: dict[str, list[str]] = defaultdict(list)
    for identity in told:
        sources[numbered(identity)[0]].append(identity)
    generator, met = random.Random(0), Counter[str]()
    sums: dict[str, float] = defaultdict(float)
    for _ in range(DRAWS):
        drawn = {
            identity
            for name, those in sources.items()
            for identity in generator.sample(those, min(len(those), round(share[name] * len(those))))
        }
        both = [pair for pair in ranked if pair.faster.id in drawn and pair.slower.id in drawn]
        figures = verdicts(
            [told[identity] for identity in drawn],
            {
                "pairs of plans": [pair.right for pair in both if pair.kind == "plan"],
                "pairs of any kind": [pair.right for pair in both],
            },
        )
        for name, (value, good) in figures.items():
            sums[name] += value
            met[name] += good
        met["all, pairs of plans"] += all(
            good for name, (_, good) in figures.items() if name != "pairs of any kind"
        )
        met["all, pairs of any kind"] += all(
            good for name, (_, good) in figures.items() if name != "pairs of plans"
        )
    print(f"{len(drawn)} of {len(told)} rows drawn, {DRAWS} times")
    for name, number in met.items():
        mean = f"{sums[name] / DRAWS:8.2%}" if name in sums else f"{'':8}"
        print(f"{name:24} {mean}  met in {number / DRAWS:6.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="measurements.csv")
    sys.exit(main(parser.parse_args().table))
