"""Write hardware_db/{gpus,links,clusters}/*.toml from the YAML notes on hardware.

    python tools/convert_hardware.py DATA_FOLDER      # the folder `hardware` of the shared data

GPU numbers and cloud instances come from the YAML with their source; links and the clusters that
measurements were taken on are the tables below. Running it again gives the same bytes.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

import tomli_w
import yaml

ROOT = Path(__file__).resolve().parent.parent / "hardware_db"
READ_ON = datetime.date(2026, 11, 21)
KIND = {
    "datasheet": "datasheet",
    "vendor doc": "datasheet",
    "measured by third party": "measured",
    "measured in-house": "measured",
    "estimated": "assumed",
}
# stem -> (YAML, generation, GPU whose fitted tables it uses)
GPUS = {
    "a100-sxm-40": ("a100-sxm-40", "ampere", "a100-sxm-80"),
    "a100-sxm-80": ("a100-sxm-80", "ampere", "a100-sxm-80"),
    "h100-sxm": ("h100-sxm", "hopper", "h100-sxm"),
    "h200-sxm": ("h200-sxm", "hopper", "h200-sxm"),
    "h800": ("h800", "hopper", "h100-sxm"),
    "h20": ("h20", "hopper", "h20"),
    "b200": ("b200", "blackwell", "b200"),
    "b300": ("b300", "blackwell-ultra", "b300"),
    "gb200": ("gb200-nvl72", "blackwell", "gb200"),
    "gb300": ("gb300-nvl72", "blackwell-ultra", "gb300"),
    "l40s": ("l40s", "ada", "l40s"),
    "rtx4090": ("rtx4090", "ada", "rtx4090"),
    "rtx5090": ("rtx5090", "blackwell-consumer", "rtx5090"),
    "rtx-pro-6000": ("rtx-pro-6000-server", "blackwell-consumer", "rtx-pro-6000"),
    "mi300x": ("mi300x", "cdna3", "mi300x"),
    "mi325x": ("mi325x", "cdna3", "mi325x"),
    "mi355x": ("mi355x", "cdna4", "mi355x"),
}
# What a YAML leaves out: value, unit, source, note.
ADDED: dict[str, dict[str, tuple[float, str, str, str]]] = {
    "h800": {
        "sm_count": (132, "1", "as H100 SXM", "export variant: compute unchanged"),
        "hbm_capacity_usable": (79.6, "GiB", "as H100 SXM", ""),
        "peak_fp16": (989.5, "TFLOP/s", "as H100 SXM", ""),
        "peak_fp32": (67, "TFLOP/s", "as H100 SXM", ""),
    },
    "h20": {"hbm_capacity_usable": (95.1, "GiB", "0.99 of the marketing capacity, as on H100", "")},
    "rtx-pro-6000": {
        "peak_fp16": (467.8, "TFLOP/s", "as bf16", ""),
        "peak_fp32": (
            117,
            "TFLOP/s",
            "NVIDIA RTX PRO 6000 Server Edition datasheet (from memory)",
            "check before use",
        ),
    },
}
# name: title, scope, bandwidth a GPU and direction, unit, latency [us], source
LINKS: dict[str, tuple[str, str, float, str, float, str]] = {
    "nvlink3": ("NVLink 3 through NVSwitch", "intra", 300, "GB/s", 2.0, "NVIDIA A100 datasheet"),
    "nvlink4": ("NVLink 4 through NVSwitch", "intra", 450, "GB/s", 2.0, "NVIDIA H100 datasheet"),
    "nvlink4-h800": ("NVLink 4, 8 links (H800)", "intra", 200, "GB/s", 2.0, "SimAI, DeepEP README"),
    "nvlink5": ("NVLink 5 through NVSwitch", "intra", 900, "GB/s", 2.0, "NVIDIA HGX B200 page"),
    "xgmi3": ("Infinity Fabric, 7 x 64 GB/s mesh", "intra", 448, "GB/s", 3.0, "AMD MI300X datasheet"),
    "xgmi4": ("Infinity Fabric, 7 x 76.5 GB/s mesh", "intra", 535.5, "GB/s", 3.0, "AMD MI355X datasheet"),
    "pcie4-x16": ("PCIe 4.0 x16", "host", 31.5, "GB/s", 5.0, "PCI-SIG; ml-engineering, network"),
    "pcie5-x16": ("PCIe 5.0 x16", "host", 63, "GB/s", 5.0, "PCI-SIG; ml-engineering, network"),
    "pcie6-x16": ("PCIe 6.0 x16", "host", 126, "GB/s", 5.0, "PCI-SIG; ml-engineering, network"),
    "pcie4-no-p2p": (
        "PCIe 4.0 x16 through host memory",
        "intra",
        6,
        "GB/s",
        20.0,
        "L40S and RTX 4090: 1 to 10 GB/s all-reduce without peer-to-peer",
    ),
    "pcie5-no-p2p": (
        "PCIe 5.0 x16 through host memory",
        "intra",
        25,
        "GB/s",
        15.0,
        "RTX PRO 6000: 25 GB/s all-reduce, 8 GPUs",
    ),
    "nvlink-c2c": (
        "NVLink C2C, half a superchip's 450 GB/s a GPU",
        "host",
        225,
        "GB/s",
        2.0,
        "NVIDIA GB200 NVL72 page",
    ),
    "ib-hdr-200": (
        "InfiniBand HDR, one 200 Gbit/s card a GPU",
        "inter",
        200,
        "Gbit/s",
        5.0,
        "NVIDIA DGX A100 datasheet",
    ),
    "ib-ndr-400": (
        "InfiniBand NDR, one 400 Gbit/s card a GPU",
        "inter",
        400,
        "Gbit/s",
        5.0,
        "NVIDIA DGX H100 datasheet; ib_write_lat 5 us (OCI)",
    ),
    "ib-xdr-800": (
        "Quantum-X800 or Spectrum-X, 800 Gbit/s a GPU",
        "inter",
        800,
        "Gbit/s",
        5.0,
        "NVIDIA DGX B300 page",
    ),
    "roce-100": ("RoCE or TCPX, 100 Gbit/s a GPU", "inter", 100, "Gbit/s", 20.0, "Google Cloud A3 high"),
    "roce-200": (
        "RoCE or TCPXO, 200 Gbit/s a GPU",
        "inter",
        200,
        "Gbit/s",
        10.0,
        "Google Cloud A3 mega; MosaicML: 1600 Gbit/s a node",
    ),
    "roce-400": ("RoCE, 400 Gbit/s a GPU", "inter", 400, "Gbit/s", 8.0, "OCI, Google Cloud A3 ultra"),
    "roce-800": ("RoCE, 800 Gbit/s a GPU", "inter", 800, "Gbit/s", 8.0, "OCI B300, Google Cloud A4X Max"),
    "efa-50": ("EFA v1, 50 Gbit/s a GPU", "inter", 50, "Gbit/s", 40.0, "AWS P4d"),
    "efa-400": (
        "EFA, 400 Gbit/s a GPU",
        "inter",
        400,
        "Gbit/s",
        18.0,
        "AWS P5, P5e, P5en, P6-B200; 15 to 20 us a hop",
    ),
    "efa-800": ("EFA v4, 800 Gbit/s a GPU", "inter", 800, "Gbit/s", 18.0, "AWS P6-B300, P6e-GB200"),
}
# name: share of the rate that training was seen to move, kind, source, note
REACHED: dict[str, tuple[float, str, str, str]] = {
    "ib-xdr-800": (
        0.5,
        "derived",
        "Megatron-Bridge performance summaries 25.11 to 26.06, DGX B300 and GB300 NVL72",
        "derived: gpt-oss-120b with EP 64 over nodes takes 4.3 s longer than with EP 8 on B300 (9.80 and 5.45 s) and 4.2 s "
        "on B200 with 400 Gbit/s (10.18 and 5.97 s); collectives fitted to 44 runs come to 0.49 too, as if one of two "
        "ports were used",
    ),
    "roce-800": (
        0.5,
        "assumed",
        "as on ib-xdr-800, the same ConnectX-8",
        "no published run names this network",
    ),
}
NVL72 = {"gpus_per_node": 4, "domain_size": 72, "intra": "nvlink5", "host_link": "nvlink-c2c"}
HOPPER = {"intra": "nvlink4", "inter": "ib-ndr-400", "host_link": "pcie5-x16"}
AMPERE = {"intra": "nvlink3", "inter": "ib-hdr-200", "host_link": "pcie4-x16"}
# name: title, GPU, links and sizes, aliases, whether `--gpu` means it, USD a GPU-hour, source of the price, W a GPU
CLUSTERS: dict[str, tuple[str, str, dict[str, Any], list[str], bool, float | None, str, float | None]] = {
    "dgx-a100": ("DGX A100 80 GB, 8 GPUs a node, HDR InfiniBand", "a100-sxm-80", AMPERE, ["a100", "a100-80g", "a100-80g-8gpu", "a100-80g-cluster", "a100-80g-selene", "a100-80g (ampere, bytedance)", "hgx-a100"], True, 1.8, "0.80 to 3.00 on demand, May 2026", 813),
    "dgx-a100-40": ("DGX A100 40 GB, 8 GPUs a node, HDR InfiniBand", "a100-sxm-40", AMPERE, ["a100-40g"], True, 1.84, "AWS capacity block, late 2024", 813),
    "mosaicml-a100-40": ("MosaicML A100 40 GB, RoCE 1600 Gbit/s a node", "a100-sxm-40", AMPERE | {"inter": "roce-200"}, ["a100-40g (mosaicml)"], False, None, "", None),
    "mosaicml-a100-80": ("MosaicML A100 80 GB, RoCE 1600 Gbit/s a node", "a100-sxm-80", AMPERE | {"inter": "roce-200"}, ["a100-80g (mosaicml)"], False, None, "", None),
    "dgx-h100": ("DGX H100, 8 GPUs a node, NDR InfiniBand", "h100-sxm", HOPPER, ["h100", "hgx-h100", "h100-80g", "eos"], True, 2.95, "median of 37 providers, May 2026", 1275),
    "mosaicml-h100": ("MosaicML H100, RoCE 3200 Gbit/s a node", "h100-sxm", HOPPER | {"inter": "roce-400"}, ["h100-80g (mosaicml)"], False, None, "", None),
    "meta-h100": ("Meta Grand Teton H100, RoCE 400 Gbit/s a GPU", "h100-sxm", HOPPER | {"inter": "roce-400"}, ["h100-80g-meta (grand teton, roce 400g/gpu)", "h100-80g-meta"], False, None, "", None),
    "meta-h100-500w": ("Meta Grand Teton H100 96 GB HBM2e at 500 W, RoCE 400 Gbit/s a GPU", "h100-sxm-500w", HOPPER | {"inter": "roce-400"}, ["h100-96g-hbm2e-500w (meta grand teton)", "h100-96g-hbm2e-500w"], True, None, "", None),
    "dgx-h200": ("DGX H200, 8 GPUs a node, NDR InfiniBand", "h200-sxm", HOPPER, ["h200", "hgx-h200", "h200-8gpu-cx7"], True, 4.0, "2.50 to 7.00 on demand, 2026", 1275),
    "hgx-h800": ("H800, 8 GPUs a node, NDR InfiniBand", "h800", HOPPER | {"intra": "nvlink4-h800"}, ["dgx-h800"], True, None, "", 1275),
    "hgx-h20": ("H20, 8 GPUs a node, 400 Gbit/s a GPU", "h20", HOPPER, ["dgx-h20"], True, None, "", None),
    "dgx-b200": ("DGX B200 at 1000 W, 8 GPUs a node, NDR InfiniBand", "b200", {"intra": "nvlink5", "inter": "ib-ndr-400", "host_link": "pcie5-x16"}, ["hgx-b200", "b200-4gpu"], True, 5.25, "4.50 to 6.00 on demand, March 2026", 1788),
    "b200-700w": ("B200 at the 700 W set point, 8 GPUs a node", "b200-700w", {"intra": "nvlink5", "inter": "ib-ndr-400", "host_link": "pcie5-x16"}, ["b200-8gpu", "b200-8gpu (power limited)"], True, None, "", 1400),
    "dgx-b300": ("DGX B300, 8 GPUs a node, 800 Gbit/s a GPU", "b300", {"intra": "nvlink5", "inter": "ib-xdr-800", "host_link": "pcie6-x16"}, ["hgx-b300"], True, None, "", 1800),
    "gb200-nvl72": ("GB200 NVL72, 72 GPUs a rack in one NVLink domain", "gb200", NVL72 | {"inter": "ib-ndr-400"}, ["dgx-gb200-nvl72", "dgx-gb200", "nvl72-gb200"], True, 4.54, "Spheron, March 2026 (9.08 a superchip)", 1620),
    "gb300-nvl72": ("GB300 NVL72, 72 GPUs a rack in one NVLink domain", "gb300", NVL72 | {"inter": "ib-xdr-800"}, ["dgx-gb300-nvl72", "dgx-gb300", "nvl72-gb300"], True, None, "", 1875),
    "l40s-8": ("L40S, 8 GPUs a node over PCIe 4", "l40s", {"intra": "pcie4-no-p2p", "inter": "roce-200", "host_link": "pcie4-x16"}, [], True, 1.7, "1.55 to 1.82, Nebius 2026", 500),
    "rtx4090-8": ("RTX 4090, 8 GPUs a box over PCIe 4, no peer-to-peer", "rtx4090", {"intra": "pcie4-no-p2p", "inter": "roce-100", "host_link": "pcie4-x16"}, [], True, None, "", 600),
    "rtx5090-8": ("RTX 5090, 8 GPUs a box over PCIe 5, no peer-to-peer", "rtx5090", {"intra": "pcie5-no-p2p", "inter": "roce-100", "host_link": "pcie5-x16"}, [], True, None, "", 750),
    "rtx-pro-6000-8": ("RTX PRO 6000 Blackwell Server, 8 GPUs a node", "rtx-pro-6000", {"intra": "pcie5-no-p2p", "inter": "roce-400", "host_link": "pcie5-x16"}, [], True, 0.66, "packet.ai, from, June 2026", 900),
    "mi300x-8": ("MI300X, 8 GPUs a node, 400 Gbit/s a GPU", "mi300x", {"intra": "xgmi3", "inter": "roce-400", "host_link": "pcie5-x16"}, [], True, None, "", 1250),
    "mi325x-8": ("MI325X, 8 GPUs a node, 400 Gbit/s a GPU", "mi325x", {"intra": "xgmi3", "inter": "roce-400", "host_link": "pcie5-x16"}, [], True, None, "", 1600),
    "mi355x-8": ("MI355X, 8 GPUs a node, 400 Gbit/s a GPU", "mi355x", {"intra": "xgmi4", "inter": "roce-400", "host_link": "pcie5-x16"}, [], True, None, "", 2100),
}  # fmt: skip
CLOUDS = {
    "cloud-aws": ("aws", "efa"),
    "cloud-azure": ("azure", "ib"),
    "cloud-gcp": ("gcp", "roce"),
    "cloud-oci": ("oci", "roce"),
    "cloud-coreweave": ("coreweave", "ib"),
}
NETWORKS = {"ib-200": "ib-hdr-200", "ib-400": "ib-ndr-400", "ib-800": "ib-xdr-800"}


def quantity(value: float, unit: str, kind: str, source: str, note: str = "") -> dict[str, Any]:
    """One number as the TOML files hold it."""
    record: dict[str, Any] = {
        "value": value,
        "unit": unit,
        "kind": kind,
        "source": source,
        "read_on": READ_ON,
    }
    return record | ({"note": note} if note else {})


def from_yaml(entry: Any, sources: dict[str, Any], unit: str) -> dict[str, Any] | None:
    """A YAML value with its source's title; None where the YAML has no number."""
    if not isinstance(entry, dict) or isinstance(entry.get("value"), bool | str | list | None.__class__):
        return None
    keys = entry["src"] if isinstance(entry["src"], list) else [entry["src"]]
    titles = "; ".join(str(sources.get(key, {}).get("title", key)) for key in keys)
    return quantity(entry["value"], unit, KIND[entry["conf"]], titles, str(entry.get("note", "")))


def gpu_record(stem: str, folder: Path) -> dict[str, Any]:
    """One GPU's TOML."""
    name, generation, like = GPUS[stem]
    data = yaml.safe_load((folder / f"{name}.yaml").read_text())
    gpu, sources = data["gpu"], data.get("sources", {})
    title = data["name"].replace("NVIDIA ", "").replace("AMD Instinct ", "").split(" (")[0]
    record: dict[str, Any] = {
        "name": stem,
        "title": title,
        "vendor": data.get("vendor") or ("AMD" if stem.startswith("mi") else "NVIDIA"),
        "generation": generation,
        "calibrated_like": like,
    }
    memory = gpu["memory"]
    fields = {
        "sm_count": (gpu.get("sm_count") or gpu.get("cu_count"), "1"),
        "boost_clock": (gpu.get("boost_clock"), "MHz"),
        "l2_cache": (gpu.get("l2"), "MiB"),
        "power": (gpu.get("power_max"), "W"),
        "hbm_capacity": (memory.get("capacity_marketing"), "GB"),
        "hbm_capacity_usable": (memory.get("capacity_usable"), "GiB"),
        "hbm_bandwidth": (memory.get("bandwidth"), "TB/s"),
    }
    for key, (entry, unit) in fields.items():
        found = from_yaml(entry, sources, unit)
        if found:
            record[key] = found
    for dtype, entry in gpu["peak_dense"].items():
        unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
        found = from_yaml(entry, sources, unit)
        if found and "POP/s" in str(entry.get("unit")):
            found["value"] = round(1000 * found["value"], 3)
        if found:
            record[f"peak_{dtype}"] = found
    for key, (value, unit, source, note) in ADDED.get(stem, {}).items():
        record.setdefault(key, quantity(value, unit, "assumed", source, note))
    conflicts = data.get("conflicts")
    if conflicts:
        record["conflicts"] = [str(line) for line in conflicts]
    return record


def variants(records: dict[str, dict[str, Any]]) -> None:
    """GPUs that runs were measured on and no data sheet describes."""
    meta = records["h100-sxm"] | {"name": "h100-sxm-500w", "title": "H100 96 GB HBM2e at 500 W (Meta)"}
    source = "torchtitan benchmarks: H100 96 GB HBM2e, 500 W"
    meta["power"] = quantity(500, "W", "measured", source)
    meta["hbm_capacity"] = quantity(96, "GB", "measured", source)
    meta["hbm_capacity_usable"] = quantity(95.0, "GiB", "measured", source, "torchtitan prints 95.0 GiB")
    meta["hbm_bandwidth"] = quantity(
        2.4, "TB/s", "assumed", source, "five HBM2e stacks at 3.0 to 3.2 Gbit/s a pin"
    )
    records["h100-sxm-500w"] = meta
    capped = records["b200"] | {"name": "b200-700w", "title": "B200 180 GB at the 700 W set point"}
    note = "DGX B200 default set point; that these machines run at it is an assumption"
    capped["power"] = quantity(700, "W", "datasheet", "NVIDIA DGX B200 user guide, power capping", note)
    records["b200-700w"] = capped


def cluster_record(name: str) -> dict[str, Any]:
    """One cluster's TOML."""
    title, gpu, links, aliases, default, price, price_source, power = CLUSTERS[name]
    record: dict[str, Any] = {"name": name, "title": title, "gpu": gpu, "gpus_per_node": 8, "domain_size": 8}
    record |= links | {"aliases": aliases, "default": default}
    if price is not None:
        record["price_per_gpu_hour"] = quantity(price, "USD/h", "measured", price_source)
    if power is not None:
        note = "GPU power with its share of the node: 1.79 x GPU for DGX B200, 1.35 x for NVL72, else assumed"
        record["power_per_gpu"] = quantity(power, "W", "assumed", "node power / GPUs", note)
    return record


def cloud_records(folder: Path) -> dict[str, dict[str, Any]]:
    """One cluster per cloud instance, on the GPU and links of the family it inherits."""
    by_yaml = {yaml_name: stem for stem, (yaml_name, _, _) in GPUS.items()}
    families = {CLUSTERS[name][1]: CLUSTERS[name] for name in reversed(CLUSTERS) if CLUSTERS[name][4]}
    records: dict[str, dict[str, Any]] = {}
    for file, (cloud, fabric) in CLOUDS.items():
        data = yaml.safe_load((folder / f"{file}.yaml").read_text())
        for instance, entry in data["instances"].items():
            rate = (entry.get("net_per_gpu") or {}).get("value") or 400
            if "inherits" not in entry:
                continue
            gpu = by_yaml[entry["inherits"].removesuffix(".yaml")]
            family = families[gpu]
            word = (
                instance.split(" / ")[0]
                .split(".48")[0]
                .split(".24")[0]
                .lower()
                .replace(" ", "-")
                .replace("_", "-")
            )
            name = f"{cloud}-{word}"
            link = f"{fabric}-{rate}"
            record = {
                "name": name,
                "title": f"{data['name']} {instance}: {entry['gpu']['value']}, {(entry.get('fabric') or {}).get('value', '')}".rstrip(
                    ", "
                ),
                "gpu": gpu,
                "gpus_per_node": family[2].get("gpus_per_node", 8),
                "domain_size": family[2].get("domain_size", 8),
                "intra": family[2]["intra"],
                "inter": NETWORKS.get(link, link),
                "host_link": family[2]["host_link"],
                "aliases": [instance.lower()] if " " not in instance else [],
                "default": False,
            }
            prices = [one for one in entry.get("price") or [] if isinstance(one.get("value"), int | float)]
            if prices:
                record["price_per_gpu_hour"] = quantity(
                    prices[0]["value"], "USD/h", "measured", prices[0]["unit"].removeprefix("USD/GPU-hr ")
                )
            records[name] = record
    return records


def write(folder: str, records: dict[str, dict[str, Any]]) -> None:
    """One file per record, nothing else in the folder."""
    target = ROOT / folder
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.toml"):
        old.unlink()
    for name, record in records.items():
        (target / f"{name}.toml").write_text(tomli_w.dumps(record))


def main(folder: Path) -> None:
    """Write all three folders."""
    gpus = {stem: gpu_record(stem, folder) for stem in GPUS}
    variants(gpus)
    links = {
        name: {
            "name": name,
            "title": title,
            "scope": scope,
            "bandwidth": quantity(rate, unit, "datasheet", source),
            "latency": quantity(latency, "us", "assumed", source),
        }
        for name, (title, scope, rate, unit, latency, source) in LINKS.items()
    }
    for name, (share, kind, source, note) in REACHED.items():
        links[name]["reached"] = quantity(share, "1", kind, source, note)
    write("gpus", gpus)
    write("links", links)
    write("clusters", {name: cluster_record(name) for name in CLUSTERS} | cloud_records(folder))
    print(f"{len(gpus)} GPUs, {len(links)} links, {len(list((ROOT / 'clusters').glob('*.toml')))} clusters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder `hardware` of the shared data")
    main(parser.parse_args().folder)
