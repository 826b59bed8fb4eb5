"""Runs that nobody tuned: between which ratios further ones lie."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)

from write_evidence import described_anew, evidence_of, untuned_spread  # noqa: E402

from advisor.measurements import Case, Row, read_rows, row_case  # noqa: E402

# Published dense runs, typed in with their source: a fixed sample for tests.
ANCHORS = [row.values for row in read_rows(Path(__file__).parents[1] / "published" / "dense_runs.csv")]


def test_runs_described_anew_keep_their_errors(tmp_path):
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ANCHORS[0])
        writer.writeheader()
        writer.writerow(ANCHORS[0])
    case = row_case(Row(ANCHORS[0]))
    assert isinstance(case, Case)
    run = evidence_of(case, 0.1, 0.2)
    assert run.effects
    stale, elsewhere = replace(run, effects="", tp=99), replace(run, effects="", id="elsewhere")
    assert described_anew([stale, elsewhere], [table]) == [run, elsewhere]


def test_few_runs_give_the_least_and_the_most():
    record = untuned_spread([0.3, -0.2, 2.0])["untuned"]
    assert record["quicker"] == pytest.approx(math.exp(-0.2), rel=0.01)
    assert record["slower"] == pytest.approx(math.exp(2.0), rel=0.01)
    assert record["runs"] == 3
    assert untuned_spread([]) == {}


def test_nine_of_ten_further_runs_lie_between():
    random = np.random.default_rng(7)
    inside = []
    for _ in range(300):
        record = untuned_spread(list(random.normal(0.3, 0.8, 40)))["untuned"]
        further = random.normal(0.3, 0.8, 50)
        inside.append(
            ((math.log(record["quicker"]) <= further) & (further <= math.log(record["slower"]))).mean()
        )
    assert 0.88 <= np.mean(inside) <= 0.94
