"""An export to Megatron-LM, read back, is the plan: its knobs, its stages and its model."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from any_plan import MODELS, any_job
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from megatron_lm_jobs import job_of

from costmodel.fusions import FUSABLE
from costmodel.graph_parts import captured_parts
from costmodel.layout import layout_of, most_layers
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from executor.export import megatron_lm
from executor.export.bundle import bundle
from executor.export.environment import environment, environment_knobs
from executor.export.exported import Job
from executor.export.megatron_lm_names import version_of
from executor.megatron_args import core_fields
from executor.megatron_training import checks_for_nan


def said(plan: Plan, job: Job) -> Plan:
    """The plan as Megatron-LM can be told it: what has no effect there, or no argument, at its default."""
    model, plain = job.model, Plan()
    around = environment_knobs({variable.name: variable.value for variable in environment(job)})
    settings = dict(plan.settings) | around.pop("settings")
    changes: dict[str, Any] = {**around, "settings": settings}
    default = lambda *names: changes.update({name: getattr(plain, name) for name in names})  # noqa: E731
    # No argument, or in a file of its own.
    default("offload_weights", "fp8_attention", "param_remainders", "nvl_segment", "encoder_tp")
    default("tp_overlap_splits", "tp_overlap_sms", "tp_overlap_cga", "fsdp_shard_size", "tp_only_amax_red")
    changes["check_for_nan_in_grad"] = checks_for_nan(plan)
    if plan.fsdp and 0 < plan.fsdp_shard_size < plan.dp * plan.cp and plan.fsdp_implementation == "megatron":
        changes["fsdp_shard_size"] = plan.fsdp_shard_size
    elif plan.fsdp and plan.sharding_instances > 1 and plan.fsdp_implementation == "megatron":
        # The same, said otherwise; a shard size that is the whole group decides over instances.
        changes["fsdp_shard_size"] = plan.dp * plan.cp // plan.sharding_instances
    if plan.fsdp:
        default("optimizer_instances")
    if not (plan.fused_cross_entropy and version_of(job.version)[0].te_loss):
        changes["cross_entropy_fusion_impl"] = "native"
    if not plan.vboost:
        default("vboost")
    if plan.tp == 1:
        default("tp_comm_overlap")
    if plan.pp == 1:
        default("first_stage_layers", "last_stage_layers")
    if plan.vpp == 1:
        default("overlap_p2p")
    if plan.pp == 2 and plan.vpp > 1:
        default("overlap_p2p")  # batched sends between two stages would mix
    if plan.cp == 1:
        default("cp_comm_type", "cp_a2a_size")
    # Whole layers of dropless experts are said by the parts that can be captured.
    parts = captured_parts(plan, model) if plan.cuda_graph else ()
    changes["cuda_graph_scope"] = parts
    if not plan.fsdp:
        default("fsdp_implementation")
    # Megatron gathers parameters early only beside an overlapped reduction of sharded state.
    if not (plan.overlap_grad_reduce and plan.zero_stage) or (
        plan.fsdp and plan.fsdp_implementation == "torch"
    ):
        changes["overlap_param_gather"] = False
    if plan.fsdp and plan.fsdp_implementation == "torch":
        changes |= {"gradient_accumulation_fusion": False, "fp8_param_gather": False}
        default("optimizer_instances")
    if plan.precision in ("fp32", "fp16"):
        changes["grad_reduce_in_fp32"] = plan.grad_reduce_in_fp32 or plan.precision == "fp32"
    if not plan.optimizer_offload:
        default("overlap_optimizer_offload")
    if not plan.precision_aware_optimizer:
        default("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    # A layout is written out; an even one needs none.
    written = core_fields(plan, model, job.workload).get("pipeline_model_parallel_layout", "")
    if model.layer_pattern:
        written = _pattern_stages(job)
    changes["pipeline_layout"] = written
    if written or model.layer_pattern:
        default("account_embedding", "account_loss")
    if written:
        default("first_stage_layers", "last_stage_layers")
    changes |= _recompute(plan, model) | _kernels(plan, model)
    if model.moe is None:
        default("moe_dispatcher", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")
        default("expert_mlp_fusion")
        default(
            "moe_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "overlap_moe_comm",
            "delay_wgrad",
            "shared_expert_overlap",
            "etp",
            "ep",
        )
    if model.moe is None or plan.moe_dispatcher not in ("deepep", "hybridep"):
        default("dispatcher_sms")
    return replace(plan, **changes)


def _pattern_stages(job: Job) -> str:
    """The layout that the stages of a layer pattern are read as, "" where they are even or told by two numbers."""
    plan, model = job.plan, job.model
    told = (plan.first_stage_layers or plan.last_stage_layers) and not plan.pipeline_layout
    if plan.pp * plan.vpp == 1 or (told and plan.vpp == 1):
        return ""
    chunks = layout_of(plan, model, job.workload.seq_len).chunks
    sizes = [chunks[stage][chunk].layers for chunk in range(plan.vpp) for stage in range(plan.pp)]
    letters = "|".join("t" * size for size in sizes)
    return "E" + letters + "m" * model.mtp_layers + "L" if len(set(sizes)) > 1 else ""


def _recompute(plan: Plan, model: Any) -> dict[str, Any]:
    """Layers of full recompute as a multiple of the chunks, modules under Megatron's names."""
    if plan.recompute != "selective":
        layers = most_layers(plan, model)
        counted = plan.recompute_num_layers // plan.vpp * plan.vpp if plan.recompute == "full" else 0
        return {
            "recompute_modules": (),
            "recompute_num_layers": 0 if counted >= layers * plan.vpp else counted,
        }
    return {"recompute_modules": plan.recompute_modules or ("core_attn",)}


def _kernels(plan: Plan, model: Any) -> dict[str, Any]:
    """Fusions that the model has no kernel for are told neither way, or are off as the search takes them."""
    found = {}
    gelu_alone = model.activation == "gelu" and not model.gated and not model.linear_bias
    if model.activation not in FUSABLE or gelu_alone:
        found["bias_activation_fusion"] = model.activation in FUSABLE
    if model.moe is not None and model.linear_bias:
        found["bias_dropout_fusion"] = True
    return found


def unlike(one: Plan, other: Plan) -> dict[str, Any]:
    """Knobs in which two plans differ."""
    names = [field.name for field in fields(Plan)]
    return {
        name: (getattr(one, name), getattr(other, name))
        for name in names
        if getattr(one, name) != getattr(other, name)
    }


@pytest.mark.parametrize(
    "split",
    [
        {"vpp": 13},
        {"pipeline_layout": "balanced"},
        {"pipeline_layout": "balanced", "vpp": 2},
        {"first_stage_layers": 10},
    ],
    ids=str,
)
def test_stages_of_a_hybrid_are_those_that_are_priced(split):
    plan = Plan(pp=4, dp=2, **split)
    job = job_of("nemotronh-8b", plan)
    found = Plan(**megatron_lm.read("\n".join(bundle(job, "megatron-lm", slurm=False).files.values())).knobs)
    read, priced = (layout_of(each, job.model, job.workload.seq_len).chunks for each in (found, plan))
    assert [[chunk.blocks for chunk in stage] for stage in read] == [
        [chunk.blocks for chunk in stage] for stage in priced
    ]


def test_a_shard_size_of_the_whole_group_decides_over_instances():
    plan = Plan(dp=8, fsdp=True, zero_stage=3, fsdp_shard_size=8, optimizer_instances=2)
    made = bundle(job_of("llama3-8b", plan), "megatron-lm", slurm=False)
    back = Plan(**megatron_lm.read(made.files["train.sh"]).knobs)
    assert back.sharding_instances == plan.sharding_instances == 1


@settings(max_examples=30, derandomize=True, phases=[Phase.generate])
@given(st.data())
def test_an_export_read_back_is_the_plan(data):
    job = any_job(lambda values: data.draw(st.sampled_from(list(values))))
    try:
        made = bundle(job, "megatron-lm", slurm=True)
    except ValueError:
        return
    found = megatron_lm.read("\n".join(made.files.values()))
    assert not unlike(Plan(**found.knobs), said(job.plan, job)), job.plan
    assert found.model == job.model.name
    assert found.workload == {"seq_len": job.workload.seq_len, "global_batch": job.workload.global_batch}
    assert not found.unread


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_not_in_the_catalogue_is_read_as_a_shape(name, monkeypatch):
    from costmodel.model_file import from_mapping
    from executor.export import megatron_lm_read

    monkeypatch.setattr(megatron_lm_read, "same_models", lambda _: [])
    model = load_model(name)
    made = bundle(job_of(name, Plan(dp=8)), "megatron-lm", slurm=False)
    shape = megatron_lm.read(made.files["train.sh"]).architecture
    read = from_mapping({"name": "x", **shape})
    same = (
        "num_layers",
        "hidden",
        "ffn_hidden",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab",
        "gated",
        "family",
    )
    assert {key: getattr(read, key) for key in same} == {key: getattr(model, key) for key in same}
    assert read.layer_kinds() == model.layer_kinds()
    for part in ("mla", "mamba", "gated_delta", "sliding_window"):
        assert getattr(read, part) == getattr(model, part), part
