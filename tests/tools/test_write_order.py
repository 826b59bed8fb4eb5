"""Pairs of published plans, counted by how far apart they are predicted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from write_order import CLASSES, counted

from advisor.ranking import Pair, Timed


def pair(measured: float, predicted: float) -> Pair:
    """A pair of which the slower takes so many times as long."""
    fast, slow = (
        Timed(name, "s", "work", (8, 64), "bf16", "26.02", name, measured=took, predicted=told)
        for name, took, told in (("a", 1.0, 1.0), ("b", measured, predicted))
    )
    return Pair("plan", fast, slow)


def test_a_pair_counts_in_the_class_of_its_predicted_difference():
    found = counted([pair(1.5, 1.005), pair(1.5, 1.02), pair(1.5, 1 / 1.02), pair(1.1, 1.5)])
    assert [row["above"] for row in found] == [0.0, *CLASSES]
    assert [(row["pairs"], row["right"]) for row in found] == [(1, 1), (2, 1), (0, 0), (0, 0), (1, 1)]


def test_pairs_predicted_alike_are_not_right():
    assert counted([pair(1.5, 1.0)])[0] == pytest.approx({"above": 0.0, "pairs": 1, "right": 0})
