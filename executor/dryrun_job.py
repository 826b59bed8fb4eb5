"""Jobs of the dry run: what to trace of one stage, as plain values. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import core_fields
from executor.megatron_here import traced_fields, why_not_traced
from executor.megatron_model import config_class, model_arguments, model_class, not_expressed
from executor.megatron_training import ddp_fields, optimizer_fields


def make_job(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    stage: int,
    num_microbatches: int,
    with_optimizer: bool = True,
) -> dict[str, Any]:
    """Plain values that describe one stage's trace. ValueError, one line, for what cannot be traced."""
    problem = why_not_traced(plan, model)
    if problem:
        raise ValueError(problem)
    if not 0 <= stage < plan.pp:
        raise ValueError(
            f"--stage {stage} is not one of 0 to {plan.pp - 1} of --pp {plan.pp}. Try --stage 0."
        )
    fields, notes = traced_fields(core_fields(plan, model, workload))
    traced = replace(plan, fp8_param_gather=False, reuse_grad_buf=False)  # parameters have 16 bits
    return {
        "plan": plan.to_dict(),
        "workload": workload.to_dict(),
        "model": model.name,
        "stage": stage,
        "num_microbatches": num_microbatches,
        "with_optimizer": with_optimizer,
        "notes": [*notes, *not_expressed(model)],
        "megatron": {
            "config_class": config_class(model),
            "model_class": model_class(model),
            "config": fields,
            "arguments": model_arguments(model, plan.tp, workload.seq_len),
            # Nothing has a value in a dry run, so nothing can be checked.
            "ddp": ddp_fields(traced) | {"check_for_nan_in_grad": False},
            "optimizer": optimizer_fields(traced),
        },
    }
