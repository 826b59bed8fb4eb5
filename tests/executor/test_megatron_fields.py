"""What a run on GPUs sets, for every model and many knobs: accepted by Megatron-Core's own classes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from costmodel.knobs import KNOBS
from costmodel.model_registry import list_models, load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import core_fields
from executor.megatron_here import traced_fields
from executor.megatron_model import config_class, layer_frequency, model_arguments
from executor.megatron_training import ddp_fields, optimizer_fields

WORKLOAD = Workload(4096, 64)
PLANS = [
    Plan(),
    Plan(tp=2, sequence_parallel=True, pp=2, precision="mxfp8", recompute="full"),
    Plan(precision="nvfp4", recompute="selective", recompute_modules=("core_attn",)),
    Plan(
        precision="fp16", dropout=True, moe_dispatcher="deepep", cuda_graph=True, cuda_graph_scope=("attn",)
    ),
    Plan(dp=4, precision_aware_optimizer=True, exp_avg_dtype="bf16", optimizer_offload=50),
]

# Constructs everything in one process, with the stand-in for Transformer Engine that dry runs use.
CODE = """
import json, sys
from executor.workers import cpu_shim, te_like
te_like.install()
cpu_shim.install()
from megatron.core import transformer
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from executor.workers.config import make
for name, kind, config, ddp, optimizer in json.load(sys.stdin):
    notes = []
    try:
        make(getattr(transformer, kind), config, notes)
        make(DistributedDataParallelConfig, ddp, notes)
        make(OptimizerConfig, optimizer, notes)
    except Exception as error:
        notes.append(repr(error))
    print(json.dumps([name, notes]))
"""


def test_megatron_takes_every_model_with_every_plan():
    jobs = [
        [
            f"{name} {plan.describe()}",
            config_class(load_model(name)),
            core_fields(plan, load_model(name), WORKLOAD),
            ddp_fields(plan),
            optimizer_fields(plan),
        ]
        for name in list_models()
        for plan in PLANS
        if load_model(name).num_heads % plan.tp == 0  # gpt2-xl has 25
        and load_model(name).indexer is None  # fields of 0.19
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == len(jobs)
    # Neither a refusal, nor a field that this release does not have.
    assert [(name, notes) for name, notes in answers if notes] == []


def test_layers_with_experts_stand_where_the_model_has_them():
    model = load_model("deepseek-v3")
    assert layer_frequency(model, model.moe) == [0] * 3 + [1] * 58
    assert layer_frequency(load_model("mixtral-8x7b"), load_model("mixtral-8x7b").moe) == 1


def test_layers_that_do_not_divide_get_a_layout_and_those_that_do_get_none():
    even = core_fields(Plan(pp=8, vpp=5), load_model("llama3-70b"), WORKLOAD)
    assert "pipeline_model_parallel_layout" not in even
    uneven = core_fields(Plan(pp=16, vpp=1), load_model("llama3.1-405b"), WORKLOAD)
    stages = uneven["pipeline_model_parallel_layout"].split("|")
    assert len(stages) == 16
    assert stages[0].startswith("E")
    assert stages[-1].endswith("L")


def test_settings_reach_the_class_that_has_them():
    plan = Plan(settings={"align_param_gather": True, "overlap_p2p_comm_warmup_flush": True})
    assert ddp_fields(plan)["align_param_gather"] is True
    fields = core_fields(plan, load_model("llama3-8b"), WORKLOAD)
    assert fields["overlap_p2p_comm_warmup_flush"] is True
    assert "align_param_gather" not in fields


@pytest.mark.parametrize("name", ["fp8-delayed", "fp8-cs", "fp8-sc", "mxfp8", "nvfp4"])
def test_a_trace_leaves_quantisation_out_and_says_so(name):
    assert name in KNOBS["precision"].choices
    fields = core_fields(Plan(precision=name), load_model("llama3-8b"), WORKLOAD)
    assert fields.get("fp8") or fields.get("fp4")
    kept, notes = traced_fields(fields)
    assert not [field for field in kept if field.startswith(("fp8", "fp4"))]
    assert any("bf16" in note for note in notes)


def test_the_vocabulary_is_padded_for_the_ranks():
    arguments = model_arguments(load_model("gpt3-175b"), 8, 2048)
    assert arguments["vocab_size"] % (128 * 8) == 0
    assert arguments["position_embedding_type"] == "learned_absolute"
