"""A job file of torchtitan as model, plan and workload: the row of measurements that its run would be, read as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.measurements.flags import optimizer_words
from advisor.measurements.plans import row_plan, row_workload
from advisor.measurements.release import unknown_release
from advisor.measurements.rows import Row
from advisor.options import given_knobs, plan_from_options
from advisor.torchtitan.flavors import Flavor, flavor_of
from advisor.torchtitan.job import Job
from advisor.torchtitan.pipeline import Pipeline, pipeline_of
from advisor.torchtitan.refusals import check_starts, unstarted
from advisor.torchtitan.remarks import acting, told
from advisor.torchtitan.sizes import Batches, Sizes, batches_of, length_of, sizes_of
from advisor.torchtitan.switches import (
    ASYNC,
    ATTENTION,
    BACKEND,
    CHUNKED,
    DISPATCHERS,
    FOUR_BITS,
    MTP,
    captures,
    compiles,
    gathers_quantised,
    precision_of,
    shares_sequences,
)
from advisor.workload_options import given_workload
from costmodel.layout import most_layers
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.stack import load_stack
from costmodel.versions import month_of, version_months
from costmodel.workload import Workload

FAMILY = "torchtitan"


@dataclass(frozen=True)
class Run:
    """What a job file means, and the software release that it is of."""

    model: ModelSpec
    plan: Plan
    workload: Workload
    stack: str


def run_of(job: Job, options: dict[str, Any], notes: list[str]) -> Run:
    """The run of a job with options over it. notes: takes what was assumed and what is not counted, a line each.

    ValueError in one line where it is none that torchtitan starts.
    """
    flavor = _flavor(job, options)
    model = flavor.model
    if "model.flavor" not in job.said and not options.get("model"):
        notes.append(
            f"model.flavor not said: torchtitan's {job['model.flavor']}; --model names another model."
        )
    notes += [*flavor.notes, *job.notes]
    stack = _stack(job, options, notes)
    given = given_knobs(options)
    sizes = sizes_of(job, model, given, options.get("gpus"), notes)
    check_starts(job, sizes)
    batches = batches_of(job, sizes, given, options.get("global_batch"))
    pipeline = pipeline_of(job, model.num_layers, sizes.pp, notes)
    row = _row(job, flavor, sizes, batches, pipeline, stack)
    plan = _plan(job, row, model, sizes, notes)
    seq_len = options.get("seq_len") or length_of(job)
    workload = _workload(row, flavor, seq_len, batches.whole, options, notes)
    notes += [
        *unstarted(flavor, sizes, job),
        *told(job),
        *acting(job, plan, model, stack),
        *optimizer_words(row),
    ]
    return Run(model, plan_from_options(given, sizes.gpus, plan), workload, stack)


def _flavor(job: Job, options: Mapping[str, Any]) -> Flavor:
    if options.get("model"):
        model = load_model(options["model"])
        steered = model.moe is not None and model.moe.expert_bias
        return Flavor(model, steered=bool(steered), kernel=job.said.get(ATTENTION, ""))
    found = flavor_of(job["model.name"], job["model.flavor"], job.said.get(ATTENTION, ""))
    heads = job.said.get(MTP, 0)
    return replace(found, model=replace(found.model, mtp_layers=heads)) if heads else found


def _stack(job: Job, options: Mapping[str, Any], notes: list[str]) -> str:
    """The release that --stack names, else the one that has the job's keys."""
    if options.get("stack"):
        return str(options["stack"])
    stack = f"{FAMILY}-{month_of(job.release, version_months(FAMILY))}"
    near = unknown_release(stack)
    notes.append(
        f"{stack}: {job.release} has these keys{f', and {near}' if near else ''}; --stack names another release."
    )
    return stack


def _month(stack: str, job: Job) -> str:
    """The month of the run, yy.mm: of its stack, of the job's release where that is none of torchtitan's."""
    there = load_stack(stack)
    known = there.release if there.family == FAMILY else ""
    return known or month_of(job.release, version_months(FAMILY))


def _row(job: Job, flavor: Flavor, sizes: Sizes, batches: Batches, pipeline: Pipeline, stack: str) -> Row:
    """The run as a row of a table of measurements, as `advisor validate` reads those of torchtitan."""
    mode = job["activation_checkpoint.mode"]
    shards = sizes.shard * sizes.cp
    flags: dict[str, Any] = {
        "torch_compile": compiles(job, "model"),
        "fsdp_float8_all_gather": gathers_quantised(job, sizes),
        "LBS": batches.local,
        **dict.fromkeys(pipeline.flags, True),
    }
    if sizes.cp > 1 and flavor.kernel.startswith("flex"):
        flags["cp_comm_type"] = "all_gather"  # PyTorch's flex_cp_allgather of keys and values
    layers = flavor.model.num_layers
    if (four := job.said.get(FOUR_BITS, layers)) < layers:
        flags["nvfp4_bf16_layers"] = f"{four}-{layers - 1}"
    values = {
        "source": FAMILY,
        "date": "20" + _month(stack, job).replace(".", "-")[:5],
        "optimizer": job["optimizer.name"],
        "precision": precision_of(job, sizes),
        "gbs": batches.whole,
        "mbs": batches.micro,
        "fsdp": (shards if sizes.replicate > 1 else 1) if sizes.fsdp else 0,
        "tp": sizes.tp,
        "pp": sizes.pp,
        "cp": sizes.cp,
        "vp": pipeline.vpp,
        "ep": sizes.ep,
        "etp": sizes.etp,
        "dp": sizes.dp,
        "pp_layout": pipeline.layout,
        "recompute_granularity": "selective" if mode == "memory_budget" else mode,
        "moe_dispatcher": DISPATCHERS.get(job[BACKEND], "alltoall") if sizes.ep > 1 else "alltoall",
        "sequence_parallel": int(sizes.tp > 1 and shares_sequences(job)),
        "cuda_graph": "full_iteration" if captures(job) else "none",
        "moe_force_balance": int(
            job.first("debug.moe_force_load_balance", "training.debug_moe_force_load_balance")
        ),
        "tp_comm_overlap": int(job[ASYNC] and sizes.tp > 1),
        "other_flags": json.dumps(flags),
    }
    return Row({name: str(value) for name, value in values.items()})


def _plan(job: Job, row: Row, model: ModelSpec, sizes: Sizes, notes: list[str]) -> Plan:
    """The plan of the row, with what no row of a table says."""
    plan, _ = row_plan(row, model, sizes.gpus)
    fused = compiles(job, "loss") or CHUNKED in job.said
    if fused != compiles(job, "model"):
        flags = row.json("other_flags") | {"torch_compile": fused}
        loss, _ = row_plan(Row({**row.values, "other_flags": json.dumps(flags)}), model, sizes.gpus)
        plan = replace(plan, fused_cross_entropy=loss.fused_cross_entropy)
    if sizes.fsdp and job["parallelism.fsdp_reshard_after_forward"] == "never":
        plan = replace(plan, zero_stage=2)
    if not sizes.fsdp and sizes.dp > 1:
        plan = replace(plan, zero_stage=0, overlap_param_gather=False)
    if job["training.enable_cpu_offload"] and sizes.fsdp:
        plan = replace(plan, optimizer_offload=100)
    option = job["activation_checkpoint.selective_ac_option"]
    if plan.recompute == "selective" and job["activation_checkpoint.mode"] == "selective" and option != "op":
        plan = _by_layers(plan, model, option)
    return plan


def _by_layers(plan: Plan, model: ModelSpec, option: str) -> Plan:
    """Of the layers of each rank every so many are computed again as a whole.

    Source: torchtitan 0.1.0 to 0.2.2, _apply_layer_sac, whose count goes on over the stages of a rank.
    """
    if not option.isdecimal():
        raise ValueError(
            f"activation_checkpoint.selective_ac_option {option!r} is neither op nor a number of layers in quotes. "
            'Try "op", or "2" for every second layer.'
        )
    here = most_layers(plan, model) * plan.vpp
    layers = here // int(option) if int(option) else here
    if not layers:
        return replace(plan, recompute="none", recompute_modules=(), recompute_num_layers=0)
    number = 0 if layers == here else layers
    return replace(plan, recompute="full", recompute_modules=(), recompute_num_layers=number)


def _workload(
    row: Row, flavor: Flavor, seq_len: int, batch: int, options: dict[str, Any], notes: list[str]
) -> Workload:
    """The workload of the row: tokens go where the router sends them unless the job forces balance."""
    model = flavor.model
    if model.moe is not None:
        model = replace(model, moe=replace(model.moe, expert_bias=flavor.steered))
    routed = row_workload(row, model, seq_len, batch)
    said = given_workload(options)
    if routed.moe_imbalance > 1 and "moe_imbalance" not in said:
        how = "steered by a bias of each expert" if flavor.steered else "not forced"
        notes.append(
            f"Balance of experts {how}: the busiest rank has {routed.moe_imbalance:.3g} times the mean, as published "
            "runs do; --moe-imbalance says otherwise."
        )
    task = {"task": options["task"]} if options.get("task") else {}
    return replace(routed, **task, **said)
