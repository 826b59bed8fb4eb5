"""CUDA graphs of attention over packed sequences, as both targets with packs are told of them."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.bundle import target_module
from executor.export.exported import Job

PACKS = {"megatron-bridge": "dataset.offline_packing_specs", "nemo": "data.packed_sequence_specs"}


@pytest.mark.parametrize("target", PACKS)
@pytest.mark.parametrize(
    ("scope", "captured"),
    [((), True), (("attn", "mlp"), True), (("full_iteration",), True), (("mlp",), False)],
)
def test_graphs_of_attention_over_packs_have_a_fixed_number_of_documents(target, scope, captured):
    """Rule graph_packed."""
    plan = Plan(dp=8, cuda_graph=True, cuda_graph_scope=scope)
    job = Job(plan, Workload(4096, 128, "sft"), load_model("llama3-8b"), hardware_db.load_cluster("dgx-h100"))
    settings = target_module(target).export(job).settings
    assert settings.get(f"{PACKS[target]}.pad_cu_seqlens", False) == captured
