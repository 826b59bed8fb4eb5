"""A plan in the words of Megatron-Core's data parallelism and optimizer, and of the settings it carries.

Plain values only, as in `megatron_args`. Names and meanings as in Megatron-Core 0.16.1,
distributed_data_parallel_config.py and optimizer_config.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from costmodel.knobs import SETTINGS
from costmodel.plan import Plan

SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")


def ddp_fields(plan: Plan) -> dict[str, Any]:
    """Fields of DistributedDataParallelConfig as a run on GPUs sets them."""
    sharded = plan.zero_stage >= 1
    by_layer = plan.optimizer == "muon"  # which Megatron-Core does without the distributed optimizer
    fields: dict[str, Any] = {
        "grad_reduce_in_fp32": plan.grad_reduce_in_fp32,
        "overlap_grad_reduce": plan.overlap_grad_reduce,
        "overlap_param_gather": plan.overlap_param_gather and sharded and plan.overlap_grad_reduce,
        "use_distributed_optimizer": sharded and not by_layer,
        "check_for_nan_in_grad": checks_for_nan(plan),
    }
    if plan.bucket_size:
        fields["bucket_size"] = plan.bucket_size
    if plan.sharding_instances > 1 and not (plan.fsdp and plan.fsdp_implementation == "torch"):
        fields["num_distributed_optimizer_instances"] = plan.sharding_instances
    if plan.fsdp and plan.fsdp_implementation == "megatron":
        fields["use_megatron_fsdp"] = True
        fields["data_parallel_sharding_strategy"] = SHARDING[plan.zero_stage]
        if plan.outer_dp_sharding_strategy != "no_shard":
            fields["outer_dp_sharding_strategy"] = plan.outer_dp_sharding_strategy
    switches = {
        "nccl_ub": plan.nccl_ub,
        "fp8_param_gather": plan.fp8_param_gather,
        "reuse_grad_buf_for_mxfp8_param_ag": plan.reuse_grad_buf,
    }
    fields |= {name: True for name, on in switches.items() if on}
    return fields | setting_fields(plan, "DistributedDataParallelConfig")


def checks_for_nan(plan: Plan) -> bool:
    """Whether gradients and loss are checked: not inside a graph of the whole step, which no look at a number may stop.

    Source: Megatron-Core 0.17.1, arguments.py; Megatron-Bridge 0.3.1, config.py, validate.
    """
    return plan.check_for_nan_in_grad and not (plan.cuda_graph and "full_iteration" in plan.cuda_graph_scope)


def optimizer_fields(plan: Plan) -> dict[str, Any]:
    """Fields of OptimizerConfig as a run on GPUs sets them; the learning rate is the user's."""
    kind = plan.precision if plan.precision in ("fp32", "fp16") else "bf16"
    ddp = ddp_fields(plan)
    fields: dict[str, Any] = {
        "optimizer": optimizer_name(plan),
        "params_dtype": kind,
        "bf16": kind == "bf16",
        "fp16": kind == "fp16",
        "clip_grad": 1.0,
        "use_distributed_optimizer": ddp["use_distributed_optimizer"],
        "overlap_param_gather": ddp["overlap_param_gather"],
    }
    if plan.precision_aware_optimizer:
        kinds = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        fields |= {"use_precision_aware_optimizer": True, "store_param_remainders": plan.param_remainders}
        fields |= {name: getattr(plan, name) for name in kinds}
    if plan.optimizer_offload:
        fields["optimizer_cpu_offload"] = True
        fields["optimizer_offload_fraction"] = plan.optimizer_offload / 100
        fields["overlap_cpu_optimizer_d2h_h2d"] = plan.overlap_optimizer_offload
    if plan.reuse_grad_buf:
        fields["reuse_grad_buf_for_mxfp8_param_ag"] = True
    return fields | setting_fields(plan, "OptimizerConfig")


def optimizer_name(plan: Plan) -> str:
    """Megatron-Core's name of the optimizer; dist_muon shares whole matrices between data-parallel ranks."""
    return "dist_muon" if plan.optimizer == "muon" and plan.zero_stage else plan.optimizer


def setting_fields(plan: Plan, *classes: str) -> dict[str, Any]:
    """Settings the plan carries that are fields of one of these classes; names as in the knob catalogue."""
    return {
        field.split(".", 1)[1]: value
        for name, value in plan.settings
        for field in _names(SETTINGS[name].mcore)
        if field.split(".", 1)[0] in classes
    }


def _names(text: str) -> Iterator[str]:
    yield from (name.strip() for name in text.split(",") if "." in name)
