"""The doctor on the network: adapters, EFA and its provider, GPUDirect, interfaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines_of_files import SMI, found

from executor.doctor import Machine


def test_adapters_that_are_down_or_passed_by(maker):
    maker.adapters("mlx5_0")
    maker.adapters("mlx5_1", state="1: DOWN")
    machine = maker.machine(environment={"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"})
    warned = found(machine, "warn")
    assert any("1 of 2 RDMA adapters are not active: mlx5_1" in line for line in warned)
    assert any("NCCL_NET=Socket beside RDMA adapters" in line for line in warned)
    assert any("NCCL_IB_DISABLE=1 beside RDMA adapters" in line for line in warned)


def test_efa_needs_its_plugin(maker):
    maker.adapters("rdmap16s27", "rdmap32s27")
    assert any("no libnccl-net" in line for line in found(maker.machine(), "warn"))
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    assert found(maker.machine(), "warn") == []
    other = maker.machine(environment={"NCCL_NET_PLUGIN": "spcx"})
    assert any("NCCL_NET_PLUGIN=spcx beside EFA" in line for line in found(other, "warn"))


def with_fi_info(machine: Machine, answer: str | None, tool: str = "fi_info") -> Machine:
    """The machine with libfabric's tool, which finds `answer`."""

    def run(command: tuple[str, ...]) -> str | None:
        if command[0] != tool:
            return None
        return "fi_info: 2.1.0amzn3.0\nlibfabric: 2.1.0\n" if command[1] == "--version" else answer

    return replace(machine, run=run)


@pytest.mark.parametrize(
    ("answer", "tool", "said"),
    [
        ("provider: efa\n    fabric: efa\n    domain: rdmap16s27-rdm\n", "fi_info", "fi_info finds efa"),
        ("provider: efa\n", "/opt/amazon/efa/bin/fi_info", "fi_info finds efa"),
        (None, "elsewhere", "no fi_info here"),
    ],
)
def test_efa_whose_provider_is_there_or_cannot_be_asked_for(maker, answer, tool, said):
    maker.adapters("rdmap16s27")
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    machine = with_fi_info(maker.machine(), answer, tool)
    assert any(said in line for line in found(machine, "ok"))
    assert found(machine, "warn") == []


@pytest.mark.parametrize("answer", [None, "provider: tcp\n"])
def test_efa_whose_provider_is_missing_falls_back_to_tcp(maker, answer):
    maker.adapters("rdmap16s27")
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    (line,) = found(with_fi_info(maker.machine(), answer), "warn")
    assert "fi_info -p efa finds no provider" in line
    assert "TCP" in line


def test_a_provider_that_is_asked_for_otherwise(maker):
    asked = maker.machine(environment={"FI_PROVIDER": "efa"})
    assert any("FI_PROVIDER=efa and no EFA adapter" in line for line in found(asked, "warn"))
    maker.adapters("rdmap16s27")
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    assert found(asked, "warn") == []
    other = maker.machine(environment={"FI_PROVIDER": "tcp"})
    assert any("FI_PROVIDER=tcp beside EFA" in line for line in found(other, "warn"))


def test_gpudirect_that_is_missing(maker):
    maker.adapters("mlx5_0")
    gpu = SMI.splitlines()[0] + "\n"
    assert any("nvidia_peermem is not loaded" in line for line in found(maker.machine(smi=gpu), "warn"))
    maker.write(
        "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06"
    )
    assert found(maker.machine(smi=gpu), "warn") == []


def test_an_interface_that_is_not_there_fails(maker):
    maker.write("/sys/class/net/eth0/address", "")
    assert found(maker.machine(environment={"NCCL_SOCKET_IFNAME": "eth"}), "fail") == []
    assert found(maker.machine(environment={"NCCL_SOCKET_IFNAME": "^docker"}), "fail") == []
    one = SMI.splitlines()[0] + "\n"
    failed = found(maker.machine(smi=one, environment={"NCCL_SOCKET_IFNAME": "ib0"}), "fail")
    assert ["NCCL_SOCKET_IFNAME=ib0" in line for line in failed] == [True]
    assert (
        "GLOO_SOCKET_IFNAME=ib0" in found(maker.machine(environment={"GLOO_SOCKET_IFNAME": "ib0"}), "fail")[0]
    )


def test_ranks_without_gpus_ask_nothing_of_nccl(maker):
    """A shell made for a cluster kept a laptop from running: gloo alone is used there."""
    maker.write("/sys/class/net/eth0/address", "")
    given = {"NCCL_SOCKET_IFNAME": "ib0"}
    assert found(maker.machine(environment=given), "fail") == []
