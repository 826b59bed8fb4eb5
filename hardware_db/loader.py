"""Finds GPUs, links and clusters: those shipped by name or alias, a user's by path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hardware_db.catalogue import ROOT, shipped_clusters, shipped_gpus, shipped_links, words
from hardware_db.reading import Table, nearest, read_toml, shown
from hardware_db.records import (
    around,
    cluster_table,
    gpu_table,
    is_path,
    read_cluster,
    read_gpu,
    word,
)
from hardware_db.schema import Cluster, Gpu, Link, Quantity

# The cluster around a user's GPU of a generation, and the GPU whose fitted tables it uses, when its file
# names neither.
USUAL = {
    "ampere": "dgx-a100",
    "ada": "l40s-8",
    "hopper": "dgx-h100",
    "blackwell": "dgx-b200",
    "blackwell-ultra": "dgx-b300",
    "blackwell-consumer": "rtx-pro-6000-8",
    "cdna3": "mi300x-8",
    "cdna4": "mi355x-8",
}
# GPUs of Pascal, Volta and Turing that still train models, not shipped.
WITHOUT_BF16 = re.compile(
    r"(?<![a-z0-9])(?:[pv]100s?|t4|titan-?(?:v|rtx)|(?:rtx|gtx)-?(?:20|16|10)[5-8]0)(?![0-9])"
)
# For a generation that nothing is known of: PCIe 5 and one 400 Gbit/s card a GPU.
PLAIN = {"intra": "pcie5-x16", "inter": "ib-ndr-400", "host_link": "pcie5-x16"}
# For processors, whose ranks meet in the host's memory.
SHARED_MEMORY = dict.fromkeys(PLAIN, "host-shared-memory")


def load_gpu(name: str) -> Gpu:
    """A GPU by name or alias (any case), or from a user's file. ValueError when there is none."""
    for gpu in shipped_gpus():
        if word(name) in words(gpu):
            return gpu
    if is_path(name):
        return _user_gpu(_read(name))
    raise ValueError(_unknown("GPU", name, (text for gpu in shipped_gpus() for text in words(gpu)), "--gpu"))


def _gpu_in_file(name: str) -> Gpu:
    """A GPU as a user's file names it: also by the cluster that its name means, as h100 does."""
    named = _named_cluster(name)
    return named.gpu if named else load_gpu(name)


def load_link(name: str) -> Link:
    """A link by name. ValueError when there is none."""
    for link in shipped_links():
        if word(name) == link.name:
            return link
    names = [link.name for link in shipped_links()]
    near = nearest(word(name), names) or f"Known: {', '.join(names)}."
    raise ValueError(f"link {name!r} is unknown. {near}")


def load_cluster(name: str) -> Cluster:
    """A cluster by name or alias (any case), or from a user's file, which may hold gpu, links and calibration.

    A file with a GPU alone is a cluster of it with the links that are usual. ValueError in one line for a
    name or a file that is none.
    """
    for cluster in shipped_clusters():
        if word(name) in words(cluster):
            return cluster
    if is_path(name):
        return _user_cluster(_read(name))
    names = (text for cluster in shipped_clusters() for text in words(cluster))
    raise ValueError(_unknown("cluster", name, names, "--cluster"))


def resolve(gpu: str | None, cluster: str | None) -> tuple[Cluster, str]:
    """The cluster that `--gpu` or `--cluster` means, and one line that says so.

    A GPU means its most common cluster. Both together must agree, unless the GPU is a user's file: that one
    is then put into the cluster. ValueError for unknown names.
    """
    if cluster:
        found = load_cluster(cluster)
        return _with_gpu(found, gpu, cluster) if gpu else (found, f"cluster {found.name}: {_told(found)}")
    if not gpu:
        raise ValueError("no GPU named. Try --gpu b200, or `advisor hardware` for all.")
    named = _named_cluster(gpu)
    if named:
        return named, f"{shown(gpu)} means {named.name}: {_told(named)}"
    if is_path(gpu):
        found = _user_cluster(_read(gpu))
        return found, f"{shown(gpu)}: {found.title}"
    names = {text for one in shipped_gpus() for text in words(one)} | {
        text for one in shipped_clusters() for text in words(one)
    }
    raise ValueError(_unknown("--gpu", gpu, names, "--gpu", [one.name for one in shipped_gpus()]))


def load_calibration(gpu: Gpu | str) -> Mapping[str, Any]:
    """Fitted tables of a GPU, nested as in the file, with a Quantity at every leaf.

    What a user's profile measured replaces those of the GPU that it is like. Empty when there are none.
    """
    found = load_gpu(gpu) if isinstance(gpu, str) else gpu
    path = calibration_path(found.calibrated_like)
    shipped = _calibration(path) if path else {}
    return _over(shipped, found.own_calibration) if found.own_calibration else shipped


def calibration_path(gpu_name: str) -> Path | None:
    """File of the fitted tables of a GPU itself, None when it has none."""
    path = ROOT / "calibrated" / f"{gpu_name}.toml"
    return path if not is_path(gpu_name) and path.is_file() else None


def calibration_link(gpu: Gpu) -> Link | None:
    """The link over which collectives of a GPU's fitted tables were measured, None where no cluster tells it."""
    found = (
        one for one in shipped_clusters() if one.is_default_for_gpu and one.gpu.name == gpu.calibrated_like
    )
    return next((cluster.intra for cluster in found), None)


def _named_cluster(name: str) -> Cluster | None:
    """The shipped cluster that a GPU's or cluster's name means."""
    wanted = word(name)
    for cluster in shipped_clusters():
        if cluster.is_default_for_gpu and wanted in words(cluster.gpu):
            return cluster
    return next((cluster for cluster in shipped_clusters() if wanted in words(cluster)), None)


def _told(cluster: Cluster) -> str:
    """A cluster's title, and what its file notes of it."""
    return f"{cluster.title}; {cluster.note}" if cluster.note else cluster.title


def _with_gpu(found: Cluster, gpu: str, cluster: str) -> tuple[Cluster, str]:
    """`--gpu` and `--cluster` together."""
    named = _named_cluster(gpu)
    if named is None and is_path(gpu):
        own = _user_gpu(_read(gpu))
        title = f"{found.title}, with {own.title} in place of {found.gpu.title}"
        # Price and power are those of the GPUs that it is sold with.
        placed = replace(found, gpu=own, title=title, quantities={}, prices={}, is_default_for_gpu=False)
        return placed, f"cluster {found.name}: {title}"
    wanted = named.gpu.name if named else load_gpu(gpu).name
    # b200-700w is a b200 too.
    if found.gpu.name != wanted and not found.gpu.name.startswith(f"{wanted}-"):
        raise ValueError(
            f"--gpu {gpu} and --cluster {cluster} disagree: {found.name} has {found.gpu.name}. Drop one of them."
        )
    return found, f"cluster {found.name}: {_told(found)}"


def _unknown(what: str, given: str, words: Iterable[str], option: str, names: Iterable[str] = ()) -> str:
    if WITHOUT_BF16.search(word(given)):
        return (
            f"{what} {given!r} is unknown: GPUs before Ampere have no BF16, in which models are trained. "
            "`advisor hardware` lists what is known."
        )
    hint = nearest(word(given), words, 0.5) or (
        f"Known: {', '.join(names)}." if names else "`advisor hardware` lists what is known."
    )
    return f"{what} {given!r} is unknown. {hint} A file of your own works too: {option} ./mine.toml."


def _read(name: str) -> Table:
    try:
        return read_toml(Path(name).expanduser())
    except RuntimeError:  # ~nobody/mine.toml
        return read_toml(Path(name))


def _user_gpu(record: Table) -> Gpu:
    """The GPU of a user's file, with fitted tables that exist."""

    def like(generation: str) -> str:
        return load_cluster(USUAL[generation]).gpu.calibrated_like if generation in USUAL else ""

    found = read_gpu(record, like)
    if found.own_calibration and found.calibrated_like == found.name:
        return found
    table = gpu_table(record)
    if table is not None and "calibrated_like" in table.entries:
        try:
            return replace(found, calibrated_like=_gpu_in_file(found.calibrated_like).calibrated_like)
        except ValueError as error:
            raise table.error("calibrated_like", str(error)) from None
    return found


def _user_cluster(record: Table) -> Cluster:
    """The cluster of a user's file, or one around its GPU."""
    if cluster_table(record) is not None:
        return read_cluster(record, _gpu_in_file, load_link, _user_gpu, _usual)
    gpu = _user_gpu(record)
    return around(gpu, _usual(gpu), record.path)


def _usual(gpu: Gpu) -> Cluster:
    """The cluster whose nodes and links a user's GPU is taken to have."""
    for cluster in shipped_clusters():
        if cluster.is_default_for_gpu and cluster.gpu.name == gpu.calibrated_like:
            return cluster
    if gpu.generation in USUAL:
        return load_cluster(USUAL[gpu.generation])
    links = SHARED_MEMORY if gpu.generation == "cpu" else PLAIN
    return Cluster(
        name=" and ".join(dict.fromkeys(links.values())),
        title="",
        gpu=gpu,
        gpus_per_node=8,
        domain_size=8,
        intra=load_link(links["intra"]),
        inter=load_link(links["inter"]),
        host_link=load_link(links["host_link"]),
        quantities={},
        aliases=(),
        is_default_for_gpu=False,
        note="",
        path=gpu.path,
    )


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with those of `above` in place of the same ones below."""
    merged = dict(below)
    for key, entry in above.items():
        under = merged.get(key)
        nested = not isinstance(entry, Quantity) and isinstance(under, Mapping)
        merged[key] = _over(under, entry) if nested and under is not None else entry
    return merged


@lru_cache(maxsize=64)
def _calibration(path: Path) -> Mapping[str, Any]:
    return read_toml(path).nested()
