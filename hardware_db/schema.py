"""What the data files hold: quantities with their source, GPUs, links and clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardware_db.units import to_base

KINDS = ("datasheet", "derived", "measured", "assumed")


@dataclass(frozen=True)
class Quantity:
    """One number: value in `unit`, how we know it (kind), where and when it was read."""

    value: float
    unit: str
    kind: str
    source: str
    read_on: str = ""
    note: str = ""
    residual: float | None = None

    @property
    def si(self) -> float:
        """The value in base units (byte, byte/s, FLOP/s, s, W, Hz)."""
        return to_base(self.value, self.unit)


@dataclass(frozen=True)
class Gpu:
    """One GPU (or processor). quantities by key; generation keys the step constants.

    calibrated_like names the GPU whose fitted tables it uses; own_calibration holds those of a user's
    profile, and is empty for the GPUs shipped.
    """

    name: str
    title: str
    vendor: str
    generation: str
    quantities: Mapping[str, Quantity]
    calibrated_like: str
    path: Path
    own_calibration: Mapping[str, Any] = field(default_factory=dict)

    def get(self, key: str) -> float:
        """A quantity in base units. ValueError when the file has none."""
        if key not in self.quantities:
            raise ValueError(
                f"{self.path}: gpu {self.name} has no {key!r}. Keys: {', '.join(self.quantities)}."
            )
        return self.quantities[key].si

    def peak(self, dtype: str) -> float | None:
        """Dense peak of a number format [FLOP/s], None when the GPU lacks it."""
        quantity = self.quantities.get(f"peak_{dtype}")
        return quantity.si if quantity else None


@dataclass(frozen=True)
class Link:
    """A way between GPUs (or host): bandwidth of one GPU in one direction [byte/s], latency [s].

    scope is intra (scale-up domain), inter (network) or host.
    """

    name: str
    title: str
    scope: str
    bandwidth: float
    latency: float
    quantities: Mapping[str, Quantity]
    path: Path


@dataclass(frozen=True)
class Cluster:
    """GPUs, their links and what an hour of them costs. domain_size: GPUs of one scale-up domain."""

    name: str
    title: str
    gpu: Gpu
    gpus_per_node: int
    domain_size: int
    intra: Link
    inter: Link
    host_link: Link
    quantities: Mapping[str, Quantity]
    aliases: tuple[str, ...]
    is_default_for_gpu: bool
    note: str
    path: Path

    @property
    def price_per_gpu_hour(self) -> float | None:
        """USD of one GPU for one hour, None when no price is on file."""
        quantity = self.quantities.get("price_per_gpu_hour")
        return quantity.value if quantity else None

    @property
    def power_per_gpu(self) -> float:
        """Watts of one GPU with its share of the node under load. [W]"""
        quantity = self.quantities.get("power_per_gpu")
        return quantity.si if quantity else 1.6 * self.gpu.get("power")
