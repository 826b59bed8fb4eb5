"""Constants of matrix products: what was planted is recovered, quantisation told apart from the product."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)

import fit_tables  # noqa: E402

from costmodel.timing import kernels  # noqa: E402

PEAK, HBM, SMS = 2e15, 4e12, 132
SIZES = (512, 1024, 2048, 4096, 8192, 16384)


@settings(max_examples=15, deadline=None)
@given(
    dtype=st.sampled_from(["bf16", "fp8", "nvfp4"]),
    fraction=st.floats(0.4, 0.9),
    fill=st.floats(20, 1000),
    quantise=st.floats(2, 12),
)
def test_planted_constants_are_recovered(dtype, fraction, fill, quantise):
    """With quantisation taken for 4 bytes an element, an eighth of FP8's share of the peak was lost."""
    m, n, k = (axis.ravel() for axis in np.meshgrid(SIZES, SIZES, SIZES))
    operand = fit_tables.OPERAND_BYTES[dtype]
    seconds = kernels.gemm_time(
        m,
        n,
        k,
        peak=PEAK,
        fraction=fraction,
        num_sms=SMS,
        wave_weight=0.1,
        launch=4e-6,
        num_bytes=operand * (m * k + k * n) + 2 * m * n,
        bandwidth=0.6 * HBM,
        fill=fill,
    )
    if dtype != "bf16":
        seconds = seconds + quantise * m * k / HBM
    points = np.array([m, n, k, 1e6 * seconds]).T
    found, errors = fit_tables.fit_gemm(points, dtype, SMS, PEAK, HBM)
    assert np.abs(errors).max() < 0.01
    assert found["fraction"] == pytest.approx(fraction, rel=0.02)
    if dtype == "bf16":
        assert "quantise" not in found
    else:
        assert found["quantise"] == pytest.approx(quantise, rel=0.05)
