"""What surrounds the GPUs of a maker, in whose words answers are told."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

import hardware_db
from advisor.comparison import Comparison
from advisor.comparison.sides import read_side
from advisor.rules import violations
from advisor.space.declared import declared_space
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, save_plan_file
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db.platforms import Platform, platforms

AMD = sorted(each.name for each in hardware_db.list_clusters() if each.gpu.vendor == "AMD")
# Words of NVIDIA's machines that no machine of AMD has; names of variables, which RCCL and PyTorch share, apart.
OF_NVIDIA = re.compile(r"NVLink|\bNCCL\b|CUDA (?!graphs are NVIDIA)|cudnn|NVSwitch|nvidia-smi", re.IGNORECASE)


def test_each_maker_of_gpus_has_one_platform_and_the_first_stands_for_others():
    known = {gpu.vendor for gpu in hardware_db.list_gpus()}
    assert known <= {vendor for each in platforms() for vendor in each.vendors} | {"local", "unknown"}
    assert [hardware_db.platform_of(vendor).name for vendor in ("NVIDIA", "AMD", "local", "")] == [
        "CUDA",
        "ROCm",
        "CUDA",
        "CUDA",
    ]
    assert all(getattr(each, field.name) for each in platforms() for field in fields(Platform))


@pytest.mark.parametrize("machine", AMD)
def test_terms_and_assumptions_have_words_of_the_maker(machine):
    cluster = hardware_db.load_cluster(machine)
    model, workload, plan = (
        load_model("llama3-70b"),
        Workload(8192, 64),
        Plan(tp=8, dp=2, sequence_parallel=True),
    )
    found = predict(model, workload, cluster, plan)
    titles = [part.title for part in (*found.time.leaves(), *found.memory.leaves())]
    assert "HIP context, libraries, RCCL buffers" in titles
    assert not [text for text in (*titles, *found.assumptions) if OF_NVIDIA.search(text)]
    assert "HIP context, libraries, RCCL buffers" in found.to_dict()["memory"]["components"]


def test_variables_keep_their_names():
    told = hardware_db.platform_of("AMD").told
    assert told("NCCL on TCP; set NCCL_DEBUG=INFO") == "RCCL on TCP; set NCCL_DEBUG=INFO"
    assert told("CUDA graphs, TORCH_NCCL_AVOID_RECORD_STREAMS, NVLink-C2C, NVLink domains") == (
        "HIP graphs, TORCH_NCCL_AVOID_RECORD_STREAMS, NVLink-C2C, Infinity Fabric domains"
    )


def test_nvidias_words_are_as_they_were():
    found = predict(
        load_model("llama3-70b"), Workload(8192, 64), hardware_db.load_cluster("dgx-h100"), Plan(tp=8, dp=2)
    )
    assert "CUDA context, libraries, NCCL buffers" in [part.title for part in found.memory.leaves()]
    assert declared_space() == declared_space(found.platform)
    assert any("NVLink" in line for line in declared_space())


def test_the_space_is_told_without_links_and_kernels_that_are_not_there():
    lines = declared_space(hardware_db.platform_of("AMD"))
    assert not [line for line in lines if OF_NVIDIA.search(line)]
    assert any("scale-up domain (Infinity Fabric)" in line for line in lines)


@pytest.mark.parametrize("machine", AMD)
@pytest.mark.parametrize(
    "plan", [Plan(dp=16, fsdp=True, zero_stage=3), Plan(dp=16, sharp=True), Plan(dp=16, max_connections=1)]
)
def test_rules_claim_nothing_of_streams_and_libraries_that_are_not_there(machine, plan):
    found = violations(load_model("llama3-70b"), Workload(8192, 64), hardware_db.load_cluster(machine), plan)
    assert not [
        each.line() for each in found if re.search(r"serialise|leaves one queue|\bNCCL\b", each.line())
    ]


def test_a_part_of_memory_is_one_line_beside_another_makers(tmp_path):
    """What is outside the allocator would stand in two lines, each against nothing."""
    sides = []
    for gpu in ("mi300x", "h100"):
        path = tmp_path / f"{gpu}.toml"
        plan = Plan(tp=2, dp=4, sequence_parallel=True)
        cluster = hardware_db.resolve(gpu, None)[0].name
        save_plan_file(path, PlanFile("llama3-8b", Workload(8192, 64), cluster, 8, plan))
        sides.append(read_side(str(path)))
    for a, b in (sides, sides[::-1]):
        lines = [line for line in Comparison(a, b).memory if "context" in line.name]
        assert len(lines) == 1
        assert min(lines[0].a, lines[0].b) > 0
        assert {"HIP context", "CUDA context"} <= set(re.findall(r"\w+ context", lines[0].name))
