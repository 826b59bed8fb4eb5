"""Exports for AMD's GPUs: nothing of NVIDIA's drivers, tools, images or switches is in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_lm
from executor.export.bundle import Bundle, bundle
from executor.export.environment import environment
from executor.export.exported import TARGETS, Job
from executor.export.launch_read import launch_knobs

OF_NVIDIA = re.compile(
    r"nvidia-smi|nvcr\.io|NVLS|NVLink|boost-slider|nsys profile|Blackwell|\bSMs\b", re.IGNORECASE
)
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
ADDRESS = "0001:c5:00.0"


def job_of(plan: Plan, machine: str = "mi300x-8", model: str = "llama3-70b") -> Job:
    """A job of 4096 tokens."""
    return Job(plan, Workload(4096, 64), load_model(model), hardware_db.load_cluster(machine))


def made(plan: Plan, target: str = "megatron-lm", machine: str = "mi300x-8") -> Bundle:
    """The export with its job script."""
    return bundle(job_of(plan, machine), target, slurm=True)


@pytest.mark.parametrize("machine", ["mi300x-8", "mi325x-8", "mi355x-8"])
@pytest.mark.parametrize("target", TARGETS)
def test_scripts_name_nothing_that_amds_machines_have_not(target, machine):
    asked = {"use_nsys_profiler": True, "profile_ranks": "0,8"}
    plan = Plan(tp=8, dp=2, sequence_parallel=True, vboost=True, settings=asked)
    assert [text for text in made(plan, target, "dgx-h100").files.values() if OF_NVIDIA.search(text)]
    for name in ("train.sh", "job.sbatch"):
        text = made(plan, target, machine).files[name]
        assert not OF_NVIDIA.search(text), OF_NVIDIA.search(text)
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert not [note for note in made(plan, target, machine).exported.notes if "boost" in note]


@pytest.mark.parametrize(
    ("plan", "value"),
    [
        (Plan(tp=8, dp=2, sequence_parallel=True), "1"),
        (Plan(cp=2, dp=8), "1"),
        (Plan(dp=16), None),
        (Plan(tp=2, dp=8, fsdp=True, zero_stage=3), None),
        (Plan(dp=16, max_connections=8), "8"),
    ],
)
def test_connections_are_what_megatron_lm_asks_for(plan, value):
    """Below compute capability 10 its arguments demand 1 with tp or cp, and refuse it with FSDP (C054, C055)."""
    (found,) = (each for each in environment(job_of(plan)) if each.name == CONNECTIONS)
    assert found.value == value
    assert "queue" not in found.why


def test_variables_of_switches_are_left_out_and_those_of_pytorch_stay():
    names = {each.name for each in environment(job_of(Plan(dp=16, nvls=True, nccl_ub=True)))}
    assert not {name for name in names if name.startswith("NCCL_")}
    assert names >= {"PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_AVOID_RECORD_STREAMS"}
    (segments,) = (
        each for each in environment(job_of(Plan(dp=16))) if each.name == "PYTORCH_CUDA_ALLOC_CONF"
    )
    assert "ROCm 7.0" in segments.why


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_not_of_the_maker_is_told(target):
    told = [note for note in made(Plan(dp=16), target).exported.notes if "not checked" in note]
    assert len(told) == 1
    assert ("--to megatron-lm" in told[0]) == (target != "megatron-lm")
    assert not [note for note in made(Plan(dp=16), target, "dgx-h100").exported.notes if "ROCm" in note]


def test_the_place_of_megatron_lm_is_asked_for_and_nothing_else_is_lost():
    here, there = (megatron_lm.inputs(job_of(Plan(dp=16), machine)) for machine in ("mi300x-8", "dgx-h100"))
    assert here["MEGATRON_HOME"][0] == ""
    assert {name for name in there if here[name] != there[name]} == {"MEGATRON_HOME"}


@pytest.mark.parametrize(("node", "bound"), [("1", True), ("-1", False), (None, False)])
def test_ranks_are_bound_to_the_node_of_their_gpu(tmp_path: Path, node, bound):
    """torch tells the address of the rank's GPU; where it or the machine does not, the rank stays unbound."""
    devices = tmp_path / "devices"
    if node is not None:
        (devices / ADDRESS).mkdir(parents=True)
        (devices / ADDRESS / "numa_node").write_text(f"{node}\n")
    text = made(Plan(tp=8, dp=2, sequence_parallel=True)).files["train.sh"]
    assert "/sys/bus/pci/devices" in text
    (tmp_path / "train.sh").write_text(text.replace("/sys/bus/pci/devices", str(devices)))
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace\n"
        "gpus = {5: SimpleNamespace(pci_domain_id=1, pci_bus_id=0xc5, pci_device_id=0)}\n"
        "cuda = SimpleNamespace(get_device_properties=gpus.__getitem__)\n"
    )
    programs = {
        "python": f'if [[ "$1" == -c ]]; then exec {sys.executable} "$@"; fi\necho "PYTHON $1"\n',
        "numactl": 'echo "BOUND $1 $2"; shift 2; exec "$@"\n',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text("#!/bin/bash\n" + body)
        (tmp_path / name).chmod(0o755)
    path = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "LOCAL_RANK": "5",
        "RANK": "5",
    }
    command = ["bash", str(tmp_path / "train.sh"), "bound", "python", "-u", "pretrain_gpt.py"]
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert ("BOUND --cpunodebind=1 --membind=1" in done.stdout) == bound
    assert "PYTHON -u" in done.stdout


@pytest.mark.parametrize("binding", [True, False])
def test_the_binding_is_read_back(binding):
    text = made(Plan(dp=16, cpu_binding=binding)).files["train.sh"]
    assert launch_knobs(text)["cpu_binding"] == binding
