"""How often the order of published plans held: the file on disk, and what answers take from it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from hardware_db.order import load_order, order_held


def test_classes_cover_every_difference_once():
    classes = load_order()
    assert classes[0].above == 0
    assert classes[-1].below == math.inf
    assert all(one.below == other.above for one, other in pairwise(classes))


def test_plans_far_apart_are_ordered_more_surely():
    shares = [each.share for each in load_order()]
    assert shares == sorted(shares)
    assert 0.4 <= shares[0] < shares[-1] < 1  # within 1 % the order is as good as drawn (39 of 80)
    assert sum(each.pairs for each in load_order()) > 1000


@pytest.mark.parametrize(("difference", "above"), [(0.0, 0.0), (0.02, 0.01), (0.05, 0.03), (3.0, 0.2)])
def test_a_difference_is_judged_by_pairs_as_far_apart(difference, above):
    found = order_held(difference)
    assert found.above == above
    assert found.to_dict() == {"share": found.right / found.pairs, "pairs": found.pairs}
