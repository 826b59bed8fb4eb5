"""Ranking truth on planted runs: what is a pair, what is right, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.ranking import CLASSES, Timed, distinct, kind_of, pairs, ranking, regret, share_right

BASE = Timed("a", "table", "llama", (8, 64), "bf16", "26.02", "TP1", measured=1.0, predicted=1.0)
times = st.floats(0.1, 10)


def runs(*values: tuple[float, float], **changes: object) -> list[Timed]:
    """Plans of one work with these measured and predicted times."""
    return [
        replace(BASE, id=f"{index}", plan=index, measured=measured, predicted=predicted, **changes)
        for index, (measured, predicted) in enumerate(values)
    ]


def test_order_and_ties():
    """Of three plans two pairs are right; equal predictions are neither right nor wrong."""
    found = ranking(runs((1.0, 1.0), (1.2, 1.1), (1.5, 1.05)))
    assert (found["n"], found["right"]) == (3, 2)
    assert found["tau"] == pytest.approx(1 / 3)
    assert [(pair["faster"], pair["slower"]) for pair in found["worst"]] == [("1", "2")]
    tie = ranking(runs((1.0, 2.0), (1.2, 2.0)))
    assert (tie["right"], tie["tau"]) == (0, 0)


def test_noise_has_no_order():
    assert pairs(runs((1.0, 2.0), (1.014, 1.0))) == []
    found = ranking(runs((1.0, 2.0), (1.016, 1.0), (1.05, 3.0), (1.3, 4.0)))
    assert {name: group["n"] for name, group in found["by"]["difference"].items()} == {
        "1.5-3 %": 1,
        "3-10 %": 2,
        "above 10 %": 3,
    }


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"plan": "TP2"}, "plan"),
        ({}, None),
        ({"precision": "fp8-cs"}, "precision"),
        ({"software": "26.04"}, "release"),
        ({"size": (16, 128)}, "size"),
        ({"size": (16, 128), "precision": "fp8-cs"}, None),
        ({"software": "26.04", "precision": "fp8-cs"}, None),
        ({"subject": "gpt3"}, None),
    ],
)
def test_class_of_a_pair(changes, kind):
    assert kind_of(BASE, replace(BASE, id="b", measured=2.0, **changes)) == kind
    assert kind is None or kind in CLASSES


@given(st.lists(times, min_size=2, max_size=12))
def test_perfect_predictions_rank_right(measured):
    """A common factor on every prediction changes no order."""
    found = ranking(runs(*((value, 1.7 * value) for value in measured)))
    assert found["right"] == found["n"]
    assert found["worst"] == []
    assert found["mean_regret"] in (None, 0.0)


@given(st.lists(st.tuples(times, times), min_size=2, max_size=10))
def test_turning_the_predictions_turns_the_order(values):
    right = share_right(pairs(runs(*values)))
    wrong = share_right(pairs(runs(*((measured, 1 / predicted) for measured, predicted in values))))
    assert right["n"] == wrong["n"]
    if right["n"]:
        assert right["tau"] == pytest.approx(-wrong["tau"], abs=1e-9)


def test_regret_is_what_the_choice_costs():
    """The plan predicted fastest ran 10 % slower than the fastest."""
    assert regret(runs((1.0, 1.3), (1.1, 1.2), (2.0, 2.0))) == [pytest.approx(0.1)]
    assert regret(runs((1.0, 1.3), (1.01, 1.2))) == []


def test_one_odd_run_does_not_fill_the_list():
    found = pairs(runs(*((1 + index / 10, 9.0 - index) for index in range(5))))
    kept = distinct(found)
    assert len(kept) == 3
    assert max(sum(name in (pair.faster.id, pair.slower.id) for pair in kept) for name in "01234") <= 2


def test_no_pairs_no_share():
    assert ranking([BASE])["share"] is None
