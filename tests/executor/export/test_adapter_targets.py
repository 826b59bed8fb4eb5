"""Adapters (task lora) by Megatron-Core's names of each model's layers, and read back from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.exported import Job
from executor.export.megatron_bridge import export
from executor.export.megatron_bridge_read import workload_of
from executor.export.megatron_bridge_task import task_settings
from executor.export.nemo_settings import task_settings as nemo_task_settings
from executor.export.target_names import names_of

LATENT = ["linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"]
# One query projection, without a latent: as its recipe states them, Megatron-Bridge 0.6.2, moonlight_16b.py.
DIRECT = ["linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj"]
MLPS = ["linear_fc1", "linear_fc2"]
# Megatron-Bridge 0.6.2, recipes/nemotronh, mamba_target_modules.
HYBRID = ["linear_qkv", "linear_proj", *MLPS, "in_proj", "out_proj"]


def job(model: str, reach: str) -> Job:
    work = Workload(4096, 32, "lora", lora_targets=reach)
    return Job(Plan(dp=8), work, load_model(model), hardware_db.load_cluster("dgx-h100"))


@pytest.mark.parametrize(
    ("model", "reach", "names"),
    [
        ("llama3-70b", "qkv", ["linear_qkv"]),
        ("llama3-70b", "all", ["linear_qkv", "linear_proj", *MLPS]),
        ("deepseek-v3", "qkv", LATENT),
        ("deepseek-v3", "attention", [*LATENT, "linear_proj"]),
        ("deepseek-v3", "all", [*LATENT, "linear_proj", *MLPS]),
        ("moonlight-16b-a3b", "attention", [*DIRECT, "linear_proj"]),
        ("nemotronh-8b", "attention", ["linear_qkv", "linear_proj"]),
        ("nemotronh-8b", "all", HYBRID),
        ("qwen3-next-80b-a3b", "all", HYBRID),
    ],
)
def test_targets_are_the_layers_that_the_model_has(model, reach, names):
    one = job(model, reach)
    for said in (task_settings(one, names_of("megatron_bridge", "")[0]), nemo_task_settings(one)):
        assert said["peft.target_modules"] == names
    assert workload_of({"peft.dim": 16, "peft.target_modules": names})["lora_targets"] == reach


def test_what_is_not_said_is_all_layers():
    """Megatron-Bridge 0.6.2, peft/lora.py: four names and rank 32."""
    found = workload_of({"peft._target_": "megatron.bridge.peft.lora.LoRA"})
    assert (found["lora_targets"], found["lora_rank"]) == ("all", 32)


@pytest.mark.parametrize(("task", "meta"), [("pretrain", True), ("sft", True), ("lora", False)])
def test_a_base_model_that_is_loaded_before_fsdp_wraps_it_is_not_made_on_the_meta_device(task, meta):
    plan = Plan(dp=8, fsdp=True, zero_stage=3, gradient_accumulation_fusion=False)
    one = replace(job("llama3-8b", "qkv"), plan=plan, workload=Workload(4096, 32, task))
    assert export(one).settings["model.init_model_with_meta_device"] is meta
