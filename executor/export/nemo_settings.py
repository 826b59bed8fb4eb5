"""A job in the words of a NeMo 2 recipe: dotted name and plain value of every setting, callbacks by their class.

Values are plain, as in `megatron_bridge_settings`. Every knob is said, also those that are off: recipes have some on.
Sources: nemo.lightning (MegatronStrategy, MegatronMixedPrecision, MegatronCommOverlapCallback), nemo.collections.llm
(GPTConfig, recipes) of the releases in nemo_names.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from costmodel.knobs import SETTINGS
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from executor.export.exported import Job
from executor.export.launch import nodes_of
from executor.export.megatron_bridge_settings import (
    BY_OVERLAP,
    BY_PRECISION,
    NOTHING,
    loss_names,
    recompute_names,
)
from executor.export.megatron_bridge_task import adapter_settings, graphs_of_attention, packed_batch
from executor.export.nemo_remarks import remarks, stand_in
from executor.export.overlap_table import FIELD, pipelined
from executor.export.target_names import Names, names_of, recipe_names, releases
from executor.export.unsaid import (
    graph_word,
    refuse_other_shape,
    refuse_recomputed_graphs,
    setting_notes,
    setting_value,
)
from executor.megatron_args import core_fields
from executor.megatron_model import model_arguments, model_fields
from executor.megatron_training import ddp_fields, optimizer_fields

# Recipes of mixed precision (nemo.collections.llm.recipes.precision.mixed_precision) by our precision.
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp32": "",
    "fp8-delayed": "bf16_with_fp8_mixed",
    "fp8-cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8-sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "",
}
STRATEGY = "trainer.strategy"
CONFIG = "model.config"
OVERLAP = "callbacks.MegatronCommOverlapCallback"
GARBAGE = "callbacks.GarbageCollectionCallback"
NSYS = "callbacks.NsysCallback"
SNAPSHOT = "callbacks.MemoryProfileCallback"
# Part of the recipe -> section of the recorded names.
SECTIONS = {
    f"{STRATEGY}.ddp": f"{STRATEGY}.ddp",
    STRATEGY: STRATEGY,
    CONFIG: CONFIG,
    "trainer.plugins": "trainer.plugins",
    "optim.config": "optim.config",
    "data.packed_sequence_specs": "packed",
    "data": "data",
    "peft": "peft",
    OVERLAP: "overlap",
    GARBAGE: "garbage",
    NSYS: "nsys",
    SNAPSHOT: "snapshot",
}
BATCH_INTERVAL = 100
# Settings that make up the two profiling callbacks.
PROFILING = (
    "use_nsys_profiler",
    "profile_step_start",
    "profile_step_end",
    "profile_ranks",
    "record_memory_history",
    "memory_snapshot_path",
)
OFF: dict[str, Any] = {
    f"{STRATEGY}.num_layers_in_first_pipeline_stage": None,
    f"{STRATEGY}.num_layers_in_last_pipeline_stage": None,
    f"{STRATEGY}.microbatch_group_size_per_vp_stage": None,
    f"{STRATEGY}.pipeline_model_parallel_layout": None,
    f"{STRATEGY}.fsdp": None,
    f"{CONFIG}.recompute_granularity": None,
    f"{CONFIG}.recompute_method": None,
    f"{CONFIG}.recompute_num_layers": None,
    f"{CONFIG}.recompute_modules": None,
    f"{CONFIG}.cpu_offloading": False,
    f"{CONFIG}.cpu_offloading_num_layers": 0,
    "optim.config.use_precision_aware_optimizer": False,
    "optim.config.main_params_dtype": "fp32",
    "optim.config.main_grads_dtype": "fp32",
    "optim.config.exp_avg_dtype": "fp32",
    "optim.config.exp_avg_sq_dtype": "fp32",
}


@dataclass(frozen=True)
class Recipe:
    """What goes into the file: the recipe's module ("" without one), the settings, the notes.

    shape: module of a recipe for another task, whose model serves.
    """

    module: str
    shape: str
    settings: dict[str, Any]
    notes: list[str]


def recipe(job: Job, names: Names) -> Recipe:
    """Recipe and settings of a job."""
    module = recipe_module(job, names)
    nodes, per_node = nodes_of(job)
    wanted: dict[str, Any] = {"trainer.num_nodes": nodes, "trainer.devices": per_node} | OFF
    shape = module or shape_module(job, names)
    wanted |= model_settings(job, names, bool(shape))
    wanted |= graph_settings(job, names)
    wanted |= training_settings(job, names)
    wanted |= precision_settings(job.plan)
    wanted |= overlap_settings(job)
    wanted |= task_settings(job)
    others = list(other_settings(job, names))
    wanted |= {dotted: value for _, dotted, value in others}
    if job.benchmark:
        wanted |= {f"{STRATEGY}.ddp.check_for_nan_in_grad": False, "trainer.max_steps": 50}
        if job.model.moe is not None:
            wanted[f"{CONFIG}.moe_router_force_load_balancing"] = True
    else:
        wanted.pop(f"{CONFIG}.moe_router_force_load_balancing", None)
    _refuse(wanted, job, names)
    notes: list[str] = []
    settings = dict(_held(wanted, names, notes))
    profiled = profiling_settings(job.plan)
    settings |= profiled
    said = {"manual_gc_interval", *(PROFILING if profiled else ()), *(name for name, _, _ in others)}
    notes += setting_notes(job.plan, "nemo", f"NeMo {names.release}", said)
    return Recipe(module, shape, settings, notes + list(remarks(job, names, shape)))


def recipe_module(job: Job, names: Names) -> str:
    """Module of the model's recipe that has the task's function, "" when the release has none."""
    module = recipe_names("nemo", job.model.name).get("module", "")
    function = "pretrain_recipe" if job.workload.task == "pretrain" else "finetune_recipe"
    return module if module and arguments_of(names, module, function) is not None else ""


def shape_module(job: Job, names: Names) -> str:
    """Module whose `model()` is the model, also where the task's recipe is missing; "" when there is none."""
    module = recipe_names("nemo", job.model.name).get("module", "")
    return module if any(entry.startswith(f"{module}:") for entry in names.sections["configs"]) else ""


def arguments_of(names: Names, module: str, function: str) -> set[str] | None:
    """What a recipe's function takes, None when there is no such function."""
    for entry in names.sections.get(function, frozenset()):
        first, *words = entry.split()
        if first == module:
            usual = {"dir", "name", "num_nodes", "num_gpus_per_node"} - {
                word[1:] for word in words if word[0] == "-"
            }
            return usual | {word for word in words if word[0] != "-"}
    return None


def model_settings(job: Job, names: Names, known: bool) -> dict[str, Any]:
    """Parallel sizes go to the strategy, the rest of Megatron-Core's fields to the model's configuration."""
    core = core_fields(job.plan, job.model, job.workload)
    core |= recompute_names(core, job.model) | loss_names(core, job)
    shape = model_fields(job.model)
    usual = model_fields(load_model(job.model.name)) if known else {}
    settings: dict[str, Any] = {}
    for name, value in core.items():
        if name in BY_PRECISION + BY_OVERLAP[:4] or (
            known and name in shape and usual.get(name) == shape[name]
        ):
            continue
        place = STRATEGY if names.has(STRATEGY, name) else CONFIG
        settings[f"{place}.{name}"] = value
    if not known:
        extra = model_arguments(job.model, job.plan.tp, job.workload.seq_len)
        extra.pop("max_sequence_length")
        extra["vocab_size"] = job.model.vocab_padded or job.model.vocab
        if job.model.vocab_divisible_by:
            extra["make_vocab_size_divisible_by"] = job.model.vocab_divisible_by
        settings |= {f"{CONFIG}.{name}": value for name, value in extra.items()}
    if job.plan.pp == 1:
        settings |= {name: None for name in OFF if name.endswith("_pipeline_stage")}
    settings[f"{CONFIG}.seq_length"] = job.workload.seq_len
    kind = job.plan.precision if job.plan.precision in ("fp16", "fp32") else "bf16"
    settings[f"{STRATEGY}.pipeline_dtype"] = kind
    # An enumeration that the older configurations do not take by name; auto is the default.
    if settings.get(f"{CONFIG}.attention_backend") == "auto":
        settings.pop(f"{CONFIG}.attention_backend", None)
    if not names.has(CONFIG, "cuda_graph_impl"):
        settings.pop(f"{CONFIG}.cuda_graph_impl", None)  # two switches say it, see graph_settings
    backend = f"{CONFIG}.moe_flex_dispatcher_backend"
    if backend in settings and not names.has(CONFIG, "moe_flex_dispatcher_backend"):
        settings.pop(backend)
        deepep = stand_in(job.plan, job.cluster) == "deepep"
        settings[f"{CONFIG}.moe_enable_deepep"] = deepep
        if not deepep:
            settings[f"{CONFIG}.moe_token_dispatcher_type"] = "alltoall"
    return settings


def graph_settings(job: Job, names: Names) -> dict[str, Any]:
    """CUDA graphs: two switches before Megatron-Core 0.15, an implementation since."""
    plan = job.plan
    newer = names.has(CONFIG, "cuda_graph_impl")
    fields: dict[str, Any] = {"cuda_graph_impl": "none"} if newer else {"enable_cuda_graph": False}
    whole = "full_iteration" in plan.cuda_graph_scope
    if plan.cuda_graph:
        if newer:
            fields["cuda_graph_impl"] = "local" if whole else "transformer_engine"
        else:
            fields["enable_cuda_graph"] = whole
            fields["external_cuda_graph"] = not whole
        fields["cuda_graph_scope"] = graph_word(job.plan, job.model)
    settings = {f"{CONFIG}.{name}": value for name, value in fields.items()}
    settings[f"{STRATEGY}.use_te_rng_tracker"] = plan.cuda_graph
    return settings


def training_settings(job: Job, names: Names) -> dict[str, Any]:
    """Batch, data parallelism, optimizer, garbage collection."""
    plan = job.plan
    ddp = {name: value for name, value in ddp_fields(plan).items() if name != "use_megatron_fsdp"}
    settings: dict[str, Any] = {
        "data.seq_length": job.workload.seq_len,
        "data.global_batch_size": job.workload.global_batch,
        "data.micro_batch_size": plan.micro_batch,
    }
    instances = ddp.pop("num_distributed_optimizer_instances", 1)
    if plan.fsdp:
        settings[f"{STRATEGY}.fsdp"] = "megatron"
    place = STRATEGY if names.has(STRATEGY, "num_distributed_optimizer_instances") else f"{STRATEGY}.ddp"
    settings[f"{place}.num_distributed_optimizer_instances"] = instances
    settings |= {f"{STRATEGY}.ddp.{name}": value for name, value in ddp.items()}
    left_out = ("optimizer", "params_dtype", "bf16", "fp16", "clip_grad")
    optimizer = {name: value for name, value in optimizer_fields(plan).items() if name not in left_out}
    settings |= {f"optim.config.{name}": value for name, value in optimizer.items()}
    if plan.sharp:
        settings[f"{STRATEGY}.use_sharp"] = True
    if plan.manual_gc:
        interval = dict(plan.settings).get("manual_gc_interval") or BATCH_INTERVAL
        settings |= {f"{GARBAGE}.gc_interval_train": interval, f"{GARBAGE}.gc_interval_val": interval}
    return settings


def profiling_settings(plan: Plan) -> dict[str, Any]:
    """The callbacks that NsysPlugin and MemoryProfilePlugin add, where the plan's settings ask for them.

    Both have been in every release since 2.3; a snapshot is a file of each rank in the folder of memory_snapshot_path.
    """
    given = {name: dict(plan.settings).get(name, SETTINGS[name].default) for name in PROFILING}
    ranks = setting_value("profile_ranks", given["profile_ranks"])
    settings: dict[str, Any] = {}
    if given["use_nsys_profiler"]:
        steps = {"start_step": given["profile_step_start"], "end_step": given["profile_step_end"]}
        settings |= {f"{NSYS}.{name}": value for name, value in (steps | {"ranks": ranks}).items()}
    if given["record_memory_history"]:
        folder = str(PurePosixPath(given["memory_snapshot_path"]).parent)
        settings |= {f"{SNAPSHOT}.dir": folder, f"{SNAPSHOT}.ranks": ranks}
    return settings


def precision_settings(plan: Plan) -> dict[str, Any]:
    """The precision plugin and what the plan has otherwise."""
    settings: dict[str, Any] = {
        "trainer.plugins": PRECISIONS[plan.precision],
        "trainer.plugins.grad_reduce_in_fp32": plan.grad_reduce_in_fp32,
    }
    if plan.precision == "fp32":
        settings |= {"trainer.plugins.precision": "32", "trainer.plugins.params_dtype": "fp32"}
        return settings | {"trainer.plugins.pipeline_dtype": "fp32"}
    if plan.precision == "nvfp4":
        settings |= {"trainer.plugins": "bf16_mixed", "trainer.plugins.fp4": "e2m1"}
        settings |= {"trainer.plugins.fp4_recipe": "nvfp4"}
    if plan.precision in ("bf16", "fp16"):
        return settings
    if plan.precision != "nvfp4":
        settings["trainer.plugins.fp8_param_gather"] = plan.fp8_param_gather
    if plan.precision == "mxfp8":
        settings["trainer.plugins.reuse_grad_buf_for_mxfp8_param_ag"] = plan.reuse_grad_buf
    return settings | {
        "trainer.plugins.fp8_dot_product_attention": plan.fp8_attention,
        "trainer.plugins.first_last_layers_bf16": plan.bf16_end_layers > 0,
        "trainer.plugins.num_layers_at_start_in_bf16": plan.bf16_end_layers,
        "trainer.plugins.num_layers_at_end_in_bf16": plan.bf16_end_layers,
    }


def overlap_settings(job: Job) -> dict[str, Any]:
    """The overlap callback: what is left unsaid there it decides itself, so everything is said."""
    core, ddp = core_fields(job.plan, job.model, job.workload), ddp_fields(job.plan)
    fields: dict[str, Any] = {name: core.get(name, False) for name in BY_OVERLAP[:4]}
    if job.plan.pp == 1:
        fields["batch_p2p_comm"] = False
    fields |= {name: ddp[name] for name in ("overlap_grad_reduce", "overlap_param_gather")}
    if job.plan.defer_embedding_wgrad or job.plan.wgrad_deferral_limit:
        fields["wgrad_deferral_limit"] = job.plan.wgrad_deferral_limit
    if job.plan.bucket_size:
        fields["bucket_size"] = job.plan.bucket_size
    if row := pipelined(job.plan):
        fields[FIELD] = row
    return {f"{OVERLAP}.{name}": value for name, value in fields.items()}


def task_settings(job: Job) -> dict[str, Any]:
    """Adapters and packed sequences of fine-tuning."""
    workload = job.workload
    if workload.task == "pretrain":
        return {}
    settings: dict[str, Any] = {}
    if workload.packed:
        size = "data.packed_sequence_specs.packed_sequence_size"
        settings[size] = workload.seq_len
        settings |= packed_batch(job, (size, "data.seq_length", f"{CONFIG}.seq_length"), "data")
        if graphs_of_attention(job):
            settings["data.packed_sequence_specs.pad_cu_seqlens"] = True
    if workload.task == "lora":
        settings |= adapter_settings(workload, job.model)
    return settings


def other_settings(job: Job, names: Names) -> Iterator[tuple[str, str, Any]]:
    """Settings that the plan carries and that are no fields of Megatron-Core's classes: our name, theirs, value."""
    for name, value in job.plan.settings:
        record = SETTINGS[name]
        for dotted in (part.strip() for part in record.nemo.split(",")):
            if not record.mcore and "(" not in dotted and place_of(dotted, names):
                yield name, dotted, setting_value(name, value)
                break


def place_of(dotted: str, names: Names) -> str:
    """The recorded section that holds a dotted name, "" when the release has no such name."""
    for part, section in SECTIONS.items():
        if dotted.startswith(f"{part}."):
            field = dotted[len(part) + 1 :]
            held = names.has(section, field) or (section == "data" and names.has("mock", field))
            return section if held else ""
    return ""


def _refuse(wanted: Mapping[str, Any], job: Job, names: Names) -> None:
    """ValueError for a shape that the release cannot be told, and for graphs that its Megatron-Core refuses."""
    title = f"NeMo {names.release}"
    lost = {
        dotted: value
        for dotted, value in wanted.items()
        if dotted.startswith(f"{CONFIG}.") and value not in NOTHING and not place_of(dotted, names)
    }
    newer = next((each for each in releases("nemo") if _has_all(lost, each)), "")
    instead = f"--target-version {newer}" if newer else "--to megatron-bridge"
    refuse_other_shape(lost, job.model, title, instead)
    fields = {
        name.removeprefix(f"{CONFIG}."): value for name, value in wanted.items() if name.startswith(CONFIG)
    }
    refuse_recomputed_graphs(fields, names.core_numbers, title, "--to megatron-bridge")


def _has_all(lost: Mapping[str, Any], release: str) -> bool:
    names, _ = names_of("nemo", release)
    return all(place_of(dotted, names) for dotted in lost)


def _held(wanted: Mapping[str, Any], names: Names, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """The settings that the release has; a note for each of the others that would do something."""
    for dotted, value in wanted.items():
        if dotted == "trainer.plugins":
            if value and not names.has("precisions", value):
                notes.append(f"NeMo {names.release} has no precision plugin {value}: it trains in bf16")
                value = "bf16_mixed"
            yield dotted, value
        elif dotted in ("trainer.num_nodes", "trainer.devices", "trainer.max_steps") or place_of(
            dotted, names
        ):
            yield dotted, value
        elif value not in NOTHING:
            notes.append(f"{dotted}={value}: NeMo {names.release} has no such name, left out")
