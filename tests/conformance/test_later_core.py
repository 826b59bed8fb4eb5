"""Amounts of what Megatron-Core 0.16 does not build or do, against the wheel of 0.19.

Hybrids in chunks, with full recompute and MTP heads; gated delta nets over contexts and strided projections; output
gates of more tensor-parallel ranks than key-value heads.
"""

from __future__ import annotations

import pytest
from legal_plans import small

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.core_here import core_in
from executor.dryrun import dry_run, traced_microbatches
from executor.dryrun_tracer import Tracer
from executor.run import missing_software

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]
SPLIT = {"tp": 2, "sequence_parallel": True}


@pytest.fixture(scope="module")
def core(parser):
    """Megatron-Core 0.19 from its wheel."""
    return core_in(parser.wheel_folder(parser.WHEELS["0.19"]))


@pytest.fixture(scope="module")
def tracer(core):
    with Tracer(core.folder) as one:
        yield one


@pytest.mark.parametrize(
    ("name", "knobs", "stage"),
    [
        ("llama3-8b", {**SPLIT, "pp": 2, "dp": 2}, 1),
        ("deepseek-v2-lite", {**SPLIT, "dp": 8, "ep": 8}, 0),
        ("mixtral-8x7b", {**SPLIT, "dp": 2}, 0),
        ("nemotronh-8b", {**SPLIT, "pp": 2, "vpp": 2, "dp": 2}, 1),
        ("nemotronh-8b", {**SPLIT, "dp": 2, "recompute": "full"}, 0),
        ("nemotron3-super-120b-a12b", {**SPLIT, "dp": 8, "ep": 8}, 0),
        ("qwen3.5-0.8b", {"dp": 2}, 0),
        ("qwen3.5-27b", {**SPLIT, "cp": 2, "dp": 2}, 0),
        ("qwen3.5-35b-a3b", {**SPLIT, "tp": 8, "dp": 8, "ep": 8}, 0),
    ],
)
def test_amounts_agree_with_the_later_release(core, tracer, tmp_path, name, knobs, stage):
    model, plan = small(load_model(name), 8), Plan(micro_batch=1, **knobs)
    workload = Workload(2048, 2 * plan.dp * plan.pp)
    result = dry_run(
        plan,
        workload,
        model,
        stages=[stage],
        num_microbatches=traced_microbatches(plan, workload, None),
        folder=tmp_path,
        measure=tracer.stage,
        core=core,
    )
    assert result.megatron_core == "0.19.2"
    assert not result.differing
    assert result.num_equal > 15
