"""Plans in Megatron-Core's words; what it cannot do here is refused in one line with a way out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from costmodel.model_registry import load_model
from costmodel.model_tables import Moe
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.model_read import whole_recompute
from executor.megatron_args import recompute_fields
from executor.megatron_here import megatron_job, transformer_config, why_not_here
from executor.megatron_training import ddp_fields
from executor.resolve import Here, receipt, resolve

TINY = load_model("tiny-gpt")
WORKLOAD = Workload(256, 8)
CPU, GPU, TE = Here(), Here(cuda=True), Here(cuda=True, te=True)
FULL = Here(cuda=True, te=True, apex=True)
MOE = dataclasses.replace(
    TINY, name="tiny-moe", family="", moe=Moe(num_experts=4, topk=2, expert_ffn=192, aux_loss_coeff=0.01)
)

RUNNABLE = [
    Plan(tp=2, sequence_parallel=True, precision="fp32"),
    Plan(pp=2, vpp=2),
    Plan(pp=2, recompute="full", recompute_num_layers=1),
    Plan(dp=2, recompute="full"),
    Plan(recompute="selective", recompute_modules=("core_attn", "mlp"), dropout=True),
    Plan(dp=2, zero_stage=0, overlap_grad_reduce=False),
]

REFUSED = [
    (TINY, Plan(precision="fp8-cs"), "silently train in bf16", "--precision fp32"),
    (TINY, Plan(precision="fp16"), "CPU", "--precision bf16"),
    (TINY, Plan(cp=3), "2 x cp", "--seq-len 258"),
    (TINY, Plan(tp=8), "key-value heads", "--tp 4"),
    (TINY, Plan(fsdp=True, zero_stage=3), "FSDP", "--zero-stage 1"),
    (TINY, Plan(pp=2, vpp=2, micro_batch=8), "multiples of --pp 2", "--vpp"),
    (TINY, Plan(recompute="selective", recompute_modules=("activation",)), "mixtures of experts", "mlp"),
    (TINY, Plan(recompute="selective", recompute_modules=("layernorm",)), "Transformer Engine", "mlp"),
    (MOE, Plan(recompute="selective", recompute_modules=("moe_act",)), "Transformer Engine", "moe"),
    (MOE, Plan(tp=2, etp=2), "sequence parallelism", "--sequence-parallel"),
    (MOE, Plan(tp=2, sequence_parallel=True), "never sum the gradients", "--etp 2"),
]


@pytest.mark.parametrize(("model", "plan", "why", "way_out"), REFUSED, ids=lambda value: str(value)[:30])
def test_refused_in_one_line_with_a_way_out(model, plan, why, way_out):
    reason = why_not_here(plan, WORKLOAD, model, CPU)
    assert reason is not None
    assert why in reason
    assert way_out in reason
    assert "\n" not in reason


@pytest.mark.parametrize("here", [CPU, GPU])
def test_quantised_plans_never_train_in_bf16_unsaid(here):
    reason = why_not_here(Plan(precision="fp8-cs"), WORKLOAD, TINY, here)
    assert reason is not None
    assert "silently train in bf16" in reason
    assert why_not_here(Plan(precision="fp8-cs"), WORKLOAD, TINY, FULL) is None


@pytest.mark.parametrize("plan", RUNNABLE, ids=Plan.describe)
def test_the_rest_runs(plan):
    assert why_not_here(plan, WORKLOAD, TINY, CPU) is None


@pytest.mark.parametrize(
    "name", ["nemotronh-8b", "qwen3-next-80b-a3b", "llama4-scout", "deepseek-v4-flash", "glm-5"]
)
def test_models_that_are_not_built_are_refused(name):
    model = load_model(name)
    reason = why_not_here(Plan(), Workload(4096, 8), model, CPU)
    assert reason is not None
    assert name in reason
    assert "Try" in reason or "try" in reason


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "llama3-8b"])
def test_models_that_are_built(name):
    assert why_not_here(Plan(), Workload(4096, 8), load_model(name), CPU) is None


def test_megatron_takes_every_argument():
    """Its own dataclasses, in a process of their own: they reject unknown names and many wrong pairs."""
    gpt = dataclasses.replace(load_model("gpt3-126m"), num_layers=4)
    sets = [
        [transformer_config(known, WORKLOAD, model, CPU), ddp_fields(known)]
        for plan in RUNNABLE
        for model in (TINY, gpt, MOE)
        for known in [resolve(plan, model, CPU)[0]]
    ]
    code = (
        "import json, sys, torch\n"
        "from megatron.core.transformer import TransformerConfig\n"
        "from executor.workers.config import make\n"
        "from megatron.core.distributed import DistributedDataParallelConfig\n"
        "for config, ddp in json.load(sys.stdin):\n"
        "    notes = []\n"
        "    made = make(TransformerConfig, config, notes)\n"
        "    make(DistributedDataParallelConfig, ddp, notes)\n"
        "    assert not notes, notes\n"
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
    config = transformer_config(Plan(pp=2, vpp=2), WORKLOAD, TINY, CPU)
    assert (config["overlap_p2p_comm"], config["batch_p2p_comm"]) == (True, False)


def test_recompute_of_some_layers_is_shared_over_chunks():
    plan = Plan(pp=1, recompute="full", recompute_num_layers=3)
    config = transformer_config(plan, WORKLOAD, TINY, CPU)
    assert (config["recompute_method"], config["recompute_num_layers"]) == ("block", 3)


@pytest.mark.parametrize(
    "sizes",
    [
        {"pp": 4, "first_stage_layers": 14, "last_stage_layers": 14},
        {"pp": 4, "pipeline_layout": "Et*14|t*26|t*26|t*14L"},
        {"pp": 4, "vpp": 5},
    ],
)
def test_recompute_of_all_layers_reaches_the_fullest_stage(sizes):
    """Of 26 layers the mean of 20 was said, and six kept everything that the plan's memory does without."""
    model, plan = load_model("llama3-70b"), Plan(recompute="full", **sizes)
    fields = recompute_fields(plan, model, 8192)
    assert fields["recompute_num_layers"] == (4 if plan.vpp > 1 else 26)
    told = sizes | {"recompute": "full", "recompute_num_layers": fields["recompute_num_layers"] * plan.vpp}
    assert whole_recompute(told, model)["recompute_num_layers"] == 0
    fewer = told["recompute_num_layers"] - plan.vpp
    assert whole_recompute(told | {"recompute_num_layers": fewer}, model)["recompute_num_layers"] == fewer


def test_uniform_recompute_has_groups_of_one_layer():
    """Of all layers in one group all activations would be there at once: no recompute at all."""
    plan = Plan(pp=1, recompute="full", settings={"recompute_method": "uniform"})
    config = transformer_config(plan, WORKLOAD, TINY, CPU)
    assert (config["recompute_method"], config["recompute_num_layers"]) == ("uniform", 1)


def test_one_rank_shards_and_overlaps_nothing():
    resolved, why = resolve(Plan(grad_reduce_in_fp32=False), TINY, FULL)
    fields = ddp_fields(resolved)
    assert [name for name, on in fields.items() if on] == ["check_for_nan_in_grad"]
    assert {"zero_stage", "overlap_grad_reduce", "overlap_param_gather"} == set(why)
    for several in (Plan(dp=2), Plan(cp=2)):
        assert resolve(several, TINY, FULL)[1] == {}
    assert resolve(Plan(cp=2, cp_comm_type="a2a"), TINY, CPU)[0].cp_comm_type == "all_gather"


def test_without_apex_no_layer_accumulates_in_its_product():
    # Transformer Engine's own layers could; Megatron-Core's output layer, which has the same field, ends the run.
    resolved, why = resolve(Plan(), TINY, TE)
    assert not resolved.gradient_accumulation_fusion
    assert "fused_weight_gradient_mlp_cuda" in why["gradient_accumulation_fusion"]
    assert not transformer_config(resolved, WORKLOAD, TINY, TE)["gradient_accumulation_fusion"]
    assert resolve(Plan(), TINY, FULL)[0].gradient_accumulation_fusion


def test_a_graph_of_the_whole_step_is_no_graph_of_a_run_and_graphs_of_layers_are():
    whole = Plan(cuda_graph=True, cuda_graph_scope=("full_iteration",))
    resolved, why = resolve(whole, TINY, FULL)
    assert not resolved.cuda_graph
    assert "phases" in why["cuda_graph"]
    layers = resolve(Plan(cuda_graph=True), TINY, FULL)[0]
    assert transformer_config(layers, WORKLOAD, TINY, FULL)["cuda_graph_impl"] == "transformer_engine"


def test_what_is_resolved_stays_resolved():
    for here in (CPU, GPU, TE, FULL):
        for model in (TINY, MOE):
            once, _ = resolve(Plan(dp=2, moe_dispatcher="deepep", rope_fusion=True), model, here)
            assert resolve(once, model, here) == (once, {})


def test_without_transformer_engine_its_kernels_are_off_and_the_receipt_says_why():
    asked = Plan(dp=2, tp_comm_overlap=True)
    resolved, why = resolve(asked, MOE, CPU)
    assert not resolved.moe_grouped_gemm
    assert resolved.overlap_grad_reduce
    lines = {one.name: one for one in receipt(asked, resolved, why, {"precision": "float32"}, MOE)}
    assert lines["tp_comm_overlap"].requested
    assert not lines["tp_comm_overlap"].resolved
    assert "Transformer Engine" in lines["tp_comm_overlap"].note
    assert lines["precision"].observed == "float32"
    assert lines["overlap_grad_reduce"].note == ""
    assert resolve(Plan(dp=2, bias_dropout_fusion=True), TINY, GPU)[0].bias_dropout_fusion


def test_pytorchs_fsdp_has_no_distributed_optimizer_and_knows_whose_layers_it_shards():
    plan = Plan(dp=2, fsdp=True, zero_stage=3, fsdp_implementation="torch")
    for here, layers in ((GPU, "local"), (TE, None)):
        job = megatron_job(plan, WORKLOAD, TINY, here)
        assert job["config"].get("transformer_impl") == layers
        for part in ("ddp", "optimizer"):
            assert not job[part]["use_distributed_optimizer"]
            assert not job[part]["overlap_param_gather"]
        assert "use_megatron_fsdp" not in job["ddp"]
        assert not job["ddp"]["overlap_grad_reduce"]
        assert job["ddp"]["reshard_after_forward"]
    gathered = megatron_job(dataclasses.replace(plan, zero_stage=2), WORKLOAD, TINY, GPU)
    assert not gathered["ddp"]["reshard_after_forward"]
    assert megatron_job(Plan(dp=2), WORKLOAD, TINY, GPU)["ddp"]["use_distributed_optimizer"]


def test_user_buffers_are_told_what_the_plan_says_of_pipelined_gemms():
    plan = Plan(tp=2, sequence_parallel=True, tp_comm_overlap=True)
    assert megatron_job(plan, WORKLOAD, TINY, TE)["user_buffers"] == {}
    told = megatron_job(dataclasses.replace(plan, tp_overlap_sms=8), WORKLOAD, TINY, TE)["user_buffers"]
    assert set(told) == {"proj_fprop", "fc2_fprop"}
    assert {row["num_sm"] for row in told.values()} == {8}


def test_an_all_gather_dispatcher_permutes_with_torch():
    plan, why = resolve(Plan(dp=2, ep=2, moe_dispatcher="allgather"), MOE, TE)
    assert not plan.moe_permute_fusion
    assert "on the host" in why["moe_permute_fusion"]
    assert resolve(Plan(dp=2, ep=2), MOE, TE)[0].moe_permute_fusion
