"""What machines can do: one file per GPU, link and cluster, every number with its source. No formulas."""

from hardware_db.catalogue import list_clusters, list_gpus, list_links
from hardware_db.loader import (
    calibration_link,
    calibration_path,
    load_calibration,
    load_cluster,
    load_gpu,
    load_link,
    resolve,
)
from hardware_db.platforms import Platform, platform_of
from hardware_db.schema import Cluster, Gpu, Link, Quantity

__all__ = [
    "Cluster",
    "Gpu",
    "Link",
    "Platform",
    "Quantity",
    "calibration_link",
    "calibration_path",
    "list_clusters",
    "list_gpus",
    "list_links",
    "load_calibration",
    "load_cluster",
    "load_gpu",
    "load_link",
    "platform_of",
    "resolve",
]
