"""GPUs that borrow the kernel tables of another: their rates under a power limit of their own, slips of their units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.binding import precision_recipe
from costmodel.binding.hardware import hardware_inputs
from costmodel.binding.tables import POWER_EXPONENT, power_factor
from costmodel.stack import load_stack
from hardware_db import load_cluster, load_gpu, resolve


def fractions(power_scale: float, cluster_name: str = "b200-700w", stack: str = "nemo") -> dict[str, float]:
    """Fractions of the peak of products and attention, the power limit scaled, with the tables of the full GPU."""
    cluster = load_cluster(cluster_name)
    gpu = cluster.gpu
    limit = gpu.quantities["power"]
    power = replace(limit, value=load_gpu(gpu.calibrated_like).quantities["power"].value * power_scale)
    limited = replace(gpu, quantities={**gpu.quantities, "power": power})
    inputs = hardware_inputs(
        replace(cluster, gpu=limited), precision_recipe("bf16"), "bf16", load_stack(stack)
    )
    return {name: float(bound.value) for name, bound in inputs.items() if name.endswith("_fraction")}


def linear_fraction(power_scale: float) -> float:
    return fractions(power_scale)["gemm_fraction"]


def test_matrix_kernels_slow_down_under_a_lower_power_limit():
    full = linear_fraction(1.0)
    assert linear_fraction(2.0) == full
    assert linear_fraction(0.7) == pytest.approx(full * 0.7**POWER_EXPONENT)
    assert 0.78 < linear_fraction(0.7) / full < 0.82  # DGX B200 at 700 W loses a fifth


@pytest.mark.parametrize("name", ["attention_forward_fraction", "attention_backward_fraction"])
@pytest.mark.parametrize("cluster", ["b200-700w", "meta-h100-500w"])
def test_a_power_limit_reaches_fused_attention_but_not_flash_attention_2(cluster, name):
    """FlashAttention-2, which torchtitan runs, leaves the tensor units of these GPUs idle most of the time."""
    apart, fused = (
        [fractions(scale, cluster, stack)[name] for scale in (0.7, 1.0)]
        for stack in ("torchtitan-25.06", "nemo")
    )
    assert apart[0] == apart[1]
    assert fused[0] == pytest.approx(fused[1] * 0.7**POWER_EXPONENT)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("h100-pcie", 0.75, 0.80),  # 114 of 132 SMs at half the power: 1,395 of 1,755 MHz under load
        ("a100-pcie", 0.82, 0.86),  # SimuMax: 0.70 to 0.75 of the peak, and the SXM's table has 0.85
        ("l4", 0.72, 0.77),
        ("a6000", 1.0, 1.0),
        ("gh200", 1.0, 1.0),
    ],
)
def test_a_smaller_chip_needs_less_power(name, low, high):
    gpu = load_gpu(name)
    assert low <= power_factor(resolve(name, None)[0]) <= high
    kin = load_gpu(gpu.calibrated_like)
    assert gpu.get("power") / kin.get("power") < high or high == 1.0


def test_on_the_gpus_that_it_was_written_for_a_power_limit_reaches_it():
    cluster = load_cluster("dgx-a100")
    limited = replace(cluster.gpu, name="a100-limited", calibrated_like=cluster.gpu.name)
    power = replace(limited.quantities["power"], value=0.7 * limited.quantities["power"].value)
    limited = replace(limited, quantities={**limited.quantities, "power": power})
    recipe = precision_recipe("bf16")
    slow, full = (
        hardware_inputs(replace(cluster, gpu=gpu), recipe, "bf16", load_stack("torchtitan"))
        for gpu in (limited, cluster.gpu)
    )
    assert slow["attention_forward_fraction"].value == pytest.approx(
        full["attention_forward_fraction"].value * 0.7**POWER_EXPONENT
    )


@pytest.mark.parametrize(
    ("key", "unit", "said"),
    [
        ("hbm_bandwidth", "TB/s", ""),
        ("hbm_bandwidth", "Gbit/s", "is 0.000125 times the 8 TB/s of b200"),
        ("peak_bf16", "GFLOP/s", "is 0.001 times the 2250 TFLOP/s of b200"),
    ],
)
def test_a_slip_of_the_unit_is_told(key, unit, said):
    cluster = load_cluster("b200-700w")
    slip = replace(cluster.gpu.quantities[key], unit=unit)
    gpu = replace(cluster.gpu, quantities={**cluster.gpu.quantities, key: slip})
    inputs = hardware_inputs(replace(cluster, gpu=gpu), precision_recipe("bf16"), "bf16", load_stack("nemo"))
    told = [bound.note for bound in inputs.values() if "check value and unit" in bound.note]
    assert bool(told) == bool(said)
    assert all(said in note for note in told)


def test_memory_of_another_make_reaches_the_share_that_streams_triad_does():
    recipe, stack = precision_recipe("bf16"), load_stack("nemo")
    of = {
        name: hardware_inputs(load_cluster(name), recipe, "bf16", stack)
        for name in ("dgx-a100-40", "dgx-a100")
    }
    for name in ("elementwise_fraction", "stream_fraction", "norm_backward_fraction", "permute_fraction"):
        small, large = (float(inputs[name].value) for inputs in of.values())
        assert small / large == pytest.approx((1.36 / 1.555) / (1.70 / 2.039))
    assert "stream_triad" in of["dgx-a100-40"]["stream_fraction"].source
    assert of["dgx-a100-40"]["gemm_fraction"].value == of["dgx-a100"]["gemm_fraction"].value
    assert not of["dgx-a100"]["stream_fraction"].note
