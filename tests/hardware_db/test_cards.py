"""Cards and superchips that borrow the kernels of another GPU: their peaks, formats, links and aliases."""

from __future__ import annotations

from itertools import chain

import pytest

import hardware_db

# Dense 16-bit FLOPs of a multiprocessor in a cycle with fp32 accumulation; GeForce and the A10G at half the rate.
# Sources: NVIDIA whitepapers of GA100 (2048), GA102 and AD102 (1024), GH100 (4096), from memory.
FLOPS_A_CYCLE = {
    "a100-pcie": 2048,
    "a100-pcie-40gb": 2048,
    "a40": 1024,
    "a6000": 1024,
    "a10g": 512,
    "rtx3090": 512,
    "rtx6000-ada": 1024,
    "l4": 1024,
}
# Hopper cards, whose sheets print rates below the boost clock: [MHz] of the peak.
HOPPER_CLOCK = {"h100-pcie": 1620, "h100-nvl": 1545, "gh200": 1830, "gh200-144gb": 1830}
BORROWERS = (*FLOPS_A_CYCLE, *HOPPER_CLOCK)


@pytest.mark.parametrize("name", FLOPS_A_CYCLE)
def test_a_peak_is_multiprocessors_times_clock(name):
    gpu = hardware_db.load_gpu(name)
    peak = gpu.get("sm_count") * FLOPS_A_CYCLE[name] * gpu.get("boost_clock")
    assert gpu.peak("bf16") == pytest.approx(peak, rel=3e-3)


@pytest.mark.parametrize("name", HOPPER_CLOCK)
def test_a_hopper_peak_is_of_a_clock_up_to_the_boost(name):
    gpu = hardware_db.load_gpu(name)
    assert gpu.peak("bf16") == pytest.approx(gpu.get("sm_count") * 4096 * HOPPER_CLOCK[name] * 1e6, rel=2e-3)
    assert HOPPER_CLOCK[name] * 1e6 <= gpu.get("boost_clock")


@pytest.mark.parametrize("name", BORROWERS)
def test_kernels_are_those_of_a_measured_gpu_of_the_generation(name):
    gpu = hardware_db.load_gpu(name)
    kin = hardware_db.load_gpu(gpu.calibrated_like)
    assert kin.generation == gpu.generation
    assert hardware_db.load_calibration(kin)["gemm"]["bf16"]["fraction"].kind == "measured"
    text = gpu.path.read_text()
    assert text.startswith("# "), "why these kernels"


@pytest.mark.parametrize("name", BORROWERS)
def test_formats_are_those_of_the_generation(name):
    gpu = hardware_db.load_gpu(name)
    assert (gpu.peak("fp8") is None) == (gpu.generation == "ampere")
    assert gpu.peak("nvfp4") is None
    if gpu.generation != "ampere":
        assert gpu.peak("fp8") == pytest.approx(2 * gpu.peak("bf16"), rel=1e-3)


@pytest.mark.parametrize("name", BORROWERS)
def test_memory_that_a_process_can_use_is_a_little_less_than_is_sold(name):
    gpu = hardware_db.load_gpu(name)
    share = gpu.get("hbm_capacity_usable") / 2**30 / (gpu.get("hbm_capacity") / 1e9)
    assert 0.91 < share <= 1


def test_no_name_means_two_gpus_or_clusters():
    for things in (hardware_db.list_gpus(), hardware_db.list_clusters()):
        names = [name.lower() for name in chain.from_iterable((one.name, *one.aliases) for one in things)]
        shared = {name for name in names if names.count(name) > 1}
        assert shared <= {"a100-80g (ampere, bytedance)"}


def test_cards_have_their_generations_pcie():
    for name in BORROWERS:
        cluster = hardware_db.resolve(name, None)[0]
        hopper = cluster.gpu.generation == "hopper"
        if name.startswith("gh200"):
            assert cluster.has_c2c
            assert cluster.gpus_per_node == cluster.domain_size == 1
        else:
            assert cluster.host_link.name == ("pcie5-x16" if hopper else "pcie4-x16")
            assert cluster.intra.name.startswith("pcie5" if hopper else "pcie4")
            assert not cluster.has_nvlink_switch


@pytest.mark.parametrize("gpu", ["h100-pcie", "h100-nvl", "a100-pcie", "a40", "a6000", "rtx3090"])
def test_cards_with_bridges_have_a_cluster_of_pairs(gpu):
    pairs = hardware_db.load_cluster(f"{gpu}-pairs")
    assert (pairs.gpus_per_node, pairs.domain_size) == (8, 2)
    assert pairs.intra.bandwidth > pairs.inter.bandwidth
    assert not pairs.is_default_for_gpu
    assert "several nodes" in hardware_db.resolve(None, pairs.name)[1]
    plain = hardware_db.resolve(gpu, None)[0]
    assert pairs.inter.bandwidth == plain.intra.bandwidth  # the same PCIe


def test_four_superchips_of_a_node_are_joined_without_a_switch():
    for name in ("alps", "jupiter"):
        cluster = hardware_db.load_cluster(name)
        assert (cluster.gpus_per_node, cluster.domain_size, cluster.intra.peer_links) == (4, 4, 3)
        assert cluster.has_c2c
        assert not cluster.has_nvlink_switch
    assert hardware_db.load_cluster("dgx-h100").has_nvlink_switch
    assert hardware_db.load_cluster("gb200-nvl72").has_c2c


def test_a_bridge_joins_two(tmp_path):
    path = tmp_path / "four.toml"
    path.write_text(
        'gpu = "a6000"\ngpus_per_node = 8\ndomain_size = 4\n'
        'intra = "nvlink3-bridge-ga102"\ninter = "roce-100"\nhost_link = "pcie4-x16"\n'
    )
    with pytest.raises(ValueError, match=r"1 link of a GPU reaches 1 other,.* Give 2 or fewer"):
        hardware_db.load_cluster(str(path))


@pytest.mark.parametrize("name", ["V100", "v100-sxm2-32gb", "Tesla T4", "RTX 2080 Ti", "p100"])
def test_gpus_without_bf16_are_told_so(name):
    with pytest.raises(ValueError, match="before Ampere have no BF16"):
        hardware_db.resolve(name, None)


@pytest.mark.parametrize("name", ["rtx 4080", "h200-nvl", "mi210", "b100"])
def test_others_that_are_unknown_are_not(name):
    with pytest.raises(ValueError, match="is unknown") as caught:
        hardware_db.resolve(name, None)
    assert "BF16" not in str(caught.value)
