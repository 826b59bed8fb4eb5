"""Megatron-Bridge's FSDP beside CUDA graphs, as its recipe with both says it."""

from __future__ import annotations

from dataclasses import replace

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_bridge
from executor.export.exported import Job


def job(plan: Plan, version: str) -> Job:
    model, cluster = load_model("llama3-70b"), hardware_db.load_cluster("dgx-h100")
    return Job(plan, Workload(8192, 128), model, cluster, version=version)


def test_graphs_beside_fsdp_have_its_mode_for_them():
    plan = Plan(dp=16, fsdp=True, zero_stage=3, cuda_graph=True, check_for_nan_in_grad=False)
    whole = replace(plan, cuda_graph_scope=("full_iteration",))
    mode, gathers = "ddp.megatron_fsdp_cuda_graph_mode", "ddp.fsdp_all_gather_in_start_param_sync"
    for each, version, said in (
        (plan, "0.4.2", {}),
        (plan, "0.5.1", {mode: True}),
        (whole, "0.6.2", {mode: True, gathers: False}),
        (replace(plan, cuda_graph=False), "0.6.2", {}),
    ):
        exported = megatron_bridge.export(job(each, version))
        assert {name: value for name, value in exported.settings.items() if name in (mode, gathers)} == said
        assert not any(
            mode in line for line in megatron_bridge.read(exported.files[megatron_bridge.FILE]).unread
        )
