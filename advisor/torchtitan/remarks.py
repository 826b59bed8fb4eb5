"""What of a job is not modelled, a line each, where it acts."""

from __future__ import annotations

from typing import Any

from advisor.torchtitan.job import Job, tables
from advisor.torchtitan.python_job import NVFP4
from advisor.torchtitan.switches import (
    BACKEND,
    DISPATCHERS,
    EARLY_STOP,
    FLOAT8,
    GROUPED,
    MX,
    OUTPUT,
    ROTATION,
    float8_recipe,
    in_fp32,
)
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.stack import load_stack

# Layers in filters of quantisation that no precision of ours takes: the output layer's and routers' products.
KEPT = (OUTPUT, "router.gate", "moe.router.gate")


def told(job: Job) -> list[str]:
    """Keys that say other than their default and are not modelled, a line each."""
    words: dict[str, str] = tables("roles")["told"]
    keys = tables("keys")["keys"]
    return [
        f"Not modelled: {key} = {_shown(job.said[key])}; {words[key]}."
        for key in job.said
        if key in words and job.said[key] != keys[key].get("default") and _acts(job, key)
    ]


def _acts(job: Job, key: str) -> bool:
    """Whether a key is heard: those of a converter are where the job has it."""
    table = key.rpartition(".")[0]
    return table not in (*FLOAT8, *MX, *GROUPED) or table in job["model.converters"]


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value!r:.60}"


def acting(job: Job, plan: Plan, model: ModelSpec, stack: str) -> list[str]:
    """What is not modelled of keys that are read, where it acts, a line each."""
    mode, converters = job["activation_checkpoint.mode"], job["model.converters"]
    quantised = plan.precision not in ("bf16", "fp32")
    float8 = any(name in converters for name in FLOAT8)
    filters = job.first(*((f"{name}.filter_fqns") for name in (FLOAT8 if float8 else MX)))
    others = [name for name in filters if name not in KEPT]
    unknown = [name for name in converters if name not in (*FLOAT8, *MX, *GROUPED, NVFP4)]
    offloads = plan.optimizer_offload > 0
    stops = job.release == "0.1.0" or bool(
        job[EARLY_STOP]
    )  # PyTorch's default in 0.1.0, which has no such key
    said = {
        "activation_checkpoint.mode memory_budget; recompute of single ops counts": mode == "memory_budget",
        f"activation_checkpoint.early_stop {'on' if stops else 'off'}; a recomputed layer counts "
        f"{'with' if stops else 'without'} its last product": (
            plan.recompute == "full" and stops != load_stack(stack).early_stop
        ),
        f"{ROTATION} {job[ROTATION]}; a ring of keys and values counts": (
            plan.cp > 1 and plan.cp_comm_type == "p2p" and job.has(ROTATION) and job[ROTATION] != "alltoall"
        ),
        f"{BACKEND} {job[BACKEND]}; an all-to-all counts": (
            plan.ep > 1 and job[BACKEND] not in (*DISPATCHERS, "standard")
        ),
        "parallelism.disable_loss_parallel; logits count as shared out over the tensor ranks": (
            plan.tp > 1 and job["parallelism.disable_loss_parallel"]
        ),
        "parallelism.fsdp_reshard_after_forward always; stages of a pipeline keep what they gathered": (
            plan.fsdp and plan.pp > 1 and job["parallelism.fsdp_reshard_after_forward"] == "always"
        ),
        "training.enable_cpu_offload of parameters and gradients; the optimizer's alone counts": offloads,
        f"filter_fqns {', '.join(others[:4])}; those layers count in {plan.precision} too": quantised
        and bool(others),
        "the output layer in 8 bits, as filter_fqns does not name it; it counts in 16": (
            quantised and OUTPUT not in filters
        ),
        f"experts in 16 bits, as no converter takes them; they count in {plan.precision}": (
            quantised and model.moe is not None and not any(name in converters for name in GROUPED)
        ),
        "activations in FP32, as nothing casts them; they count in 16 bits": (
            quantised and in_fp32(job, plan.fsdp, plan.tp * plan.pp)
        ),
        f"model.converters {', '.join(unknown[:4])}": bool(unknown),
        "rowwise_with_gw_hp keeps the products of weight gradients in 16 bits; they count in 8": (
            float8_recipe(job) == "rowwise_with_gw_hp" and float8
        ),
    }
    lines = [f"Not modelled: {words}." for words, acts in said.items() if acts]
    keys = tables("keys")["keys"]
    changed = [key for key in job.said if key in keys and job.said[key] != keys[key].get("default")]
    set_up = {key.rpartition(".")[0] for key in changed} & {*FLOAT8, *MX, *GROUPED}
    lines += [
        f"{name} is set up, but model.converters does not name it: it quantises nothing."
        for name in sorted(set_up - set(converters))
    ]
    if plan.precision == "fp32" and job["training.mixed_precision_param"] != "float32":
        lines.append(
            "FP32 throughout: torchtitan casts parameters under FSDP alone, and nothing is sharded here."
        )
    return lines
