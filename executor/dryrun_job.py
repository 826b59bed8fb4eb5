"""Jobs of the dry run: what to trace of one stage, as plain values. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.core_here import Core, core_here
from executor.megatron_args import core_fields
from executor.megatron_here import traced_fields, why_not_traced
from executor.megatron_model import (
    ENDS,
    config_class,
    model_arguments,
    model_class,
    mtp_segments,
    not_expressed,
    staged_pattern,
)
from executor.megatron_training import ddp_fields, optimizer_fields


def make_job(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    stage: int,
    num_microbatches: int,
    with_optimizer: bool = True,
    core: Core | None = None,
) -> dict[str, Any]:
    """Plain values that describe one stage's trace. ValueError, one line, for what cannot be traced.

    core: the Megatron-Core that traces it, by default the one that is found here.
    """
    core = core or core_here()
    problem = why_not_traced(plan, model)
    if problem:
        raise ValueError(problem)
    if not 0 <= stage < plan.pp:
        raise ValueError(
            f"--stage {stage} is not one of 0 to {plan.pp - 1} of --pp {plan.pp}. Try --stage 0."
        )
    fields, notes = traced_fields(core_fields(plan, model, workload))
    if model.gated_delta is not None and fields.get("cp_comm_type") == "p2p":
        # Transformer Engine's own choice, which gated delta nets of 0.18 are not to be told (gated_delta_net.py).
        del fields["cp_comm_type"]
    arguments = model_arguments(model, plan.tp, workload.seq_len)
    if model.mamba is not None and core.stages_hybrids:
        fields = _staged(plan, model, workload, fields, arguments)
    traced = replace(plan, fp8_param_gather=False, reuse_grad_buf=False)  # parameters have 16 bits
    return {
        "plan": plan.to_dict(),
        "workload": workload.to_dict(),
        "model": model.name,
        "stage": stage,
        "num_microbatches": num_microbatches,
        "with_optimizer": with_optimizer,
        "notes": [*notes, *not_expressed(model, hybrid_heads=core.stages_hybrids)],
        "megatron": {
            "config_class": config_class(model),
            "model_class": model_class(model),
            "config": fields,
            "arguments": arguments,
            # Nothing has a value in a dry run, so nothing can be checked.
            "ddp": ddp_fields(traced) | {"check_for_nan_in_grad": False},
            "optimizer": optimizer_fields(traced),
        },
    }


def _staged(
    plan: Plan, model: ModelSpec, workload: Workload, fields: dict[str, Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Fields of a hybrid whose pattern, which goes into the arguments, says stages, chunks and heads."""
    del arguments["hybrid_override_pattern"]
    pattern = staged_pattern(plan, model, workload.seq_len)
    arguments["hybrid_layer_pattern"] = pattern + mtp_segments(model)
    # Stages that the pattern says cannot be said beside it (0.19.2, hybrid_layer_allocation.py).
    gone = ENDS if "|" in pattern else ()
    heads = {"mtp_num_layers": model.mtp_layers} if model.mtp_layers else {}
    return {name: value for name, value in fields.items() if name not in gone} | heads
