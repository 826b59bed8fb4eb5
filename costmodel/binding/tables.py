"""Constants of a GPU's calibration tables as inputs: their source, what of them is assumed, and its power limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hardware_db
from costmodel.bound import Bound
from hardware_db import Cluster, Quantity

NONE_KNOWN = Bound(0.0, "none in the table")
# Rate of matrix kernels over power; the two measurements behind it: `power_factor`. [1]
POWER_EXPONENT = 0.6


def bound_of(quantity: Quantity, where: str) -> Bound:
    """A quantity in SI units, with where it comes from, and a note where it is assumed."""
    assumed = f"{where} is assumed: {quantity.note}" if quantity.kind == "assumed" and quantity.note else ""
    return Bound(
        quantity.si,
        f"{where}: {quantity.value:g} {quantity.unit}, {quantity.kind}, {quantity.source}",
        assumed,
    )


def leaf(tables: Mapping[str, Any], cluster: Cluster, *path: str) -> Bound:
    """A constant of the calibration tables. ValueError in one line where they lack it."""
    table: Any = tables
    for step in path:
        table = table.get(step, {}) if isinstance(table, Mapping) else {}
    if not isinstance(table, Quantity):
        raise ValueError(
            f"gpu {cluster.gpu.name}: no constant [{'.'.join(path)}] in its calibration. "
            "Name a sibling with `calibrated_like`, or measure one with `advisor run --recalibrate`."
        )
    return bound_of(table, f"{cluster.gpu.name}, {'.'.join(path)}")


def leaf_if_known(tables: Mapping[str, Any], cluster: Cluster, *path: str) -> Bound:
    """A constant of tables that not every GPU's have; 0 without it."""
    table: Any = tables
    for step in path:
        table = table.get(step, {})
    return leaf(tables, cluster, *path) if table else NONE_KNOWN


def power_factor(cluster: Cluster) -> float:
    """Rate of matrix kernels under a lower power limit than that of the GPU whose tables are used. [1]

    (P / P_tables)^0.6: identical MI silicon gains 19 % from 750 to 1000 W, DGX B200 loses 20 % from 1000
    to 700 W. P is watts over the peak, since a smaller chip needs fewer: 0.78 for the H100 PCIe's 350 W and 756
    TFLOP/s, which settles at 1,395 of its 1,755 MHz (0.79). Source: shared hardware notes, section 5.
    """
    gpu = cluster.gpu
    if gpu.own_calibration or gpu.calibrated_like == gpu.name or "power" not in gpu.quantities:
        return 1.0
    kin = hardware_db.load_gpu(gpu.calibrated_like)
    # Peaks of the same format; as large a chip where the file has none.
    own_peak, kin_peak = gpu.peak("bf16"), kin.peak("bf16")
    size = own_peak / kin_peak if own_peak and kin_peak else 1.0
    return float(min(1.0, gpu.get("power") / kin.get("power") / size) ** POWER_EXPONENT)


def memory_factor(cluster: Cluster) -> float:
    """Share of its memory's bandwidth that a GPU reaches, over that which the GPU whose tables are used reaches. [1]

    By STREAM's triad where both have one: HBM2 of the A100 40 GB gives 0.875 of its datasheet, HBM2e of the 80 GB
    part 0.834.
    """
    gpu = cluster.gpu
    if gpu.own_calibration or gpu.calibrated_like == gpu.name:
        return 1.0
    both = (gpu, hardware_db.load_gpu(gpu.calibrated_like))
    if any("stream_triad" not in each.quantities for each in both):
        return 1.0
    own, kin = (each.get("stream_triad") / each.get("hbm_bandwidth") for each in both)
    return float(own / kin)


def of_memory(bound: Bound, factor: float, cluster: Cluster) -> Bound:
    """A share of the memory's bandwidth that was measured on a GPU of kin, as this one's memory reaches it."""
    like = cluster.gpu.calibrated_like
    says = f"memory reaches {factor:.3f} of the share of {like}'s, as STREAM's triad does"
    return _scaled(bound, factor, cluster, ", by stream_triad of both", says)


def limited(bound: Bound, factor: float, cluster: Cluster) -> Bound:
    """A rate under a power limit, which is said."""
    like = cluster.gpu.calibrated_like
    says = (
        f"matrix kernels reach {factor:.2f} of the share of their peak that {like}'s do, for its power limit"
    )
    return _scaled(bound, factor, cluster, " for its power limit", says)


def _scaled(bound: Bound, factor: float, cluster: Cluster, why: str, says: str) -> Bound:
    """A constant of another GPU's tables times a factor [1]; as it is where that is 1. why: behind it in the source."""
    if factor == 1.0:
        return bound
    return Bound(bound.value * factor, f"{bound.source}; x {factor:.3f}{why}", f"{cluster.gpu.title}: {says}")
