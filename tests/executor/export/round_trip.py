"""When a plan that was exported and read back is the same, and when an exported file is whole."""

from __future__ import annotations

import ast
from dataclasses import replace
from types import ModuleType

from costmodel.plan import Plan
from executor.export.exported import Exported, Job
from executor.megatron_args import core_fields
from executor.megatron_training import ddp_fields, optimizer_fields

# What older releases refuse of legal plans: graphs of Megatron-Core before 0.16, names of the shape, layers of experts.
OLDER_REFUSE = ("refuses the two together", "would train another model", "layers of experts (E)")


def exported_or_none(target: ModuleType, job: Job) -> Exported | None:
    """The job exported by a target's module, None where an older release refuses it."""
    try:
        exported: Exported = target.export(job)
    except ValueError as error:
        if not any(words in str(error) for words in OLDER_REFUSE):
            raise
        return None
    return exported


def undefined(tree: ast.Module) -> set[str]:
    """Names that the file uses and nothing in it gives."""
    given_names = {"__name__", "range", "int", "float", "SystemExit", "dir"}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            given_names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            given_names |= {node.name} | {each.arg for each in node.args.args}
        elif isinstance(node, ast.Name):
            (given_names if isinstance(node.ctx, ast.Store) else used).add(node.id)
    return used - given_names


def same(job: Job, back: Plan) -> bool:
    """Whether both plans are one to Megatron-Core, and say the same of what it does not see."""
    plan = job.plan
    assert core_fields(back, job.model, job.workload) == core_fields(plan, job.model, job.workload)
    assert ddp_fields(back) == ddp_fields(plan)
    assert optimizer_fields(back) == optimizer_fields(plan)
    for name in ("dp", "micro_batch", "manual_gc", "sharp", "precision", "fp8_param_gather"):
        assert getattr(back, name) == getattr(plan, name), name
    return True


def comparable(job: Job) -> Job:
    """Without what the export must say otherwise, each of which has a note."""
    plan = job.plan
    if plan.recompute == "selective" and not plan.recompute_modules:
        plan = replace(plan, recompute_modules=("core_attn",))  # Megatron-Core's own choice
    if plan.pp == 1:
        plan = replace(plan, first_stage_layers=0, last_stage_layers=0)  # of no effect
    if plan.precision in ("bf16", "fp16", "fp32"):
        plan = replace(plan, bf16_end_layers=0, fp8_attention=False, fp8_param_gather=False)  # of no effect
    if plan.precision == "mxfp8" and plan.fp8_param_gather and not plan.fsdp:
        plan = replace(plan, reuse_grad_buf=True)
    return replace(job, plan=plan)
