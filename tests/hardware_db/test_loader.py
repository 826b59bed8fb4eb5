"""The data files load, agree with published tables, and broken files end in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from hardware_db.units import UNITS, to_base

# Dense peaks [TFLOP/s], HBM [TB/s], usable memory [GiB]: summary of the vendors' data sheets.
PUBLISHED = {
    "a100-sxm-80": (312, None, None, 2.039, 80.0),
    "h100-sxm": (989.5, 1979, None, 3.35, 79.6),
    "h200-sxm": (989.5, 1979, None, 4.8, 140.4),
    "h20": (148, 296, None, 4.0, 95.1),
    "b200": (2250, 4500, 9000, 8.0, 178.36),
    "b300": (2250, 4500, 13500, 8.0, 268.6),
    "gb200": (2500, 5000, 10000, 8.0, 185.0),
    "gb300": (2500, 5000, 15000, 8.0, 277.5),
    "l40s": (362, 733, None, 0.864, 45.0),
    "mi300x": (1307, 2615, None, 5.3, 191.5),
    "mi355x": (2516, 5033, None, 8.0, 287.5),
}
# The `system` names of published measurements.
SYSTEMS = {
    "a100-40g (MosaicML)": "a100-sxm-40",
    "a100-80g (Ampere, ByteDance)": "a100-sxm-80",
    "a100-80g-selene": "a100-sxm-80",
    "b200-8gpu": "b200-700w",
    "b200-8gpu (power limited)": "b200-700w",
    "b200-4gpu": "gb200",
    "dgx-b200": "b200",
    "dgx-b300": "b300",
    "dgx-gb200-nvl72": "gb200",
    "dgx-gb300-nvl72": "gb300",
    "dgx-h100": "h100-sxm",
    "h100-80g (MosaicML)": "h100-sxm",
    "h100-80g-meta (Grand Teton, RoCE 400G/GPU)": "h100-sxm",
    "h100-96g-hbm2e-500w (Meta Grand Teton)": "h100-sxm-500w",
    "h200-8gpu-cx7": "h200-sxm",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_data_sheet_numbers(name):
    gpu = hardware_db.load_gpu(name)
    bf16, fp8, fp4, bandwidth, memory = PUBLISHED[name]
    assert gpu.peak("bf16") == bf16 * 1e12
    assert gpu.peak("fp8") == (fp8 * 1e12 if fp8 else None)
    assert gpu.peak("nvfp4") == (fp4 * 1e12 if fp4 else None) or name == "mi355x"
    assert gpu.get("hbm_bandwidth") == bandwidth * 1e12
    assert gpu.get("hbm_capacity_usable") == memory * 2**30


@pytest.mark.parametrize(("system", "gpu"), SYSTEMS.items())
def test_systems_of_published_runs_resolve(system, gpu):
    assert hardware_db.load_cluster(system).gpu.name == gpu


def test_every_file_loads_with_sources():
    for gpu in hardware_db.list_gpus():
        for key, quantity in gpu.quantities.items():
            assert quantity.source, (gpu.name, key)
            assert quantity.kind in ("datasheet", "derived", "measured", "assumed")
    assert len(hardware_db.list_clusters()) > 40
    assert {cluster.inter.scope for cluster in hardware_db.list_clusters()} == {"inter"}


def test_every_gpu_has_fitted_tables_and_one_cluster_that_its_name_means():
    for gpu in hardware_db.list_gpus():
        assert "bf16" in hardware_db.load_calibration(gpu)["gemm"], gpu.name
        cluster, note = hardware_db.resolve(gpu.name, None)
        assert cluster.gpu.name == gpu.name
        assert cluster.name in note


def test_a_gpu_means_its_common_cluster():
    assert hardware_db.resolve("b200", None)[0].name == "dgx-b200"
    assert hardware_db.resolve("A100", None)[0].name == "dgx-a100"
    assert hardware_db.resolve("gb200", None)[0].domain_size == 72


@pytest.mark.parametrize(
    ("said", "cluster"),
    [
        ("A100-40GB", "dgx-a100-40"),
        ("a100_40", "dgx-a100-40"),
        ("A100-80GB", "dgx-a100"),
        ("H100-80GB", "dgx-h100"),
        ("RTX 4090", "rtx4090-8"),
        ("rtx-5090", "rtx5090-8"),
        ("H100-PCIe-80GB", "h100-pcie-8"),
        ("h100-nvl", "h100-nvl-8"),
        ("A100-PCIE-40GB", "a100-pcie-40gb-8"),
        ("A100 PCIe 80GB", "a100-pcie-8"),
        ("RTX A6000", "a6000-8"),
        ("rtx-6000-ada", "rtx6000-ada-8"),
        ("3090", "rtx3090-8"),
        ("GH200", "gh200-1"),
        ("gh200-96", "gh200-1"),
        ("gh200-144", "gh200-144gb-1"),
        ("A10G", "aws-g5"),
        ("L4", "l4-8"),
    ],
)
def test_a_gpu_is_found_as_nvidia_smi_and_order_forms_spell_it(said, cluster):
    assert hardware_db.resolve(said, None)[0].name == cluster


@given(st.sampled_from(sorted(UNITS)), st.floats(1e-6, 1e6))
def test_units_are_linear(unit, value):
    assert to_base(value, unit) == pytest.approx(value * to_base(1.0, unit))


def test_units_that_are_often_confused():
    assert to_base(8, "Gbit/s") == to_base(1, "GB/s") == 1e9
    assert to_base(1, "GiB") > to_base(1, "GB")


GOOD = """
[gpu]
name = "mine"
generation = "hopper"
calibrated_like = "h100-sxm"
sm_count = { value = 132, unit = "1", kind = "measured", source = "me" }
hbm_capacity_usable = { value = 70, unit = "GiB", kind = "measured", source = "me" }
hbm_bandwidth = { value = 3.0, unit = "TB/s", kind = "measured", source = "me" }
peak_bf16 = { value = 900, unit = "TFLOP/s", kind = "measured", source = "me" }
"""


def test_a_users_gpu_file_works(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    cluster, note = hardware_db.resolve(str(path), None)
    assert cluster.gpu.get("hbm_bandwidth") == 3e12
    assert "dgx-h100" in note
    assert "assumed" in note


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("3.0, unit = \"TB/s\"", "3.0, unit = \"TB\\u002fhour\""), ["hbm_bandwidth", "TB/hour", "unknown"]),
        (("value = 70", "value = -70"), ["hbm_capacity_usable", "-70"]),
        (("value = 70", "value = nan"), ["hbm_capacity_usable", "nan"]),
        (("value = 70", "value = \"much\""), ["hbm_capacity_usable", "much"]),
        (("sm_count", "sm_counts"), ["sm_count"]),
        (("[gpu]", "[gpu"), ["not valid TOML"]),
        (("kind = \"measured\"", "kind = \"guessed\""), ["guessed", "datasheet"]),
    ],
)  # fmt: skip
def test_broken_files_say_file_key_and_rule(tmp_path, change, words):
    path = tmp_path / "broken.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ValueError, match=r"broken\.toml") as caught:
        hardware_db.resolve(str(path), None)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("key", "shown"),
    [("hbm_capacity_usable", '80, unit = "GiB"'), ("sm_count", '132, unit = "1"'), ("hbm_bandwidth", "TB/s")],
)
def test_what_is_missing_is_shown_in_its_own_unit(tmp_path, key, shown):
    path = tmp_path / "lean.toml"
    path.write_text("\n".join(line for line in GOOD.splitlines() if not line.startswith(key)))
    with pytest.raises(ValueError, match=f"{key}: missing") as caught:
        hardware_db.resolve(str(path), None)
    assert f"Write {key} = {{ value = " in str(caught.value)
    assert shown in str(caught.value)


CLUSTER = """
name = "pair-nodes"
gpu = "h100-sxm"
gpus_per_node = 2
intra = "nvlink4"
inter = "ib-hdr-200"
host_link = "pcie5-x16"
"""


@pytest.mark.parametrize(("node", "domain"), [(2, 3), (4, 6), (8, 3), (6, 4)])
def test_a_domain_and_a_node_are_whole_parts_of_one_another(tmp_path, node, domain):
    """A domain of 3 over nodes of 2 would take one GPU of a node and leave the other; it was accepted."""
    path = tmp_path / "odd.toml"
    path.write_text(CLUSTER.replace("gpus_per_node = 2", f"gpus_per_node = {node}\ndomain_size = {domain}"))
    with pytest.raises(ValueError, match="are not whole parts of one another") as caught:
        hardware_db.load_cluster(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("node", "domain"), [(2, 1), (2, 2), (2, 6), (8, 4), (4, 72)])
def test_domains_of_whole_nodes_and_nodes_of_whole_domains(tmp_path, node, domain):
    path = tmp_path / "even.toml"
    path.write_text(CLUSTER.replace("gpus_per_node = 2", f"gpus_per_node = {node}\ndomain_size = {domain}"))
    assert hardware_db.load_cluster(str(path)).domain_size == domain


def test_a_file_names_a_gpu_as_the_option_does(tmp_path):
    path = tmp_path / "pairs.toml"
    path.write_text(CLUSTER.replace("h100-sxm", "h100"))
    assert hardware_db.load_cluster(str(path)).gpu.name == "h100-sxm"
    path.write_text(GOOD.replace('calibrated_like = "h100-sxm"', 'calibrated_like = "H100"'))
    assert hardware_db.resolve(str(path), None)[0].gpu.calibrated_like == "h100-sxm"


def test_a_cluster_without_its_gpu_is_not_read_as_a_gpu(tmp_path):
    path = tmp_path / "pairs.toml"
    path.write_text(CLUSTER.replace('gpu = "h100-sxm"', ""))
    with pytest.raises(ValueError, match="key gpu: missing: the file describes a cluster"):
        hardware_db.load_cluster(str(path))


def test_gpus_of_a_node_that_a_file_leaves_out_are_said(tmp_path):
    path = tmp_path / "pairs.toml"
    path.write_text(CLUSTER)
    assert "assumed" not in hardware_db.load_cluster(str(path)).title
    path.write_text(CLUSTER.replace("gpus_per_node = 2", ""))
    assert hardware_db.load_cluster(str(path)).title.endswith("; 8 GPUs a node as dgx-h100 (assumed)")


def test_hostile_paths(tmp_path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(bytes(range(256)))
    for path in (tmp_path / "none.toml", binary):
        with pytest.raises(ValueError, match=str(path)):
            hardware_db.load_cluster(str(path))
    with pytest.raises(ValueError, match="folder"):
        hardware_db.load_cluster(f"{tmp_path}/")


@pytest.mark.parametrize(("given_name", "near"), [("b20", "b200"), ("h10", "h100"), ("dgx-b20", "dgx-b200")])
def test_unknown_names_suggest_the_nearest(given_name, near):
    with pytest.raises(ValueError, match=near):
        hardware_db.resolve(given_name, None)


OWN_LINK = """
gpu = "h100-sxm"
gpus_per_node = 2
inter = "ib-100"
"""
MESH = """
gpu = "mi300x"
gpus_per_node = 8
intra = "direct"
[links.direct]
topology = "mesh"
bandwidth = { value = 448, unit = "GB/s" }
latency = { value = 3, unit = "us" }
num_links = { value = 7, unit = "1" }
"""


def test_a_mesh_says_over_how_many_links_its_bandwidth_is_spread(tmp_path):
    path = tmp_path / "mesh.toml"
    path.write_text(MESH)
    assert hardware_db.load_cluster(str(path)).intra.peer_links == 7
    path.write_text(MESH.replace("gpus_per_node = 8", "gpus_per_node = 4"))  # half of a mesh of eight
    assert hardware_db.load_cluster(str(path)).intra.peer_links == 7
    path.write_text(MESH.replace("mesh", "switch"))
    assert hardware_db.load_cluster(str(path)).intra.peer_links == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("gpus_per_node = 8", "gpus_per_node = 16"), ["key domain_size", "16 GPUs", "Give 8 or fewer"]),
        (("num_links", "# num_links"), ["links.direct.num_links: missing"]),
        (("value = 7", "value = 3.5"), ["links.direct.num_links", "3.5", "not a whole number"]),
        (("value = 7", "value = 0"), ["links.direct.num_links", "above 0"]),
        (('"mesh"', '"ring"'), ["links.direct.topology", "'ring' is not known", "switch, mesh"]),
    ],
)
def test_a_mesh_has_a_link_to_each_other_gpu(tmp_path, change, words):
    path = tmp_path / "mesh.toml"
    path.write_text(MESH.replace(*change))
    with pytest.raises(ValueError, match=r"mesh\.toml") as caught:
        hardware_db.load_cluster(str(path))
    assert all(word in str(caught.value) for word in words), caught.value


def test_infinity_fabric_and_nvlink_without_switches_are_meshes():
    meshes = {link.name: link for link in hardware_db.list_links() if link.is_mesh}
    assert {name: link.bandwidth / link.peer_links / 1e9 for name, link in meshes.items()} == {
        "xgmi3": 64,
        "xgmi4": 76.5,
        "nvlink4-mesh": 150,
        "nvlink4-bridge": 300,
        "nvlink3-bridge": 300,
        "nvlink3-bridge-ga102": 56.25,
    }
    for cluster in hardware_db.list_clusters():
        if cluster.intra.is_mesh:
            assert cluster.domain_size == cluster.intra.peer_links + 1
            assert not cluster.has_nvlink_switch


DESCRIBED = """
[links.ib-100]
scope = "inter"
bandwidth = { value = 100, unit = "Gbit/s" }
latency = { value = 5, unit = "us" }
"""


def test_a_cluster_describes_its_own_link_as_the_error_says(tmp_path):
    """The way out that is told works below the cluster's words; it asked to write the GPU's name as a table."""
    path = tmp_path / "pair.toml"
    path.write_text(OWN_LINK)
    with pytest.raises(
        ValueError, match=r"link 'ib-100' is unknown\..* Or describe it as \[links\.ib-100\]\.$"
    ):
        hardware_db.resolve(None, str(path))
    path.write_text(OWN_LINK + DESCRIBED)
    found, _ = hardware_db.resolve(None, str(path))
    assert found.inter.bandwidth == 12.5e9
    assert found.gpu.name == "h100-sxm"
    path.write_text(f"[cluster]{OWN_LINK}{DESCRIBED}")  # the same with a table of its own
    assert hardware_db.resolve(None, str(path))[0].inter.bandwidth == 12.5e9
    path.write_text(f"[cluster]{OWN_LINK}{DESCRIBED.replace('[links', '[cluster.links')}")
    with pytest.raises(ValueError, match=r"key cluster\.links: unknown"):
        hardware_db.resolve(None, str(path))
