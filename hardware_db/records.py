"""GPUs, links and clusters from their tables. A user's file may hold all of them, a bundle:

[gpu] ...  [cluster] ...  [links.NAME] ...  [calibration.gemm.bf16.fraction] ...

A cluster of a known GPU may stand without [cluster], its words at the top and its own links as [links.NAME] below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hardware_db.reading import Table, nearest, shown
from hardware_db.schema import (
    CLUSTER_KEYS,
    GENERATIONS,
    GPU_KEYS,
    GPU_NEEDS,
    LINK_KEYS,
    LINK_NEEDS,
    SCOPES,
    TOPOLOGIES,
    Cluster,
    Gpu,
    Link,
)

GPU_WORDS = (
    "name",
    "title",
    "vendor",
    "generation",
    "calibrated_like",
    "aliases",
    "conflicts",
    "references",
)
LINK_WORDS = ("name", "title", "scope", "topology", "note")
ROLES = ("intra", "inter", "host_link")
CLUSTER_WORDS = (
    "name",
    "title",
    "gpu",
    "gpus_per_node",
    "domain_size",
    *ROLES,
    "aliases",
    "default",
    "note",
    "prices",
)
# Words that no file of a GPU has.
CLUSTER_ONLY = {"gpus_per_node", "domain_size", *ROLES}
BUNDLE_WORDS = ("gpu", "cluster", "links", "calibration")


def word(text: str) -> str:
    """A name as names are compared: small letters, spaces and underscores as hyphens."""
    return "-".join(text.lower().replace("_", "-").split())


def is_bundle(record: Table) -> bool:
    """Whether a file holds [gpu], [cluster], [links.*], [calibration] rather than one of them alone."""
    gpu, tables = record.entries.get("gpu"), [name for name in BUNDLE_WORDS[1:] if name in record.entries]
    if isinstance(gpu, str):  # of a cluster, beside which its own links may stand
        return tables not in ([], ["links"])
    return bool(tables) or gpu is not None


def gpu_table(record: Table) -> Table | None:
    """Where a file describes a GPU; None when it describes a cluster of a known one."""
    if is_bundle(record):
        return record.table("gpu") if "gpu" in record.entries else None
    return None if "gpu" in record.entries else record


def cluster_table(record: Table) -> Table | None:
    """Where a file describes a cluster; None when it describes a GPU alone."""
    if is_bundle(record):
        for name in record.entries:
            near = nearest(name, BUNDLE_WORDS, 0.75) if name not in BUNDLE_WORDS else ""
            if near:
                raise record.error(name, f"unknown. {near}")
        return record.table("cluster") if "cluster" in record.entries else None
    return record if "gpu" in record.entries else None


def read_gpu(record: Table, calibrated_like: Callable[[str], str]) -> Gpu:
    """The GPU that a file describes. calibrated_like(generation) names the tables of one that names none.

    ValueError in one line where it describes none, or not whole.
    """
    table = gpu_table(record)
    if table is None:
        raise ValueError(f"{record.path} describes no GPU. Name it with --cluster, or add a table [gpu].")
    if CLUSTER_ONLY & set(table.entries):
        raise table.error("gpu", 'missing: the file describes a cluster. Name its GPU, as gpu = "h100-sxm".')
    table.check_words(GPU_WORDS, GPU_KEYS)
    for key in GPU_NEEDS:
        table.quantity(key, GPU_KEYS[key])
    name = table.text("name", record.path.stem)
    generation = table.one_of("generation", GENERATIONS, "unknown")
    own = record.table("calibration").nested() if is_bundle(record) else {}
    return Gpu(
        name=name,
        title=table.text("title", name),
        vendor=table.text("vendor", "unknown"),
        generation=generation,
        quantities=table.quantities(GPU_KEYS, above_zero=GPU_KEYS.keys() - {"peer_access"}),
        calibrated_like=table.text("calibrated_like", name if own else calibrated_like(generation) or name),
        path=record.path,
        own_calibration=own,
        aliases=table.texts("aliases"),
        conflicts=table.texts("conflicts"),
        references={
            title: table.table("references").text(title) for title in table.table("references").entries
        },
    )


def read_link(table: Table, name: str) -> Link:
    """The link that a table describes."""
    table.check_words(LINK_WORDS, LINK_KEYS)
    for key in LINK_NEEDS:
        table.quantity(key, LINK_KEYS[key])
    quantities = table.quantities(LINK_KEYS, above_zero=("bandwidth", "num_links"))
    name = table.text("name", name)
    return Link(
        name=name,
        title=table.text("title", name),
        scope=table.one_of("scope", SCOPES, "intra"),
        bandwidth=quantities["bandwidth"].si,
        latency=quantities["latency"].si,
        quantities=quantities,
        path=table.path,
        peer_links=_peer_links(table),
        is_mesh=_is_mesh(table),
    )


def _is_mesh(table: Table) -> bool:
    return table.one_of("topology", TOPOLOGIES, "switch") == "mesh"


def _peer_links(table: Table) -> int:
    """Links over which a link's bandwidth is spread: `num_links` of a mesh, which has one to each other GPU, else 1."""
    if not _is_mesh(table):
        return 1
    count = table.quantity("num_links", LINK_KEYS["num_links"], above_zero=True).si
    if count != int(count):
        raise table.error(
            "num_links", f"{count:g} is not a whole number: a mesh has a link to each other GPU."
        )
    return int(count)


def read_cluster(
    record: Table,
    gpu: Callable[[str], Gpu],
    link: Callable[[str], Link],
    own_gpu: Callable[[Table], Gpu],
    usual: Callable[[Gpu], Cluster],
) -> Cluster:
    """The cluster that a file describes, with the GPU and links that it names or holds.

    What it leaves out is as in the usual cluster of its GPU, and the title says so.
    """
    table = cluster_table(record)
    assert table is not None
    table.check_words((*CLUSTER_WORDS, *(("links",) if table is record else ())), CLUSTER_KEYS)
    found_gpu = _gpu_of(record, table, gpu, own_gpu)
    own_links = {name: read_link(one, name) for name, one in _own_links(record).items()}
    assumed: dict[str, str] = {}

    def found_link(role: str) -> Link:
        if role not in table.entries:
            like = usual(found_gpu)
            assumed.setdefault(like.name, role)
            found: Link = getattr(like, role)
            return found
        named = table.text(role)
        if named in own_links:
            return own_links[named]
        try:
            return link(named)
        except ValueError as error:
            raise table.error(role, f"{error} Or describe it as [links.{shown(named)}].") from None

    links = {role: found_link(role) for role in ROLES}
    name = table.text("name", record.path.stem)
    like = None if "gpus_per_node" in table.entries else usual(found_gpu)
    gpus_per_node, domain_size = _sizes(table, like)
    _check_mesh(table, domain_size, links["intra"])
    title = table.text("title", name) + "".join(f"; links as {kin} (assumed)" for kin in assumed)
    if like is not None:
        title += f"; {gpus_per_node} GPUs a node as {like.name} (assumed)"
    prices = table.table("prices")
    return Cluster(
        name=name,
        title=title,
        gpu=found_gpu,
        gpus_per_node=gpus_per_node,
        domain_size=domain_size,
        intra=links["intra"],
        inter=links["inter"],
        host_link=links["host_link"],
        quantities=table.quantities(CLUSTER_KEYS, above_zero=("power_per_gpu",)),
        aliases=tuple(text.lower() for text in table.texts("aliases")),
        is_default_for_gpu=table.flag("default"),
        note=table.text("note") if "note" in table.entries else "",
        path=record.path,
        prices={key: prices.quantity(key, "USD/h") for key in prices.entries},
    )


def _gpu_of(record: Table, table: Table, gpu: Callable[[str], Gpu], own_gpu: Callable[[Table], Gpu]) -> Gpu:
    if gpu_table(record) is not None:
        found = own_gpu(record)
        if "gpu" in table.entries and word(table.text("gpu")) != word(found.name):
            raise table.error("gpu", f"the file describes the GPU {found.name} itself. Drop one of them.")
        return found
    named = table.text("gpu")
    try:
        return gpu(str(_beside(record.path, named)))
    except ValueError as error:
        raise table.error("gpu", str(error)) from None


def _own_links(record: Table) -> dict[str, Table]:
    return record.table("links").tables()


def _sizes(table: Table, usual: Cluster | None) -> tuple[int, int]:
    """GPUs of a node and of a scale-up domain: whole domains in a node, or whole nodes in a domain.

    A node's GPUs are wired alike, so that no domain takes some of them and leaves the others (NVL72: 18 trays of 4).
    """
    gpus_per_node = table.count("gpus_per_node", usual.gpus_per_node if usual else 8)
    spans = usual is not None and usual.domain_size > usual.gpus_per_node
    domain_size = table.count("domain_size", usual.domain_size if usual and spans else gpus_per_node)
    if max(gpus_per_node, domain_size) % min(gpus_per_node, domain_size):
        raise table.error(
            "domain_size",
            f"a domain of {domain_size} GPUs and a node of {gpus_per_node} are not whole parts of one another. "
            f"Give a divisor of {gpus_per_node}, or a multiple of it where a domain spans nodes.",
        )
    return gpus_per_node, domain_size


def _check_mesh(table: Table, domain_size: int, link: Link) -> None:
    """ValueError where a domain has more GPUs than a mesh's links reach. Fewer are part of a larger mesh."""
    many = link.peer_links
    if link.is_mesh and domain_size > many + 1:
        reach = (
            "1 link of a GPU reaches 1 other" if many == 1 else f"{many} links of a GPU reach {many} others"
        )
        raise table.error(
            "domain_size",
            f"link {link.name} is a mesh, whose {reach}, and "
            f"a domain of {domain_size} GPUs needs one to each. Give {many + 1} or fewer.",
        )


def around(gpu: Gpu, like: Cluster, path: Path) -> Cluster:
    """A cluster of a GPU whose file describes none: nodes and links of `like`, no price and no power."""
    title = f"{like.gpus_per_node} {gpu.title} a node, links as {like.name} (assumed: the file names none)"
    return replace(
        like,
        name=gpu.name,
        title=title,
        gpu=gpu,
        quantities={},
        prices={},
        aliases=(),
        is_default_for_gpu=False,
        note="",
        path=path,
    )


def is_path(text: str) -> bool:
    """Whether a name that is not known can only mean a file."""
    return text.lower().endswith(".toml") or "/" in text or "\\" in text


def _beside(file: Path, named: str) -> Path | str:
    """A path as written in `file`, relative to its folder; a plain name as it is."""
    return file.parent / named if is_path(named) else named
