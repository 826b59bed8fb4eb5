"""The doctor on a node with AMD's GPUs: it was told that there is no GPU, and that ranks run on the processor."""

from __future__ import annotations

import pytest
from machines_of_files import GOOD, SMI, found

NODES = "/sys/class/kfd/kfd/topology/nodes"
ROCM = {"distributions": {"torch": "2.9.0+rocm7.0", "megatron-core": "0.16.1"}, "torch_hip": "7.0.51831"}


@pytest.fixture
def node(maker):
    """Two processors and eight GPUs."""
    for number in range(10):
        maker.write(f"{NODES}/{number}/gpu_id", "0\n" if number < 2 else f"{4096 + number}\n")
        maker.write(f"/sys/devices/system/node/node{number % 2}/cpulist", "0-63\n")
    return maker


def test_gpus_of_amd_are_told_and_what_is_not_examined(node):
    machine = node.machine(**ROCM)
    assert machine.amd_gpus == 8
    assert not any("no GPU" in line for line in found(machine, "ok"))
    (line,) = found(machine, "warn")
    assert line.startswith("devices: 8 GPUs of AMD, which are not examined")
    assert "amd-smi" in line
    assert found(machine, "fail") == []


def test_other_machines_have_none(maker):
    assert maker.machine().amd_gpus == 0
    assert maker.machine(smi=SMI).amd_gpus == 0
    assert any("no GPU" in line for line in found(maker.machine(), "ok"))


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.9.0+cu128"])
def test_a_torch_that_does_not_see_them_fails(node, torch):
    (line,) = found(node.machine(distributions=GOOD | {"torch": torch}), "fail")
    assert f"torch {torch} is not built for ROCm" in line


@pytest.mark.parametrize(("rocm", "warned"), [("6.4.43482", True), ("7.0.51831", False)])
@pytest.mark.parametrize("segments", [True, False])
def test_growing_segments_need_a_release(node, rocm, warned, segments):
    lines = found(node.machine(**ROCM | {"torch_hip": rocm}), "warn", {"expandable_segments": segments})
    assert any("growing segments from ROCm 7.0 on" in line for line in lines) == (warned and segments)


def test_numa_balancing_counts_there_too(node):
    node.write("/proc/sys/kernel/numa_balancing", "1\n")
    assert any("automatic NUMA balancing is on" in line for line in found(node.machine(**ROCM), "warn"))
