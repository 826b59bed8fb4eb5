"""The profile of a machine with NVIDIA GPUs: kernels measured on it over the tables that ship.

Products, attention and messages are measured as the step runs them. Element-wise kernels and the host are not:
PyTorch's own are others than the fused ones of a step, whose tables ship. Sourced data is copied, never edited.
"""

from __future__ import annotations

from typing import Any

from executor.calibrate_tables import Leaf, tables
from hardware_db import Cluster

Record = dict[str, Any]
MEASURED = ("gemm", "attention", "collective")


def gpu_tables(measured: Record, cluster: Cluster) -> Record:
    """The fitted tables of what `executor.workers.calibrate` measured on this cluster's GPU.

    Fractions are of the data sheet's peaks and bandwidth, as in the tables that ship. ValueError when the data sheet
    has no peak of a format that was measured.
    """
    gpu = cluster.gpu
    leaf = Leaf(f"measured here with torch {measured['torch']} on {measured['device']}")
    dtypes = dict.fromkeys(entry["dtype"] for entry in measured["gemm"])
    missing = [dtype for dtype in dtypes if f"peak_{dtype}" not in gpu.quantities]
    if missing:
        raise ValueError(
            f"the data sheet of {gpu.title} has no peak for {', '.join(missing)}. Add peak_{missing[0]} to its file."
        )
    peaks = {dtype: gpu.quantities[f"peak_{dtype}"].si for dtype in dtypes}
    bandwidth, links = gpu.quantities["hbm_bandwidth"].si, cluster.intra.peer_links
    fitted = tables(measured, peaks, bandwidth, int(measured["sms"]), leaf, links)
    return {name: fitted[name] for name in MEASURED if fitted[name]}
