"""Units as people read them."""

from __future__ import annotations

import pytest

from hardware_db.units import flop_rate, three_figures


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1979e12, "1,979 TFLOP/s"),
        (511.4e12, "511 TFLOP/s"),
        (9.999e12, "10 TFLOP/s"),
        (4.2137e12, "4.21 TFLOP/s"),
        (0.9999e12, "1.00 TFLOP/s"),
        (132.4e9, "132 GFLOP/s"),
        (1.5e9, "1.50 GFLOP/s"),
        (3.21e6, "0.00321 GFLOP/s"),
        (0.0, "0 TFLOP/s"),
    ],
)
def test_rates_have_three_figures(rate, text):
    assert flop_rate(rate) == text
    assert flop_rate(rate, "model ") == text.replace(" ", " model ")


def test_thousands_are_told_apart_or_not():
    assert three_figures(1978.6) == "1,979"
    assert flop_rate(1979e12, comma="") == "1979 TFLOP/s"
