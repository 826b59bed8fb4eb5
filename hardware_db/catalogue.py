"""Everything shipped: read once, in the order of the file names."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from hardware_db.reading import Table, read_toml
from hardware_db.records import read_cluster, read_gpu, read_link, word
from hardware_db.schema import Cluster, Gpu, Link

ROOT = Path(__file__).parent


@lru_cache(maxsize=1)
def shipped_gpus() -> tuple[Gpu, ...]:
    """Every GPU, by name."""
    return tuple(_gpu(read_toml(path)) for path in sorted((ROOT / "gpus").glob("*.toml")))


@lru_cache(maxsize=1)
def shipped_links() -> tuple[Link, ...]:
    """Every link, by name."""
    return tuple(read_link(read_toml(path), path.stem) for path in sorted((ROOT / "links").glob("*.toml")))


@lru_cache(maxsize=1)
def shipped_clusters() -> tuple[Cluster, ...]:
    """Every cluster, by name, on the GPUs and links above."""
    gpus = {gpu.name: gpu for gpu in shipped_gpus()}
    links = {link.name: link for link in shipped_links()}
    return tuple(
        read_cluster(read_toml(path), gpus.__getitem__, links.__getitem__, _gpu, _complete)
        for path in sorted((ROOT / "clusters").glob("*.toml"))
    )


def words(one: Gpu | Cluster) -> set[str]:
    """What a GPU or cluster is called, as names are compared."""
    return {word(text) for text in (one.name, *one.aliases)}


def list_gpus() -> list[Gpu]:
    """Every GPU shipped, by name."""
    return list(shipped_gpus())


def list_links() -> list[Link]:
    """Every link shipped, by name."""
    return list(shipped_links())


def list_clusters() -> list[Cluster]:
    """Every cluster shipped, by name."""
    return list(shipped_clusters())


def _gpu(record: Table) -> Gpu:
    return read_gpu(record, lambda _: "")


def _complete(gpu: Gpu) -> Cluster:
    raise AssertionError(f"a shipped cluster of {gpu.name} leaves out links or sizes")
