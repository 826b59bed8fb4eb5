"""The cost model's amounts are those of real Megatron-Core: chosen plans of every family, and drawn ones.

Each plan is one trace, in a fork of a process that has loaded Megatron-Core. `benchmarks/conformance.py` sweeps wider.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from legal_plans import draw, is_legal, small

from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.dryrun import DryRun, dry_run, traced_microbatches
from executor.dryrun_tracer import Tracer
from executor.run import missing_software

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]
LAYERS = 4
SPLIT = {"tp": 2, "sequence_parallel": True}
AGAIN = {"recompute": "selective", "recompute_modules": ("mla_up_proj",)}
MORE_AGAIN = {"recompute": "selective", "recompute_modules": ("moe", "mla_up_proj")}
CHOSEN = [
    ("llama3-8b", {**SPLIT, "pp": 2, "dp": 2}, 0),
    ("llama3-8b", {**SPLIT, "pp": 2, "vpp": 2, "dp": 2}, 1),
    ("llama3-8b", {"tp": 2, "cp": 2, "dp": 2, "recompute": "full"}, 0),
    ("gpt3-126m", {**SPLIT, "dp": 4, "dropout": True, "zero_stage": 0, "overlap_param_gather": False}, 0),
    ("mixtral-8x7b", {**SPLIT, "dp": 4, "ep": 4}, 0),
    ("mixtral-8x7b", {**SPLIT, "dp": 4, "ep": 4, "etp": 2, "pp": 2}, 1),
    ("deepseek-v3", {**SPLIT, "pp": 2, "dp": 8, "ep": 8}, 0),
    ("deepseek-v3", {**SPLIT, "pp": 2, "dp": 8, "ep": 8}, 1),
    ("glm4.5-air", {**SPLIT, "cp": 2, "dp": 4, "ep": 4}, 0),
    ("gpt-oss-20b", {**SPLIT, "dp": 4, "ep": 4}, 0),
    ("nemotronh-8b", {**SPLIT, "dp": 2}, 0),
    ("nemotronh-8b", {**SPLIT, "dp": 2, "recompute": "full"}, 0),
    ("nemotron-nano-9b-v2", {"tp": 8, "cp": 2}, 0),
    ("nemotron3-nano-30b-a3b", {**SPLIT, "tp": 4, "dp": 8, "ep": 8, "precision": "fp32"}, 0),
    ("llama4-scout", {**SPLIT, "dp": 4, "ep": 4}, 0),
    ("qwen3-next-80b-a3b", {**SPLIT, "dp": 4, "ep": 4}, 0),
    ("qwen3.5-27b", {**SPLIT, "dp": 2}, 0),
    # As many value heads as heads of keys, which are not repeated; a clamped gate that nothing fuses in dense layers.
    ("qwen3.5-0.8b", {"dp": 2}, 0),
    ("minimax-m3", {"dp": 8, "ep": 8}, 0),
    # Buffers of dispatchers; what shared experts gather; contexts beside what is computed again; rows of small kernels.
    ("qwen3-30b-a3b", {"dp": 16, "ep": 16, "moe_dispatcher": "allgather"}, 0),
    ("qwen3-30b-a3b", {"dp": 16, "ep": 16, "moe_dispatcher": "allgather", "recompute": "full"}, 0),
    ("qwen3-30b-a3b", {"dp": 16, "ep": 16, "moe_capacity_factor": 0.5}, 0),
    ("qwen3-30b-a3b", {"dp": 16, "ep": 16, "moe_capacity_factor": 0.5, "moe_dispatcher": "allgather"}, 0),
    (
        "qwen3-30b-a3b",
        {"dp": 16, "ep": 16, "moe_capacity_factor": 1.25, "moe_pad_expert_input_to_capacity": True},
        0,
    ),
    ("deepseek-v2-lite", {**SPLIT, "dp": 8, "ep": 8, "shared_expert_overlap": True}, 0),
    ("deepseek-v2-lite", {"cp": 2, "dp": 8, "ep": 8, **AGAIN, "cp_comm_type": "p2p"}, 0),
    (
        "deepseek-v2-lite",
        {"cp": 4, "dp": 8, "ep": 8, **AGAIN, "cp_comm_type": "a2a+p2p", "cp_a2a_size": 2},
        0,
    ),
    # Rotary keys that are gathered before what is computed again.
    ("glm-4.7-flash", {**SPLIT, "tp": 4, "dp": 32, "ep": 16, "etp": 4, **MORE_AGAIN}, 0),
    ("nemotronh-4b", {**SPLIT, "cp": 2, "pp": 2, "dp": 2}, 1),
    ("llama3-8b", {**SPLIT, "dp": 2, "precision": "fp32", "attention_backend": "unfused"}, 0),
    ("olmoe-1b-7b", {**SPLIT, "tp": 8, "dp": 8, "ep": 32, "rope_fusion": False}, 0),
    ("gpt3-20b", {**SPLIT, "pp": 2, "vpp": 2, "dp": 2, "defer_embedding_wgrad": True}, 1),
    ("llama3-8b", {"dp": 2, "precision": "fp16", "precision_aware_optimizer": True}, 0),
    # A rank's share of a head and the output layer, in the order in which Megatron-Core has them.
    ("qwen3-next-80b-a3b", {"dp": 64, "ep": 32}, 0),
]
DRAWN = ("llama3-8b", "qwen3-30b-a3b", "moonlight-16b-a3b")


@pytest.fixture(scope="module")
def tracer():
    with Tracer() as one:
        yield one


def traced(tracer: Tracer, plan: Plan, workload: Workload, model: ModelSpec, stage: int) -> DryRun:
    count = traced_microbatches(plan, workload, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = {"stages": [stage], "num_microbatches": count, "folder": folder, "measure": tracer.stage}
        return dry_run(plan, workload, model, **given)


def differing(result: DryRun) -> list[tuple[str, str, float, float]]:
    return [(term.section, term.name, term.predicted, term.counted) for term in result.differing]


@pytest.mark.parametrize(("name", "knobs", "stage"), CHOSEN)
def test_chosen_plans(tracer, name, knobs, stage):
    model, plan = small(load_model(name), LAYERS), Plan(**knobs)
    workload = Workload(2048, 4 * plan.dp)
    assert is_legal(plan, workload, model)
    result = traced(tracer, plan, workload, model, stage)
    assert differing(result) == []
    assert result.num_equal >= 0.8 * len(result.exact) > 8


@pytest.mark.parametrize("name", DRAWN)
@settings(
    max_examples=2,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_drawn_plans(tracer, name, data):
    model = small(load_model(name), LAYERS)
    plan, workload = draw(lambda values: data.draw(st.sampled_from(values)), model)
    stage = data.draw(st.sampled_from(range(plan.pp)))
    assert differing(traced(tracer, plan, workload, model, stage)) == [], plan.describe()
