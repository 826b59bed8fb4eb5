"""What a published row says in `other_flags` by Megatron-Core's names: of empty columns, and of knobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from advisor.measurements.flags import PLAIN_FLAGS
from advisor.measurements.rows import Row, whole_number
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from executor.export.exchange_read import exchange_of

# Columns that a field fills where they are empty; the value is written as a column has it.
COLUMNS = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "virtual_pipeline_model_parallel_size": "vp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "micro_batch_size": "mbs",
    "pipeline_model_parallel_layout": "pp_layout",
    "num_layers_in_first_pipeline_stage": "first_stage_layers",
    "num_layers_in_last_pipeline_stage": "last_stage_layers",
    "use_megatron_fsdp": "fsdp",
    "recompute_granularity": "recompute_granularity",
    "recompute_modules": "recompute_modules",
    "recompute_num_layers": "recompute_num_layers",
    "cpu_offloading_num_layers": "act_offload_layers",
    "offload_modules": "fine_grained_offload",
    "moe_token_dispatcher_type": "moe_dispatcher",
    "moe_expert_capacity_factor": "moe_token_drop",
    "overlap_moe_expert_parallel_comm": "moe_a2a_overlap",
    "cuda_graph_impl": "cuda_graph",
    "tp_comm_overlap": "tp_comm_overlap",
    "sequence_parallel": "sequence_parallel",
    "nccl_ub": "nccl_ub",
    "fp8_param_gather": "fp8_param_gather",
    "fp8_param": "fp8_param_gather",
    "grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "use_precision_aware_optimizer": "precision_aware_optimizer",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "optimizer": "optimizer",
}
# Fields that act only where another is on: dumps hold their defaults, as Megatron-Core's list of modules.
ONLY_WITH = {
    "recompute_modules": "recompute_granularity",
    "recompute_num_layers": "recompute_granularity",
    "cpu_offloading_num_layers": "cpu_offloading",
    "offload_modules": "fine_grained_activation_offloading",
}
# Fields read below, and those that others read by name or that only tell what a column says anyway.
HERE = (
    *("optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"),
    *("attention_backend", "hidden_dropout", "attention_dropout", "use_distributed_optimizer"),
    *("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"),
    *(
        "overlap_p2p_comm",
        "cross_entropy_fusion",
        "cross_entropy_loss_fusion",
        "moe_pad_expert_input_to_capacity",
    ),
    *("microbatch_group_size_per_vp_stage", "hierarchical_context_parallel_sizes", "cp_comm_type"),
)
ELSEWHERE = (
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "bucket_size"),
    *("check_for_nan_in_grad", "tp_only_amax_red", "cross_entropy_fusion_impl", "cpu_offloading_weights"),
    *(
        "main_params_dtype",
        "main_grads_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "outer_dp_sharding_strategy",
    ),
    *("num_distributed_optimizer_instances", "moe_hybridep_num_sms", "moe_flex_dispatcher_backend"),
    *("wgrad_deferral_limit", "cuda_graph_scope", "cuda_graph_modules", "fine_grained_activation_offloading"),
    *("cpu_offloading", "data_parallel_sharding_strategy", "fp8", "fp8_recipe", "fp4"),
)
NOT_SHARDED = ("not sharded", "unsharded", "not distributed", "non-distributed")


def with_flags(row: Row) -> Row:
    """The row with columns that it leaves empty as its other flags have them. ValueError where those are no object."""
    filled: dict[str, str] = {}
    flags = row.json("other_flags")
    for field, column in COLUMNS.items():
        value = flags.get(field) if flags.get(ONLY_WITH.get(field, ""), True) else None
        if field == "recompute_granularity" and field in flags:
            value = value or "none"
        if field == "cuda_graph_impl" and value not in (None, "none", "full_iteration"):
            scopes = flags.get("cuda_graph_modules") or flags.get("cuda_graph_scope") or ""
            value = f"{value}:{_written(scopes)}"
        if not row.text(column) and (text := _written(value)):
            filled.setdefault(column, text)
    if flags.get("moe_enable_deepep") is True and not row.text("moe_dispatcher"):
        filled["moe_dispatcher"] = "deepep"
    return replace(row, values={**row.values, **filled}) if filled else row


def _written(value: Any) -> str:
    """A value as a cell has it; "" of one that says nothing or is no value of a column."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "+".join(value)
    if isinstance(value, list):
        return json.dumps(value)
    return str(value) if isinstance(value, str | int | float) else ""


def stated_knobs(row: Row, plan: Plan, assumed: list[str]) -> dict[str, Any]:
    """Knobs of a row's plan that its other flags state and no column does. assumed: takes what is not read."""
    flags = row.json("other_flags")
    found = {**_optimizer(row, flags, plan), **_kernels(flags, plan), **_exchanges(flags, plan)}
    wrong = [name for name, value in found.items() if KNOBS[name].error(value)]
    for name in wrong:
        del found[name]
    unread = sorted(field for field in flags if field in _unread())
    if unread or wrong:
        assumed.append(f"of its other flags not read: {', '.join([*unread, *wrong])}")
    return found


@cache
def _unread() -> frozenset[str]:
    """Fields and knobs of the catalogue that a row's other flags may name and that nobody reads."""
    fields = {
        part.strip().rpartition(".")[2] for knob in KNOBS.values() for part in (knob.mcore or "").split(",")
    }
    read = {*COLUMNS, *HERE, *ELSEWHERE, *PLAIN_FLAGS.values()}
    return frozenset((fields | set(KNOBS)) - read - {""})


def _optimizer(row: Row, flags: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if flags.get("optimizer_cpu_offload") is True:
        share = flags.get("optimizer_offload_fraction", 1.0)
        found["optimizer_offload"] = (
            round(100 * share) if isinstance(share, int | float) and 0 <= share <= 1 else 100
        )
    if isinstance(flags.get("overlap_cpu_optimizer_d2h_h2d"), bool):
        found["overlap_optimizer_offload"] = flags["overlap_cpu_optimizer_d2h_h2d"]
    sharded = flags.get("use_distributed_optimizer")
    if any(words in row.text("optimizer").lower() for words in NOT_SHARDED):
        sharded = False
    if isinstance(sharded, bool) and not plan.fsdp:
        found["zero_stage"] = max(plan.zero_stage, 1) if sharded else 0
    return found


def _kernels(flags: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    backend = str(flags.get("attention_backend", "")).lower().rpartition(".")[2]
    if backend and backend != "auto":
        found["attention_backend"] = KNOBS["attention_backend"].words.get(backend, backend)
    dropped = [flags[name] for name in ("hidden_dropout", "attention_dropout") if name in flags]
    if dropped and all(isinstance(each, int | float) for each in dropped):
        found["dropout"] = any(dropped)
    for name in ("cross_entropy_fusion", "cross_entropy_loss_fusion"):
        if isinstance(flags.get(name), bool):
            found["fused_cross_entropy"] = flags[name]
    # Plans have as many layers at both ends.
    ends = [whole_number(flags.get(f"num_layers_at_{end}_in_bf16", 1)) for end in ("start", "end")]
    if flags.get("first_last_layers_bf16") is True and plan.precision not in ("bf16", "fp16", "fp32"):
        found["bf16_end_layers"] = (sum(each or 0 for each in ends) + 1) // 2
    padded = flags.get("moe_pad_expert_input_to_capacity")
    if isinstance(padded, bool) and plan.moe_capacity_factor > 0:
        found["moe_pad_expert_input_to_capacity"] = padded
    return found


def _exchanges(flags: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(flags.get("overlap_p2p_comm"), bool) and plan.vpp > 1:
        found["overlap_p2p"] = flags["overlap_p2p_comm"]
    if (group := whole_number(flags.get("microbatch_group_size_per_vp_stage"))) and plan.vpp > 1:
        found["vpp_group_size"] = group
    if plan.cp > 1 and flags.get("cp_comm_type"):
        try:
            found["cp_comm_type"] = exchange_of({"cp_comm_type": flags["cp_comm_type"]})
        except ValueError:
            found["cp_comm_type"] = ""
    inner = flags.get("hierarchical_context_parallel_sizes")
    if found.get("cp_comm_type", plan.cp_comm_type) == "a2a+p2p" and isinstance(inner, list) and inner:
        found["cp_a2a_size"] = inner[0]
    return found
