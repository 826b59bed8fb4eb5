"""Plans in Megatron-Core's words; what it cannot do here is refused in one line with a way out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_here import ddp_config, transformer_config, why_not_here

TINY = load_model("tiny-gpt")
WORKLOAD = Workload(256, 8)

RUNNABLE = [
    Plan(tp=2, sequence_parallel=True, precision="fp32"),
    Plan(pp=2, vpp=2),
    Plan(pp=2, recompute="full", recompute_num_layers=1),
    Plan(dp=2, recompute="full"),
    Plan(recompute="selective", recompute_modules=("core_attn", "mlp"), dropout=True),
    Plan(dp=2, zero_stage=0, overlap_grad_reduce=False),
]

REFUSED = [
    (Plan(precision="fp8-cs"), "silently train in bf16", "--precision fp32"),
    (Plan(cp=2), "Transformer Engine's attention", "--cp 1"),
    (Plan(fsdp=True, zero_stage=3), "FSDP", "--zero-stage 1"),
    (Plan(pp=2, vpp=2, micro_batch=8), "multiples of --pp 2", "--vpp"),
    (Plan(recompute="selective", recompute_modules=("activation",)), "mixtures of experts", "mlp"),
    (Plan(recompute="selective", recompute_modules=("layernorm",)), "Transformer Engine", "mlp"),
]


@pytest.mark.parametrize(("plan", "why", "way_out"), REFUSED, ids=lambda value: str(value)[:30])
def test_refused_in_one_line_with_a_way_out(plan, why, way_out):
    reason = why_not_here(plan, WORKLOAD, TINY, cuda=False)
    assert reason is not None
    assert why in reason
    assert way_out in reason
    assert "\n" not in reason


@pytest.mark.parametrize("cuda", [False, True])
def test_quantised_plans_never_train_in_bf16_unsaid(cuda):
    reason = why_not_here(Plan(precision="fp8-cs"), WORKLOAD, TINY, cuda=cuda)
    assert reason is not None
    assert "silently train in bf16" in reason


@pytest.mark.parametrize("plan", RUNNABLE, ids=Plan.describe)
def test_the_rest_runs(plan):
    assert why_not_here(plan, WORKLOAD, TINY, cuda=False) is None


def test_models_that_are_not_built_are_refused():
    assert why_not_here(Plan(), WORKLOAD, load_model("mixtral-8x7b"), cuda=False)


def test_megatron_takes_every_argument():
    """Its own dataclasses, in a process of their own: they reject unknown names and many wrong pairs."""
    gpt = dataclasses.replace(load_model("gpt3-126m"), num_layers=4)
    sets = [
        [transformer_config(plan, model, False), ddp_config(plan)]
        for plan in RUNNABLE
        for model in (TINY, gpt)
    ]
    code = (
        "import json, sys, torch\n"
        "from megatron.core.transformer import TransformerConfig\n"
        "from megatron.core.distributed import DistributedDataParallelConfig\n"
        "for config, ddp in json.load(sys.stdin):\n"
        "    made = TransformerConfig(**config, pipeline_dtype=torch.float32)\n"
        "    DistributedDataParallelConfig(**ddp)\n"
        "    print(made.num_layers)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=json.dumps(sets),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["4"] * len(sets)


def test_interleaved_sends_are_never_batched():
    config = transformer_config(Plan(pp=2, vpp=2), TINY, cuda=False)
    assert (config["overlap_p2p_comm"], config["batch_p2p_comm"]) == (True, False)


def test_recompute_of_some_layers_is_shared_over_chunks():
    config = transformer_config(Plan(pp=1, recompute="full", recompute_num_layers=3), TINY, cuda=False)
    assert (config["recompute_method"], config["recompute_num_layers"]) == ("block", 3)


def test_one_rank_shards_and_overlaps_nothing():
    assert not any(ddp_config(Plan(grad_reduce_in_fp32=False)).values())
