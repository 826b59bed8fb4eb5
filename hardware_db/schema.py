"""What the data files hold: quantities with their source, GPUs, links and clusters."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from hardware_db.units import to_base

KINDS = ("datasheet", "derived", "measured", "assumed")
SCOPES = ("intra", "inter", "host")
# How a domain's GPUs are joined: each by all its links to switches, or by one link to each other GPU.
TOPOLOGIES = ("switch", "mesh")
# Rules, step constants and intervals are keyed by these.
GENERATIONS = (
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "blackwell-ultra",
    "blackwell-consumer",
    "cdna3",
    "cdna4",
    "cpu",
    "unknown",
)
DTYPES = (
    "fp64",
    "fp64_tensor",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "fp8",
    "fp6",
    "nvfp4",
    "mxfp4",
    "int8",
    "int4",
)
# Quantities by key and their base unit. A GPU must have the first three, a link the first two. peer_access is 0
# where the driver lets no GPU write into another's memory (CUDA peer access); a file without it means that it does.
# stream_triad: what STREAM's triad (two reads, one write) was measured to move.
GPU_KEYS = {
    "hbm_bandwidth": "byte/s",
    "hbm_capacity_usable": "byte",
    "sm_count": "1",
    "hbm_capacity": "byte",
    "stream_triad": "byte/s",
    "l2_cache": "byte",
    "infinity_cache": "byte",
    "boost_clock": "Hz",
    "power": "W",
    "peer_access": "1",
    **{f"peak_{dtype}": "FLOP/s" for dtype in DTYPES},
}
GPU_NEEDS = ("hbm_bandwidth", "hbm_capacity_usable", "sm_count")
LINK_KEYS = {
    "bandwidth": "byte/s",
    "latency": "s",
    "num_links": "1",
    "in_network_reduction": "1",
    "reached": "1",
}
LINK_NEEDS = ("bandwidth", "latency")
CLUSTER_KEYS = {
    "price_per_gpu_hour": "USD/h",
    "power_per_gpu": "W",
    "host_cores": "1",
    "host_numa_nodes": "1",
    "host_memory": "byte",
    "host_memory_bandwidth": "byte/s",
    "processes": "1",  # of a machine without GPUs: those that shared it while it was measured
}
# Leaves of fitted tables whose unit is not "1".
CALIBRATION_KEYS = {
    "launch": "s",
    "kernel_launch": "s",
    "graph_launch": "s",
    "pass": "s",
    "layer_update": "s",
    "latency": "s",
    "latency_per_rank": "s",
    "low_latency": "s",
    "low_latency_per_rank": "s",
    "bandwidth": "byte/s",
    "low_latency_bandwidth": "byte/s",
}


@dataclass(frozen=True)
class Quantity:
    """One number: value in `unit`, how we know it (kind), where and when it was read.

    residual is the mean |log(model / measured)| of a fitted one. read_on is None where a user's file is silent.
    """

    value: float
    unit: str
    kind: str
    source: str
    read_on: date | None = None
    note: str = ""
    residual: float | None = None

    @property
    def si(self) -> float:
        """The value in base units (byte, byte/s, FLOP/s, s, W, Hz; USD/h stays)."""
        return to_base(self.value, self.unit)


@dataclass(frozen=True)
class Gpu:
    """One GPU (or processor). quantities by key; generation keys rules and step constants.

    calibrated_like names the GPU whose fitted tables it uses; own_calibration holds those of a user's
    profile, and is empty for the GPUs shipped. references: title of a source -> where it is.
    """

    name: str
    title: str
    vendor: str
    generation: str
    quantities: Mapping[str, Quantity]
    calibrated_like: str
    path: Path
    own_calibration: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)

    def get(self, key: str) -> float:
        """A quantity in base units. ValueError when the file has none."""
        if key not in self.quantities:
            near = difflib.get_close_matches(key, self.quantities, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(self.quantities)}."
            raise ValueError(f"{self.path}: gpu {self.name} has no {key!r}. {hint}")
        return self.quantities[key].si

    def peak(self, dtype: str) -> float | None:
        """Dense peak of a number format [FLOP/s], None when the GPU lacks it."""
        quantity = self.quantities.get(f"peak_{dtype}")
        return quantity.si if quantity else None

    @property
    def has_peers(self) -> bool:
        """Whether a GPU may map another's memory (CUDA peer access); GeForce drivers refuse it."""
        quantity = self.quantities.get("peer_access")
        return quantity is None or quantity.value > 0


@dataclass(frozen=True)
class Link:
    """A way between GPUs (or host): bandwidth of one GPU in one direction [byte/s], latency [s].

    scope is intra (scale-up domain), inter (network) or host. quantities["reached"], where a file has it: share of the
    bandwidth that published training runs move, where that is much less than benchmarks of one collective. [1]
    peer_links: links over which the bandwidth is spread, one to each other GPU of a mesh; 1 where it is a switch's. [1]
    is_mesh: whether GPUs are joined without switches, as a bridge joins two cards.
    """

    name: str
    title: str
    scope: str
    bandwidth: float
    latency: float
    quantities: Mapping[str, Quantity]
    path: Path
    peer_links: int = 1
    is_mesh: bool = False


@dataclass(frozen=True)
class Cluster:
    """GPUs, their links and what an hour of them costs. domain_size: GPUs of one scale-up domain.

    prices are all those on file, of which quantities["price_per_gpu_hour"] is the one used. [USD/h]
    """

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
    prices: Mapping[str, Quantity] = field(default_factory=dict)

    @property
    def price_per_gpu_hour(self) -> float | None:
        """USD of one GPU for one hour, None when no price is on file."""
        quantity = self.quantities.get("price_per_gpu_hour")
        return quantity.value if quantity else None

    @property
    def processes(self) -> int | None:
        """Processes that shared a machine without GPUs while it was measured, None where the file does not tell. [1]"""
        quantity = self.quantities.get("processes")
        return int(quantity.value) if quantity else None

    @property
    def has_nvlink_switch(self) -> bool:
        """Whether NVLink switches join the GPUs of a domain: no bridge, no mesh, and no GPU alone in its domain."""
        return self.intra.name.startswith("nvlink") and not self.intra.is_mesh and self.domain_size > 1

    @property
    def has_c2c(self) -> bool:
        """Whether GPUs hang on their host's processors (Grace) by NVLink C2C instead of PCIe."""
        return self.host_link.name.startswith("nvlink-c2c")

    @property
    def host_memory(self) -> float | None:
        """Host memory of one node, None when not on file. [byte]"""
        quantity = self.quantities.get("host_memory")
        return quantity.si if quantity else None

    @property
    def power_per_gpu(self) -> float | None:
        """Watts of one GPU with its share of the node under load, None when not on file. [W]"""
        quantity = self.quantities.get("power_per_gpu")
        return quantity.si if quantity else None
