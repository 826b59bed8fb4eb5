"""What a plan says, what is priced and what an export makes of it are one, or a note says which is not."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.export.bundle import bundle
from executor.export.exported import TARGETS, Job
from executor.megatron_args import core_fields

CLUSTER = hardware_db.load_cluster("dgx-h100")
MODEL = load_model("llama3-8b")


def time_and_memory(**knobs) -> tuple[float, float]:
    found = predict(MODEL, Workload(4096, 128), CLUSTER, Plan(dp=8, **knobs))
    return found.step_time_s, found.peak_memory_bytes


def notes_of(target: str, workload: Workload | None = None, **knobs) -> list[str]:
    job = Job(Plan(dp=8, **knobs), workload or Workload(4096, 128), MODEL, CLUSTER)
    return list(bundle(job, target, slurm=False).exported.notes)


@pytest.mark.parametrize("backend", ["fused", "unfused"])
def test_selective_recompute_without_modules_is_that_of_the_attention_core(backend):
    """Megatron-Core's own choice, which exports run: nothing was priced, a half less memory with unfused attention."""
    told = {"recompute": "selective", "attention_backend": backend}
    named = told | {"recompute_modules": ("core_attn",)}
    assert time_and_memory(**told) == time_and_memory(**named)
    assert time_and_memory(**told)[0] > time_and_memory(attention_backend=backend)[0]
    assert core_fields(Plan(**told), MODEL)["recompute_modules"] == ["core_attn"]
    assert Plan(recompute_modules=("mlp",)).recomputed_modules == ()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fp8_attention_changes_nothing_without_fp8(precision):
    """Rule fp8_attention_precision said so; the price was another by 1 to 4 %."""
    assert time_and_memory(precision=precision, fp8_attention=True) == time_and_memory(precision=precision)
    assert time_and_memory(precision="fp8-cs", fp8_attention=True) != time_and_memory(precision="fp8-cs")


@pytest.mark.parametrize("off", [("overlap_grad_reduce",), ("overlap_grad_reduce", "overlap_param_gather")])
def test_fsdp_overlaps_whatever_the_plan_says(off):
    """Rule fsdp_overlap_forced; the step was priced up to 40 % longer."""
    fsdp = {"fsdp": True, "zero_stage": 3}
    assert time_and_memory(**fsdp, **dict.fromkeys(off, False)) == time_and_memory(**fsdp)
    shards = {"fsdp": True, "zero_stage": 2}
    assert time_and_memory(**shards, overlap_grad_reduce=False) == time_and_memory(**shards)
    assert time_and_memory(**shards, overlap_param_gather=False) != time_and_memory(**shards)


@pytest.mark.parametrize("target", TARGETS)
def test_a_gather_that_is_switched_off_is_told(target):
    """Gradients after the pass mean parameters after the step there; nothing said so."""
    assert any("overlap_param_gather is off" in note for note in notes_of(target, overlap_grad_reduce=False))
    for knobs in ({}, {"overlap_grad_reduce": False, "overlap_param_gather": False}):
        assert not any("overlap_param_gather is off" in note for note in notes_of(target, **knobs))


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo"])
def test_lengths_of_packed_documents_are_told(target):
    short, full = (Workload(4096, 128, "sft", mean_length=length) for length in (512, 4096))
    assert any("documents of 512 tokens" in note for note in notes_of(target, short))
    assert not any("tokens on average" in note for note in notes_of(target, full))
