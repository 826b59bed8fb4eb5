"""GPUs that borrow the kernel tables of another: their rates under a power limit of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.binding import precision_recipe
from costmodel.binding_hardware import POWER_EXPONENT, hardware_inputs
from costmodel.stack import load_stack
from hardware_db import load_cluster, load_gpu


def linear_fraction(power_scale: float) -> float:
    """Fraction of the peak of a DGX B200's products, its power limit scaled, with the tables of the B200."""
    cluster = load_cluster("b200-700w")
    gpu = cluster.gpu
    limit = gpu.quantities["power"]
    power = replace(limit, value=load_gpu(gpu.calibrated_like).quantities["power"].value * power_scale)
    limited = replace(gpu, quantities={**gpu.quantities, "power": power})
    inputs = hardware_inputs(
        replace(cluster, gpu=limited), precision_recipe("bf16"), "bf16", load_stack("nemo")
    )
    return float(inputs["gemm_fraction"].value)


def test_matrix_kernels_slow_down_under_a_lower_power_limit():
    full = linear_fraction(1.0)
    assert linear_fraction(2.0) == full
    assert linear_fraction(0.7) == pytest.approx(full * 0.7**POWER_EXPONENT)
    assert 0.78 < linear_fraction(0.7) / full < 0.82  # DGX B200 at 700 W loses a fifth
