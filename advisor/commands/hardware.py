"""advisor hardware: the GPUs, links and clusters known, or one of them with every source."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

import click

import hardware_db
from advisor.commands import HELP
from advisor.render import gpus_text, heading, table, wrap
from hardware_db import Cluster, Gpu, Link, Quantity
from hardware_db.units import three_figures


@click.command(name="hardware", context_settings=HELP)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(name: str | None, as_json: bool) -> None:
    """The GPUs, links and clusters known; with NAME, every value with unit, kind, source and date.

    NAME is what --gpu or --cluster takes, a link, or a TOML file of your own.

    \b
    advisor hardware          all of them
    advisor hardware b200     one GPU, and the cluster that --gpu b200 means
    """
    if name is None:
        click.echo(json.dumps(catalogue(), indent=2, default=str) if as_json else overview())
        return
    found, note = find(name)
    click.echo(json.dumps(details(found, note), indent=2, default=str) if as_json else page(found, note))


def find(name: str) -> tuple[Gpu | Link | Cluster, str]:
    """The GPU, link or cluster called `name`, and what `--gpu NAME` would mean ('' for links)."""
    wanted = name.strip().lower()
    if wanted.endswith(".toml"):
        cluster, note = hardware_db.resolve(name, None)
        # A file with a GPU alone is shown as the GPU, with the cluster assumed around it in the note.
        return (cluster.gpu if cluster.name == cluster.gpu.name else cluster), note
    for link in hardware_db.list_links():
        if link.name == wanted:
            return link, ""
    for gpu in hardware_db.list_gpus():
        if gpu.name == wanted:
            return gpu, _meaning(wanted)
    try:
        return hardware_db.load_cluster(name), _meaning(wanted)
    except ValueError as error:
        if "is unknown" not in str(error):
            raise
    names = [
        one.name
        for one in (*hardware_db.list_gpus(), *hardware_db.list_links(), *hardware_db.list_clusters())
    ]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    hint = f"Did you mean {', '.join(near)}?" if near else "`advisor hardware` lists all."
    raise ValueError(f"{name!r} is no GPU, link or cluster. {hint}")


def _meaning(name: str) -> str:
    try:
        return hardware_db.resolve(name, None)[1]
    except ValueError:
        return ""


def overview() -> str:
    """Tables of GPUs, clusters and links."""
    gpus = [
        [
            gpu.name,
            gpu.generation,
            *(_number(gpu.peak(dtype), 1e12) for dtype in ("bf16", "fp8", "nvfp4")),
            f"{gpu.get('hbm_capacity_usable') / 2**30:.0f}",
            f"{gpu.get('hbm_bandwidth') / 1e12:.2f}",
            f"{gpu.get('power'):.0f}",
        ]
        for gpu in hardware_db.list_gpus()
    ]
    defaults = {
        cluster.gpu.name: cluster.name
        for cluster in hardware_db.list_clusters()
        if cluster.is_default_for_gpu
    }
    clusters = [
        [
            cluster.name,
            cluster.gpu.name,
            str(cluster.domain_size),
            f"{cluster.intra.bandwidth / 1e9:.0f}" if cluster.domain_size > 1 else "-",
            f"{cluster.inter.bandwidth * 8 / 1e9:.0f}",
            f"{cluster.price_per_gpu_hour:.2f}" if cluster.price_per_gpu_hour else "-",
            f"--gpu {cluster.gpu.name}" if defaults.get(cluster.gpu.name) == cluster.name else "",
        ]
        for cluster in hardware_db.list_clusters()
    ]
    lines = [
        heading("GPUs"),
        wrap("Dense peaks [TFLOP/s], usable memory [GiB], memory bandwidth [TB/s], power [W].", "  "),
        *table(["gpu", "generation", "bf16", "fp8", "fp4", "GiB", "TB/s", "W"], gpus, "llrrrrrr"),
        "",
        heading("Clusters"),
        wrap(
            "GPUs of one scale-up domain, its link [GB/s a GPU], network [Gbit/s a GPU], USD a GPU-hour.",
            "  ",
        ),
        *table(["cluster", "gpu", "domain", "GB/s", "Gbit/s", "USD/h", "meant by"], clusters, "llrrrrl"),
        "",
        heading("Links"),
        wrap(
            "What connects the GPUs of a domain (intra), nodes (inter) and hosts; of one GPU, one way.", "  "
        ),
        *table(["link", "scope", "GB/s", "us", "what it is"], _link_rows(), "llrrl"),
        "",
        wrap(
            "`advisor hardware NAME` shows every value with its source. --gpu and --cluster also take a TOML file."
        ),
    ]
    return "\n".join(lines).lstrip("\n")


def _link_rows() -> list[list[str]]:
    scopes = ("intra", "inter", "host")
    links = sorted(hardware_db.list_links(), key=lambda link: (scopes.index(link.scope), -link.bandwidth))
    return [
        [link.name, link.scope, f"{link.bandwidth / 1e9:,.4g}", f"{link.latency * 1e6:.3g}", link.title]
        for link in links
    ]


def _number(value: float | None, scale: float) -> str:
    return three_figures(value / scale, "") if value else "-"


def page(found: Gpu | Link | Cluster, note: str) -> str:
    """One of them in full."""
    lines = [heading(f"{found.name}: {found.title}")]
    if note and not note.endswith(f": {found.title}"):  # of a file, the title again
        lines.append(wrap(note, "  "))
    lines.append("")
    if isinstance(found, Cluster):
        lines += [
            f"  {gpus_text(found.domain_size)} a scale-up domain, {found.gpus_per_node} a node",
            f"  gpu        {found.gpu.name}: {found.gpu.title}",
            *(
                wrap(_link_line(role, link), "  ", " " * 13)
                for role, link in _links(found).items()
                if role != "scale-up" or found.domain_size > 1
            ),
            *([wrap(f"note       {found.note}", "  ", " " * 13)] if found.note else []),
            *([""] if found.quantities else []),
        ]
    for key, quantity in found.quantities.items():
        read = f", read {quantity.read_on}" if quantity.read_on else ""
        lines.append(f"  {key:<22} {quantity.value:>10,g} {quantity.unit:<8} {quantity.kind}")
        lines.append(wrap(f"{quantity.source}{read}", " " * 8))
        if quantity.note:
            lines.append(wrap(f"note: {quantity.note}", " " * 8))
    gpu = found if isinstance(found, Gpu) else None
    if gpu:
        lines += ["", *_calibration_lines(gpu)]
    lines += ["", f"  file: {found.path}"]
    return "\n".join(lines).lstrip("\n")


def _links(cluster: Cluster) -> dict[str, Link]:
    return {"scale-up": cluster.intra, "network": cluster.inter, "host": cluster.host_link}


def _link_line(role: str, link: Link) -> str:
    """What a link is and does: its rate is that of one GPU, one way."""
    rate = f"{link.bandwidth / 1e9:,.4g} GB/s a GPU one way, {link.latency * 1e6:.3g} us"
    mesh = f", over {link.peer_links} links, one to each other GPU" if link.peer_links > 1 else ""
    return f"{role:<10} {link.name}: {link.title}, {rate}{mesh}"


def _calibration_lines(gpu: Gpu) -> list[str]:
    tables = hardware_db.load_calibration(gpu)
    if not tables:
        return ["  no fitted kernel tables"]
    sibling = f" (of {gpu.calibrated_like})" if gpu.calibrated_like != gpu.name else ""
    rows = [
        [
            path,
            f"{quantity.value:.4g}",
            quantity.unit,
            quantity.kind,
            "" if quantity.residual is None else f"{quantity.residual:.3f}",
        ]
        for path, quantity in _leaves(tables)
    ]
    title = f"  Fitted constants{sibling}; residual is the mean |log(model / measured)|"
    return [title, *table(["constant", "value", "unit", "kind", "residual"], rows, "lrllr")]


def _leaves(tables: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Quantity]]:
    found: list[tuple[str, Quantity]] = []
    for key, entry in tables.items():
        path = f"{prefix}.{key}" if prefix else key
        found += [(path, entry)] if isinstance(entry, Quantity) else _leaves(entry, path)
    return found


def catalogue() -> dict[str, Any]:
    """Everything as plain values."""
    return {
        "gpus": [details(gpu, "") for gpu in hardware_db.list_gpus()],
        "links": [details(link, "") for link in hardware_db.list_links()],
        "clusters": [details(cluster, "") for cluster in hardware_db.list_clusters()],
    }


def details(found: Gpu | Link | Cluster, note: str) -> dict[str, Any]:
    """One of them as plain values; quantities as in the file."""
    record: dict[str, Any] = {"name": found.name, "title": found.title, "file": found.path.name}
    if note:
        record["meant_by_gpu"] = note
    if isinstance(found, Cluster):
        record |= {
            "gpu": found.gpu.name,
            "gpus_per_node": found.gpus_per_node,
            "domain_size": found.domain_size,
            "links": {role: link.name for role, link in _links(found).items()},
            "aliases": list(found.aliases),
        }
    record["quantities"] = {
        key: {
            name: getattr(quantity, name) for name in ("value", "unit", "kind", "source", "read_on", "note")
        }
        for key, quantity in found.quantities.items()
    }
    return record
