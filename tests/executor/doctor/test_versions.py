"""The doctor on versions: those that do not work together, and those that a plan needs."""

from __future__ import annotations

import pytest
from machines_of_files import GOOD, SMI, found

from executor.doctor.software import holds, listed, pairs


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"torch_cuda": "13.0"}, "driver 570.133.20 with cuda 13.0 | CUDA 13 needs a driver of branch 580"),
        ({"torch_cuda": "11.7"}, "cuda 11.7 with gpu 9.0 | Hopper"),
        ({"torch_cuda": ""}, "is a CPU build on a machine with GPUs"),
        ({"distributions": {"torch": "2.9.0"}}, "megatron-core not installed"),
        (
            {
                "distributions": {
                    "torch": "2.9.0",
                    "megatron-core": "0.16.1",
                    "transformer-engine-cu13": "2.9",
                }
            },
            "transformer-engine-cu13 2.9 with torch for CUDA 12.8",
        ),
    ],
)
def test_versions_that_do_not_work_together(maker, fields, said):
    failed = found(maker.machine(smi=SMI.splitlines()[0] + "\n", **fields), "fail")
    assert any(said in line for line in failed)


def test_what_a_plan_needs_of_versions(maker):
    machine = maker.machine(smi=SMI.splitlines()[0] + "\n")
    assert found(machine, "fail", {"precision": "bf16", "cp": 1}) == []
    failed = found(machine, "fail", {"precision": "fp8-cs"})
    assert "no transformer-engine with precision=fp8-cs" in failed[0]
    newer = GOOD | {"transformer-engine": "2.6.0"}
    assert (
        "2.6.0 with precision=nvfp4"
        in found(
            maker.machine(smi=SMI.splitlines()[0] + "\n", distributions=newer), "fail", {"precision": "nvfp4"}
        )[0]
    )


def test_precisions_and_fields_of_the_table_exist():
    import dataclasses

    from costmodel.knobs import KNOBS
    from costmodel.plan import Plan

    fields = {field.name for field in dataclasses.fields(Plan)}
    for pair in pairs():
        for asked in listed(pair.get("plan", {})):
            assert set(asked) <= fields
            for precision in asked.get("precision", []):
                assert precision in KNOBS["precision"].choices
        assert pair["source"]


@pytest.mark.parametrize(
    ("version", "wanted", "true"),
    [
        ("2.13.0+cpu", ">=2.6", True),
        ("2.6", ">=2.6.0", True),
        ("2.5.1", ">=2.6", False),
        ("12.8", ">=12.0 <13.0", True),
        ("13.0", ">=12.0 <13.0", False),
        ("10.0", ">=9.0 <10.0", False),
        ("0.16.1rc1", ">=0.17.1", False),
        ("2.4.0", "!=2.4.0", False),
        ("2.4", "!=2.4.0", False),
        ("2.4.1", "!=2.4.0", True),
    ],
)
def test_bounds_of_versions(version, wanted, true):
    assert holds(version, wanted) is true


@pytest.mark.parametrize(
    ("version", "warned"), [("2.4.0", True), ("2.4.0rc1", True), ("2.4.1", False), ("2.5.0", False)]
)
def test_the_nemo_that_the_guides_avoid(maker, version, warned):
    lines = found(maker.machine(distributions=GOOD | {"nemo-toolkit": version}), "warn")
    assert [line for line in lines if f"nemo {version} |" in line and "2.5.0" in line] == lines
    assert bool(lines) == warned


@pytest.mark.parametrize(
    "offload", [{"offload_layers": 8}, {"offload_modules": ["core_attn"]}, {"optimizer_offload": 50}]
)
def test_offloading_beside_an_old_nccl(maker, offload):
    old = GOOD | {"nvidia-nccl-cu12": "2.25.1"}
    machine = maker.machine(smi=SMI.splitlines()[0] + "\n", distributions=old)
    none = {"offload_layers": 0, "offload_modules": [], "optimizer_offload": 0}
    assert any("NCCL_NET_GDR_LEVEL=PHB" in line for line in found(machine, "warn", none | offload))
    assert not any("GDR" in line for line in found(machine, "warn", none))
