"""The estimate of what rows we do not have may show: how many are drawn, and when a table is called met."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from unseen_rows import Told, lacking, numbered, verdicts


def test_missing_numbers_are_counted_by_source():
    assert numbered("nemo-docs-25-02-0007") == ("nemo-docs-25-02", 7)
    assert lacking(["a-1", "a-2", "a-5", "b-3"]) == {"a": pytest.approx(2 / 3), "b": 0.0}


def test_each_figure_is_met_by_itself():
    rows = [Told(0.02, True, True), Told(-0.04, True, True), Told(0.01, False, False)]
    found = verdicts(rows, {"plan": [True, True, False], "none": []})
    assert found["median"] == (0.02, True)
    assert found["mean, dense"] == (pytest.approx(0.03), True)
    assert found["mean, others"] == (pytest.approx(0.01), True)
    assert found["inside"] == (pytest.approx(2 / 3), False)
    assert found["plan"] == (pytest.approx(2 / 3), False)
    assert found["none"] == (1.0, True)
    # Intervals that hold every row are too wide.
    assert not verdicts([Told(0.0, True, True), Told(0.0, True, False)], {})["inside"][1]
