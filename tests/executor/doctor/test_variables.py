"""The doctor on variables: slips of names, and values that cost."""

from __future__ import annotations

import pytest
from machines_of_files import SMI, found

from executor.doctor.variables import known_names, slip_of


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NVTE_FLASH_ATT", "NVTE_FLASH_ATTN"),
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_NLVS_ENABLE", "NCCL_NVLS_ENABLE"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("CUDA_DEVICE_MAX_CONECTIONS", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("TORCH_NCCL_AVOID_RECORD_STREAM", "TORCH_NCCL_AVOID_RECORD_STREAMS"),
        ("nccl_debug", "NCCL_DEBUG"),
    ],
)
def test_slips_of_names(maker, name, meant):
    assert slip_of(name) == meant
    warned = found(maker.machine(environment={name: "1"}), "warn")
    assert any(f"Did you mean {meant}?" in line for line in warned)


def test_no_known_name_is_a_slip_of_another():
    assert {name: slip_of(name) for name in known_names() if slip_of(name)} == {}


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "NCCL_MY_OWN_THING", "CUDA_HOME", "OMPI_COMM_WORLD_RANK", "DEBUG"]
)
def test_other_names_are_left_alone(name):
    assert slip_of(name) is None


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warn", "nothing overlaps"),
        ({"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}, "warn", "only unfused attention"),
        (
            {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"},
            "fail",
            "every attention backend",
        ),
        ({"NCCL_PROTO": "simple"}, "warn", "low-latency"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:1"}, "warn", "only one of the two"),
    ],
)
def test_values_that_cost(maker, given, status, said):
    lines = found(maker.machine(environment=given), status)
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(("capability", "warned"), [("9.0", True), ("10.0", True), ("8.0", False)])
def test_the_attention_that_recipes_on_aws_switch_off(maker, capability, warned):
    """Guide 004 exports NVTE_FUSED_ATTN=0, which costs on Hopper and Blackwell."""
    first = SMI.splitlines()[0]
    assert ", 9.0, " in first
    machine = maker.machine(
        smi=first.replace(", 9.0, ", f", {capability}, ") + "\n", environment={"NVTE_FUSED_ATTN": "0"}
    )
    assert any("cuDNN's attention is off" in line for line in found(machine, "warn")) == warned
    assert not any(
        "cuDNN" in line for line in found(maker.machine(environment={"NVTE_FUSED_ATTN": "0"}), "warn")
    )


def test_threads_of_ranks_beyond_the_cores(maker):
    machine = maker.machine(smi=SMI, environment={"OMP_NUM_THREADS": "32"})
    assert any("Set OMP_NUM_THREADS=16" in line for line in found(machine, "warn"))


def test_a_harmless_environment_is_ok(maker):
    machine = maker.machine(environment={"CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "WARN"})
    assert any(line.startswith("environment: 2 variables") for line in found(machine, "ok"))
