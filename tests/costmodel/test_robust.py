"""Least squares that one bad run does not bend, and beliefs where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.robust import Belief, fit, robust, robust_slope


@given(st.floats(-3, 3))
def test_the_slope_of_the_loss_is_its_derivative(error):
    step = 1e-6
    slope = (robust(np.array([error + step])) - robust(np.array([error - step]))) / (2 * step)
    assert robust_slope(np.array([error])) == pytest.approx(slope, rel=1e-3)


def test_without_measurements_beliefs_hold():
    found = fit(lambda values: np.zeros((1, values.shape[1])), [Belief(3.0, 0.5), Belief(1e-6, 1.0)])
    assert found.values == pytest.approx([3.0, 1e-6])
    assert found.errors == pytest.approx([0.5, 1.0])
