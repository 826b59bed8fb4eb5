"""A job file of torchtitan as model, plan and workload: the row of measurements that its run would be, read as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.measurement_flags import optimizer_words
from advisor.measurement_plans import row_plan, row_workload
from advisor.measurement_release import unknown_release, version_months
from advisor.measurement_rows import Row
from advisor.options import given_knobs, plan_from_options
from advisor.torchtitan.flavors import Flavor, flavor_of
from advisor.torchtitan.job import Job, tables
from advisor.torchtitan.pipeline import Pipeline, pipeline_of
from advisor.torchtitan.python_job import NVFP4
from advisor.torchtitan.python_job import RELEASE as PYTHON
from advisor.torchtitan.sizes import Batches, Sizes, batches_of, sizes_of
from advisor.workload_options import given_workload
from costmodel.layout import most_layers
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.stack import load_stack
from costmodel.workload import Workload

FAMILY = "torchtitan"
# Converters of linear layers by name: 0.1.0's and those since. Those of grouped products are told of.
FLOAT8, MX = ("float8", "quantize.linear.float8"), ("mx", "quantize.linear.mx")
GROUPED = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")
# Recipes of torchao that are named; none is the first.
RECIPES = {None: "tensorwise", "rowwise_with_gw_hp": "rowwise"}
OUTPUT = "output"  # the output layer's name in filters
ASYNC = "parallelism.enable_async_tensor_parallel"
EARLY_STOP = "activation_checkpoint.early_stop"
# What only configurations in Python say, under names that no release has.
ATTENTION, MTP, CHUNKED, FOUR_BITS = "model.attention", "model.mtp", "loss.chunked", "nvfp4.layers"
GRAPHS = "training.disable_cuda_graphs"
BACKEND = "parallelism.expert_parallel_comm_backend"
DISPATCHERS = {"deepep": "deepep", "hybridep": "hybridep"}
ROTATION = "parallelism.context_parallel_rotate_method"


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
    _check_starts(job, sizes)
    batches = batches_of(job, sizes, given, options.get("global_batch"))
    pipeline = pipeline_of(job, model.num_layers, sizes.pp, notes)
    row = _row(job, flavor, sizes, batches, pipeline, stack)
    plan = _plan(job, row, model, sizes, notes)
    seq_len = options.get("seq_len") or job["training.seq_len"]
    workload = _workload(row, flavor, seq_len, batches.whole, options, notes)
    notes += [*_unstarted(flavor, sizes, job), *_told(job), *_acting(job, plan, model), *optimizer_words(row)]
    return Run(model, plan_from_options(given, sizes.gpus, plan), workload, stack)


def _flavor(job: Job, options: Mapping[str, Any]) -> Flavor:
    if options.get("model"):
        return Flavor(load_model(options["model"]), kernel=job.said.get(ATTENTION, ""))
    found = flavor_of(job["model.name"], job["model.flavor"], job.said.get(ATTENTION, ""))
    heads = job.said.get(MTP, 0)
    return replace(found, model=replace(found.model, mtp_layers=heads)) if heads else found


def _stack(job: Job, options: Mapping[str, Any], notes: list[str]) -> str:
    """The release that --stack names, else the one that has the job's keys."""
    if options.get("stack"):
        return str(options["stack"])
    month = version_months(FAMILY)[job.release.rpartition(".")[0]]
    stack = f"{FAMILY}-{month}"
    near = unknown_release(stack)
    notes.append(
        f"{stack}: {job.release} has these keys{f', and {near}' if near else ''}; --stack names another release."
    )
    return stack


def _check_starts(job: Job, sizes: Sizes) -> None:
    """ValueError in one line for what torchtitan refuses before it trains.

    Source: torchtitan 0.1.0 to 0.2.2, parallelize.py (apply_ddp, async TP) and models/deepseek_v3 (DeepEP).
    """
    if sizes.replicate > 1 and not sizes.fsdp and sizes.tp * sizes.pp > 1:
        raise ValueError(
            f"data_parallel_replicate_degree {sizes.replicate} without shards is DDP, which torchtitan refuses beside "
            "tensor or pipeline parallelism. Try data_parallel_replicate_degree = 1, data_parallel_shard_degree = -1."
        )
    if job[ASYNC] and sizes.tp > 1 and not _compiles(job, "model"):
        name = "training.compile" if job.release == "0.1.0" else "compile.enable"
        raise ValueError(
            f"{ASYNC} is torch.compile's, without which torchtitan refuses it. Try {name} = true, or leave it out."
        )
    if job[BACKEND] == "deepep" and sizes.ep == 1 and job.release != PYTHON:
        raise ValueError(
            "parallelism.expert_parallel_comm_backend deepep is for experts on several ranks, and torchtitan refuses "
            "it without. Try expert_parallel_degree = 8, or leave it out."
        )
    if _graphs(job) and (
        sizes.pp > 1 or (sizes.ep > 1 and job[BACKEND] not in ("hybridep", "minimal_async_ep"))
    ):
        what = "pipeline stages" if sizes.pp > 1 else "experts on several ranks by this dispatcher"
        raise ValueError(
            f"CUDA graphs, which torchtitan {PYTHON} has on, do not take {what}. Try {GRAPHS} = true."
        )


def _graphs(job: Job) -> bool:
    """Whether a whole pass is captured. Source: torchtitan 0.3.0, trainer.py, _validate_cuda_graphs."""
    return job.has(GRAPHS) and not job[GRAPHS]


def _unstarted(flavor: Flavor, sizes: Sizes, job: Job) -> list[str]:
    """What the flavour's own code lacks, a line each: a release that is not on file may have it."""
    lacks = {
        "pipeline parallelism": sizes.pp > 1 and not flavor.pipelined,
        "context parallelism with its attention": sizes.cp > 1 and not flavor.split,
    }
    named = f"{job['model.name']} {job['model.flavor']}"
    return [f"torchtitan {job.release} has no {what} for {named}." for what, acts in lacks.items() if acts]


def _month(stack: str, job: Job) -> str:
    """The month of the run, yy.mm: of its stack, of the job's release where that is none of torchtitan's."""
    there = load_stack(stack)
    known = there.release if there.family == FAMILY else ""
    return known or version_months(FAMILY)[job.release.rpartition(".")[0]]


def _compiles(job: Job, part: str) -> bool:
    """Whether torch.compile takes the model or the loss. 0.1.0's switch takes both."""
    if not job.has("compile.enable") or "training.compile" in job.said:
        return bool(job["training.compile"])
    return bool(job["compile.enable"]) and part in job["compile.components"]


def _precision(job: Job, sizes: Sizes) -> str:
    """As the column of a table of measurements: without FSDP, tensor and pipeline ranks compute in FP32.

    Source: torchtitan 0.1.0 to 0.2.2, distributed/utils.py, maybe_enable_amp.
    """
    if job["training.mixed_precision_param"] == "float32" or _no_mixed(sizes):
        return "fp32"
    converters = job["model.converters"]
    if NVFP4 in converters:
        return "nvfp4 (bf16 tail)"
    if any(name in converters for name in FLOAT8):
        recipe = job.first("quantize.linear.float8.recipe_name", "float8.recipe_name")
        return f"fp8-{RECIPES.get(recipe, recipe)}"
    return "mxfp8" if any(name in converters for name in MX) else "bf16"


def _no_mixed(sizes: Sizes) -> bool:
    """Whether nothing casts parameters: autocast is for one GPU and for copies alone."""
    return not sizes.fsdp and sizes.tp * sizes.pp > 1


def _row(job: Job, flavor: Flavor, sizes: Sizes, batches: Batches, pipeline: Pipeline, stack: str) -> Row:
    """The run as a row of a table of measurements, as `advisor validate` reads those of torchtitan."""
    mode = job["activation_checkpoint.mode"]
    shards = sizes.shard * sizes.cp
    flags: dict[str, Any] = {
        "torch_compile": _compiles(job, "model"),
        "fsdp_float8_all_gather": _gathers_quantised(job, sizes),
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
        "precision": _precision(job, sizes),
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
        "sequence_parallel": int(sizes.tp > 1 and _shares_sequences(job)),
        "cuda_graph": "full_iteration" if _graphs(job) else "none",
        "moe_force_balance": int(
            job.first("debug.moe_force_load_balance", "training.debug_moe_force_load_balance")
        ),
        "tp_comm_overlap": int(job[ASYNC] and sizes.tp > 1),
        "other_flags": json.dumps(flags),
    }
    return Row({name: str(value) for name, value in values.items()})


def _shares_sequences(job: Job) -> bool:
    """Whether sequence parallelism is on, as it always is beside tensor parallelism before 0.3.0."""
    return bool(job["parallelism.enable_sequence_parallel"])


def _gathers_quantised(job: Job, sizes: Sizes) -> bool:
    """Whether FSDP gathers parameters in 8 bits, as it does of shards alone, and not of a named recipe."""
    said = job.first(
        "float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather"
    )
    return bool(said and sizes.shard > 1 and any(name in job["model.converters"] for name in FLOAT8))


def _plan(job: Job, row: Row, model: ModelSpec, sizes: Sizes, notes: list[str]) -> Plan:
    """The plan of the row, with what no row of a table says."""
    plan, _ = row_plan(row, model, sizes.gpus)
    fused = _compiles(job, "loss") or CHUNKED in job.said
    if fused != _compiles(job, "model"):
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
    if not option.isdigit():
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


def _told(job: Job) -> list[str]:
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


def _acting(job: Job, plan: Plan, model: ModelSpec) -> list[str]:
    """What is not modelled of keys that are read, where it acts, a line each."""
    mode, converters = job["activation_checkpoint.mode"], job["model.converters"]
    quantised = plan.precision not in ("bf16", "fp32")
    float8 = any(name in converters for name in FLOAT8)
    filters = job.first(*((f"{name}.filter_fqns") for name in (FLOAT8 if float8 else MX)))
    others = [name for name in filters if name != OUTPUT]
    unknown = [name for name in converters if name not in (*FLOAT8, *MX, *GROUPED, NVFP4)]
    offloads = plan.optimizer_offload > 0
    said = {
        "activation_checkpoint.mode memory_budget; recompute of single ops counts": mode == "memory_budget",
        "activation_checkpoint.early_stop off; a recomputed layer counts without its last product": (
            plan.recompute == "full" and job.release != "0.1.0" and not job[EARLY_STOP]
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
        f"model.converters {', '.join(unknown[:4])}": bool(unknown),
        "rowwise_with_gw_hp keeps the products of weight gradients in 16 bits; they count in 8": (
            job.first("quantize.linear.float8.recipe_name", "float8.recipe_name") == "rowwise_with_gw_hp"
            and float8
        ),
    }
    lines = [f"Not modelled: {words}." for words, acts in said.items() if acts]
    if _computes_whole(job, plan):
        lines.append(
            "FP32 throughout: torchtitan casts parameters under FSDP alone, and nothing is sharded here."
        )
    return lines


def _computes_whole(job: Job, plan: Plan) -> bool:
    """Whether products are in FP32 though the job does not say so."""
    return plan.precision == "fp32" and job["training.mixed_precision_param"] != "float32"
