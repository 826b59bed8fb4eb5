"""Reads the data files, and a user's own, with errors that name file, key and unit."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hardware_db.schema import KINDS, Cluster, Gpu, Link, Quantity
from hardware_db.units import UNITS

ROOT = Path(__file__).parent
LARGEST_FILE = 4 * 2**20  # bytes; a data file is a few KiB
# Links of a user's GPU file that names no cluster.
PLAIN_LINKS = {"intra": "pcie5-x16", "inter": "ib-ndr-400", "host": "pcie5-x16"}


def load_gpu(name: str) -> Gpu:
    """A GPU by name (as `gpus/NAME.toml`) or from a user's file."""
    if _is_path(name):
        path = Path(name)
        return _gpu(path, _read(path), path.stem)
    path = _find("gpus", name)
    return _gpu(path, _read(path), path.stem)


def load_link(name: str) -> Link:
    """A link by name (as `links/NAME.toml`)."""
    path = _find("links", name)
    return _link(path, _read(path), path.stem)


def load_cluster(name: str) -> Cluster:
    """A cluster by name or alias, or from a user's file, which may hold gpu, links and calibration too."""
    wanted = name.strip().lower()
    for cluster in _shipped_clusters():
        if wanted in (cluster.name, *cluster.aliases):
            return cluster
    if _is_path(name):
        path = Path(name)
        return _cluster(path, _read(path))
    known = [word for cluster in _shipped_clusters() for word in (cluster.name, *cluster.aliases)]
    raise ValueError(_unknown("--cluster", name, known, [cluster.name for cluster in _shipped_clusters()]))


def resolve(gpu: str | None, cluster: str | None) -> tuple[Cluster, str]:
    """The cluster that `--gpu` or `--cluster` means, and one line that says so.

    A GPU means its most common cluster. Both together must agree. ValueError for unknown names.
    """
    if cluster:
        found = load_cluster(cluster)
        if gpu and not _is_path(gpu) and gpu.strip().lower() not in _gpu_words(found):
            raise ValueError(
                f"--gpu {gpu} and --cluster {cluster} disagree: {found.name} has {found.gpu.name}. Drop one of them."
            )
        return found, f"cluster {found.name}: {found.title}"
    if not gpu:
        raise ValueError("no GPU named. Try --gpu b200, or `advisor hardware` for all.")
    if _is_path(gpu):
        path = Path(gpu)
        record = _read(path)
        found = _cluster(path, record) if "cluster" in record else _plain_cluster(path, record)
        return found, f"{gpu}: {found.title}"
    wanted = gpu.strip().lower()
    defaults = [one for one in _shipped_clusters() if one.is_default_for_gpu]
    for one in defaults:
        if wanted in _gpu_words(one):
            return one, f"{gpu} means {one.name}: {one.title}"
    for one in _shipped_clusters():
        if wanted in (one.name, *one.aliases):
            return one, f"{gpu} means {one.name}: {one.title}"
    words = [word for one in defaults for word in _gpu_words(one)]
    raise ValueError(_unknown("--gpu", gpu, words, [one.gpu.name for one in defaults]))


def load_calibration(gpu: Gpu) -> Mapping[str, Any]:
    """Fitted tables of a GPU, nested as in the file, with a Quantity at every leaf.

    A user's profile brings its own. Empty when neither the GPU nor its sibling has tables.
    """
    if gpu.own_calibration:
        return gpu.own_calibration
    path = calibration_path(gpu.calibrated_like)
    return _calibration(path) if path else {}


def calibration_path(gpu_name: str) -> Path | None:
    """File of the fitted tables of a GPU, None when it has none."""
    path = ROOT / "calibrated" / f"{gpu_name}.toml"
    return path if path.is_file() else None


def list_gpus() -> list[Gpu]:
    """Every GPU shipped, by name."""
    return [load_gpu(path.stem) for path in sorted((ROOT / "gpus").glob("*.toml"))]


def list_links() -> list[Link]:
    """Every link shipped, by name."""
    return [load_link(path.stem) for path in sorted((ROOT / "links").glob("*.toml"))]


def list_clusters() -> list[Cluster]:
    """Every cluster shipped, by name."""
    return list(_shipped_clusters())


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or "\\" in name


def _gpu_words(cluster: Cluster) -> tuple[str, ...]:
    return (cluster.gpu.name, cluster.name, *cluster.aliases)


def _unknown(option: str, given: str, words: Iterable[str], names: Iterable[str]) -> str:
    near = difflib.get_close_matches(given.lower(), sorted(set(words)), n=3, cutoff=0.5)
    hint = f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(sorted(set(names)))}."
    return f"{option} {given!r} is unknown. {hint} A file of your own works too: {option} ./mine.toml."


def _find(folder: str, name: str) -> Path:
    path = ROOT / folder / f"{name.strip().lower()}.toml"
    if not path.is_file():
        known = [one.stem for one in (ROOT / folder).glob("*.toml")]
        raise ValueError(_unknown(folder[:-1], name, known, known))
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a folder, not a TOML file. Name the file inside it.")
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, which no hardware file is.")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist. `advisor hardware` lists what is known.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text. A hardware file is TOML in UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None


def _quantity(path: Path, key: str, record: Any) -> Quantity:
    if not isinstance(record, Mapping) or "value" not in record or "unit" not in record:
        raise ValueError(
            f'{path}, key {key}: a quantity needs value and unit, as in {{ value = 8.0, unit = "TB/s" }}.'
        )
    value, unit = record["value"], record["unit"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{path}, key {key}: value {value!r} is not a number from 0 up.")
    if unit not in UNITS:
        raise ValueError(f"{path}, key {key}: unit {unit!r} is unknown. Units: {', '.join(UNITS)}.")
    kind = record.get("kind", "assumed")
    if kind not in KINDS:
        raise ValueError(f"{path}, key {key}: kind {kind!r} is not one of {', '.join(KINDS)}.")
    residual = record.get("residual")
    return Quantity(
        float(value), unit, kind, str(record.get("source", f"{path.name}, no source given")),
        str(record.get("read_on", "")), str(record.get("note", "")), float(residual) if residual is not None else None,
    )  # fmt: skip


def _quantities(path: Path, table: Mapping[str, Any]) -> dict[str, Quantity]:
    return {key: _quantity(path, key, record) for key, record in table.items() if isinstance(record, Mapping)}


def _text(path: Path, table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or not value:
        raise ValueError(f'{path}, key {key}: text is missing, as in {key} = "b200".')
    return value


def _count(path: Path, table: Mapping[str, Any], key: str, default: int) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**20:
        raise ValueError(f"{path}, key {key}: {value!r} is not a whole number from 1 up.")
    return value


def _gpu(path: Path, record: Mapping[str, Any], name: str) -> Gpu:
    table = record.get("gpu", record)
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}, key gpu: not a table.")
    name = _text(path, table, "name", name)
    calibration = record.get("calibration", {})
    gpu = Gpu(
        name=name,
        title=_text(path, table, "title", name),
        vendor=_text(path, table, "vendor", "unknown"),
        generation=_text(path, table, "generation", "unknown"),
        quantities=_quantities(path, table),
        calibrated_like=_text(path, table, "calibrated_like", name),
        path=path,
        own_calibration=_nested(path, "calibration", calibration) if calibration else {},
    )
    for key in ("hbm_bandwidth", "hbm_capacity_usable", "sm_count"):
        if gpu.get(key) <= 0:
            raise ValueError(f"{path}, key {key}: must be more than 0.")
    return gpu


def _link(path: Path, table: Mapping[str, Any], name: str) -> Link:
    quantities = _quantities(path, table)
    for key in ("bandwidth", "latency"):
        if key not in quantities:
            raise ValueError(f"{path}: link {name} has no {key!r}.")
    if quantities["bandwidth"].si <= 0:
        raise ValueError(f"{path}, key bandwidth: must be more than 0.")
    return Link(
        name=_text(path, table, "name", name),
        title=_text(path, table, "title", name),
        scope=_text(path, table, "scope", "intra"),
        bandwidth=quantities["bandwidth"].si,
        latency=quantities["latency"].si,
        quantities=quantities,
        path=path,
    )


def _cluster(path: Path, record: Mapping[str, Any]) -> Cluster:
    table = record.get("cluster", record)
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}, key cluster: not a table.")
    gpu = _gpu(path, record, path.stem) if "gpu" in record and isinstance(record["gpu"], Mapping) else load_gpu(
        _text(path, table, "gpu")
    )  # fmt: skip
    own_links = record.get("links", {})

    def link(role: str) -> Link:
        name = _text(path, table, role, PLAIN_LINKS["host" if role == "host_link" else role])
        if name in own_links:
            return _link(path, own_links[name], name)
        return load_link(name)

    name = _text(path, table, "name", path.stem)
    gpus_per_node = _count(path, table, "gpus_per_node", 8)
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ValueError(f"{path}, key aliases: not a list of names.")
    return Cluster(
        name=name,
        title=_text(path, table, "title", name),
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        domain_size=_count(path, table, "domain_size", gpus_per_node),
        intra=link("intra"),
        inter=link("inter"),
        host_link=link("host_link"),
        quantities=_quantities(path, table),
        aliases=tuple(alias.lower() for alias in aliases),
        is_default_for_gpu=bool(table.get("default", False)),
        note=str(table.get("note", "")),
        path=path,
    )


def _plain_cluster(path: Path, record: Mapping[str, Any]) -> Cluster:
    """A cluster around a user's GPU file that describes none: eight GPUs a node over plain links."""
    gpu = _gpu(path, record, path.stem)
    like = next(
        (
            one
            for one in _shipped_clusters()
            if one.is_default_for_gpu and one.gpu.name == gpu.calibrated_like
        ),
        None,
    )
    intra, inter, host = (
        (like.intra, like.inter, like.host_link)
        if like
        else (load_link(PLAIN_LINKS[role]) for role in ("intra", "inter", "host"))
    )
    links = f"links as {like.name}" if like else "PCIe 5 and 400 Gbit/s InfiniBand"
    title = f"eight {gpu.title} a node, {links} (assumed: the file names none)"
    return Cluster(
        name=gpu.name,
        title=title,
        gpu=gpu,
        gpus_per_node=8,
        domain_size=like.domain_size if like else 8,
        intra=intra,
        inter=inter,
        host_link=host,
        quantities={},
        aliases=(),
        is_default_for_gpu=False,
        note="",
        path=path,
    )


@lru_cache(maxsize=1)
def _shipped_clusters() -> tuple[Cluster, ...]:
    return tuple(_cluster(path, _read(path)) for path in sorted((ROOT / "clusters").glob("*.toml")))


@lru_cache(maxsize=64)
def _calibration(path: Path) -> Mapping[str, Any]:
    return _nested(path, "", _read(path))


def _nested(path: Path, prefix: str, table: Any) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}, key {prefix}: not a table.")
    result: dict[str, Any] = {}
    for key, entry in table.items():
        where = f"{prefix}.{key}" if prefix else key
        if isinstance(entry, Mapping):
            result[key] = _quantity(path, where, entry) if "value" in entry else _nested(path, where, entry)
    return result
