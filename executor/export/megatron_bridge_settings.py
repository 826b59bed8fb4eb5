"""A job in the words of Megatron-Bridge's ConfigContainer: dotted name and plain value of every override.

Values are plain: types of torch, enumerations and functions are named ("bf16", "auto", "silu") and written as code by
`megatron_bridge_code`. Every knob is said, also those that are off: a recipe may have them on.
Sources: training/config.py, comm_overlap.py, mixed_precision.py of the releases in megatron_bridge_names.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.graph_parts import captured_parts
from costmodel.knobs import SETTINGS
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from executor.export.exported import Job
from executor.export.megatron_bridge_fsdp import fsdp_settings
from executor.export.megatron_bridge_remarks import remarks
from executor.export.megatron_bridge_task import benchmark_settings, task_settings
from executor.export.overlap_table import FIELD, pipelined
from executor.export.target_names import Names, names_of, recipe_names, releases
from executor.export.unsaid import (
    BENCHMARK_ONLY,
    graph_word,
    refuse_other_shape,
    refuse_recomputed_graphs,
    setting_notes,
    setting_value,
)
from executor.megatron_args import core_fields
from executor.megatron_model import model_arguments, model_fields, mtp_segments, yarn_arguments
from executor.megatron_training import checks_for_nan, ddp_fields, optimizer_fields

# Recipes of mixed precision that say what each precision of ours means; fp32 has none.
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp32": "",
    "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8-sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
# Fields that the recipe of mixed precision, or CommOverlapConfig, writes over those of the model.
BY_PRECISION = ("params_dtype", "pipeline_dtype", "bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe")
BY_PRECISION += ("fp8_param", "fp4_param", "fp8_dot_product_attention", "first_last_layers_bf16")
BY_PRECISION += ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
BY_OVERLAP = ("tp_comm_overlap", "overlap_p2p_comm", "batch_p2p_comm", "defer_embedding_wgrad_compute")
BY_OVERLAP += ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
# What recipes switch on and plans may not have.
OFF: dict[str, Any] = {
    "model.num_layers_in_first_pipeline_stage": None,
    "model.num_layers_in_last_pipeline_stage": None,
    "model.pipeline_model_parallel_layout": None,
    "model.microbatch_group_size_per_vp_stage": None,
    "model.hierarchical_context_parallel_sizes": None,
    "model.recompute_granularity": None,
    "model.recompute_method": None,
    "model.recompute_num_layers": None,
    "model.recompute_modules": None,
    "model.cpu_offloading": False,
    "model.cpu_offloading_num_layers": 0,
    "model.fine_grained_activation_offloading": False,
    "model.offload_modules": None,
    "model.cuda_graph_impl": "none",
    "ddp.use_megatron_fsdp": False,
    "ddp.data_parallel_sharding_strategy": "no_shard",
    "ddp.num_distributed_optimizer_instances": 1,
    "ddp.bucket_size": None,
    "ddp.nccl_ub": False,
    "optimizer.use_precision_aware_optimizer": False,
    "optimizer.main_params_dtype": "fp32",
    "optimizer.main_grads_dtype": "fp32",
    "optimizer.exp_avg_dtype": "fp32",
    "optimizer.exp_avg_sq_dtype": "fp32",
    "optimizer.optimizer_cpu_offload": False,
}
# Values that a release without the field has anyway.
NOTHING = (None, False, 0, "none", "no_shard", [], "")
TASK_WORDS = {"pretrain": ("pretrain",), "sft": ("sft", "finetune"), "lora": ("peft", "finetune")}


@dataclass(frozen=True)
class Overrides:
    """What goes into the file: the recipe ("" without one), the overrides, the notes."""

    recipe: str
    settings: dict[str, Any]
    notes: list[str]


def overrides(job: Job, names: Names) -> Overrides:
    """Recipe and overrides of a job."""
    recipe = recipe_of(job, names)
    wanted = dict(OFF)
    wanted |= model_settings(job, names, bool(recipe))
    wanted |= graph_settings(job, names)
    wanted |= training_settings(job, names)
    wanted |= precision_settings(job.plan)
    wanted |= overlap_settings(job.plan, job.model)
    wanted |= task_settings(job, names)
    others = list(other_settings(job, names))
    wanted |= {dotted: value for _, dotted, value in others}
    if job.benchmark:
        wanted |= benchmark_settings(job)
    _refuse(wanted, job, names)
    notes: list[str] = []
    settings = dict(_held(wanted, names, notes))
    said = {"manual_gc_interval", *(name for name, _, _ in others)}
    notes += setting_notes(job.plan, "megatron_bridge", f"Megatron-Bridge {names.release}", said)
    return Overrides(recipe, settings, notes + list(remarks(job, names, recipe)))


def recipe_of(job: Job, names: Names) -> str:
    """The recipe of this model and task as module:function, "" when the release has none."""
    stem = recipe_names("megatron_bridge", job.model.name).get("stem", "")
    if not stem:
        return ""
    module, _, name = stem.partition(":")
    tasks = [*TASK_WORDS[job.workload.task], "pretrain"]
    # The first releases named the module for the model, and its function for the task.
    ways = [
        way
        for task in tasks
        for way in (f"{stem}_{task}_config", f"{module.split('.')[0]}.{name}:{task}_config")
    ]
    return next((way for way in ways if names.has("recipes", way)), "")


def model_settings(job: Job, names: Names, recipe: bool) -> dict[str, Any]:
    """The model's fields: those of the plan, and the shape where no recipe gives it or another is wanted."""
    core = core_fields(job.plan, job.model, job.workload)
    shape = model_fields(job.model)
    core |= recompute_names(core, job.model) | loss_names(core, job)
    kept = {name: value for name, value in core.items() if name not in BY_PRECISION + BY_OVERLAP}
    if recipe:
        usual = model_fields(load_model(job.model.name))
        same = {name for name in shape if name in usual and shape[name] == usual[name]}
        # A recipe may count its heads of multi-token prediction otherwise.
        kept = {name: value for name, value in kept.items() if name not in same}
        if job.model.mtp_layers or load_model(job.model.name).mtp_layers:
            kept["mtp_num_layers"] = job.model.mtp_layers or None
    else:
        kept |= _shape_arguments(job, names)
    if job.plan.pp == 1:
        # Megatron-Core counts stages between the ends, and one stage has no ends.
        kept |= {"num_layers_in_first_pipeline_stage": None, "num_layers_in_last_pipeline_stage": None}
    kept["seq_length"] = job.workload.seq_len
    if job.model.gated_delta is not None and kept.get("cp_comm_type") == "p2p":
        # Transformer Engine's own choice, which gated delta nets of Megatron-Core 0.18 are not to be told.
        del kept["cp_comm_type"]
    if kept.get("moe_flex_dispatcher_backend") and not names.has("model", "moe_flex_dispatcher_backend"):
        kept["moe_enable_deepep"] = kept.pop("moe_flex_dispatcher_backend") == "deepep"
    return {f"model.{name}": value for name, value in kept.items()}


def recompute_names(core: Mapping[str, Any], model: ModelSpec) -> dict[str, Any]:
    """Recompute in Megatron-Core's words: its module of activation functions is moe_act, and of experts only."""
    if core.get("recompute_granularity") != "selective":
        return {}
    modules = ["moe_act" if module == "activation" else module for module in core["recompute_modules"]]
    kept = [
        module for module in dict.fromkeys(modules) if module != "ops" and (module != "moe_act" or model.moe)
    ]
    # Without modules Megatron-Core takes its own choice, core_attn; without any left there is nothing to do.
    selective = bool(kept) or not modules
    return {"recompute_granularity": "selective" if selective else None, "recompute_modules": kept or None}


def loss_names(core: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """The fused loss that was priced, where it is Megatron-Core's own rather than Transformer Engine's."""
    own = job.native_loss and "cross_entropy_fusion_impl" in core
    return {"cross_entropy_fusion_impl": "native"} if own else {}


def _shape_arguments(job: Job, names: Names) -> dict[str, Any]:
    """What the model's provider takes beside the fields of the configuration."""
    model = job.model
    arguments = model_arguments(model, job.plan.tp, job.workload.seq_len)
    arguments.pop("max_sequence_length")
    pattern = arguments.pop("hybrid_override_pattern", None)
    if pattern:
        newer = names.has("model", "hybrid_layer_pattern")
        staged = {
            "hybrid_layer_pattern": pattern + mtp_segments(model),
            "mtp_num_layers": model.mtp_layers or None,
        }
        arguments |= staged if newer else {"hybrid_override_pattern": pattern}
    if names.has("model", "yarn_rotary_scaling_factor"):
        arguments |= yarn_arguments(model)
    arguments["vocab_size"] = model.vocab_padded or model.vocab
    arguments["should_pad_vocab"] = True
    if model.vocab_divisible_by:
        arguments["make_vocab_size_divisible_by"] = model.vocab_divisible_by
    return arguments


def graph_settings(job: Job, names: Names) -> dict[str, Any]:
    """CUDA graphs, by three generations of names.

    Before Megatron-Core 0.16 the scope is one word; up to 0.17 a graph of the whole step is a scope of "local";
    later it is an implementation, and the parts of a layer are called modules.
    """
    newer = names.has("model", "cuda_graph_modules")
    fields: dict[str, Any] = {"cuda_graph_scope": None} if newer else {}
    parts = list(captured_parts(job.plan, job.model))
    whole = "full_iteration" in parts
    if not job.plan.cuda_graph:
        return {f"model.{name}": value for name, value in fields.items()}
    if newer:
        fields["cuda_graph_impl"] = "full_iteration" if whole else "transformer_engine"
        fields["cuda_graph_modules"] = [] if whole else parts
        if whole and job.plan.offload_modules:
            fields["fine_grained_offloading_max_inflight_offloads"] = 1  # Megatron-Core 0.18 asks for a bound
    else:
        fields["cuda_graph_impl"] = "local" if whole else "transformer_engine"
        one_word = names.core_numbers < (0, 16)
        fields["cuda_graph_scope"] = graph_word(job.plan, job.model) if one_word else parts
    settings = {f"model.{name}": value for name, value in fields.items()}
    settings |= {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True}
    return settings


def training_settings(job: Job, names: Names) -> dict[str, Any]:
    """Batch, data parallelism, optimizer."""
    plan = job.plan
    length = "seq_length" if names.has("dataset", "seq_length") else "sequence_length"
    settings: dict[str, Any] = {
        "train.global_batch_size": job.workload.global_batch,
        "train.micro_batch_size": plan.micro_batch,
        "train.manual_gc": plan.manual_gc,
        "rerun_state_machine.check_for_nan_in_loss": checks_for_nan(plan),
        f"dataset.{length}": job.workload.seq_len,
    }
    ddp = {name: value for name, value in ddp_fields(plan).items() if name != "fp8_param_gather"}
    settings |= {f"ddp.{name}": value for name, value in ddp.items()}
    left_out = ("params_dtype", "bf16", "fp16", "clip_grad")
    optimizer = {name: value for name, value in optimizer_fields(plan).items() if name not in left_out}
    settings |= {f"optimizer.{name}": value for name, value in optimizer.items()}
    if gathers_after_muon(plan):
        settings |= {"ddp.overlap_param_gather": False, "optimizer.overlap_param_gather": False}
    if plan.fsdp:
        settings |= fsdp_settings(plan, names, job.workload.task)
    if plan.calculate_per_token_loss:
        settings["ddp.average_in_collective"] = False  # Megatron-Core refuses both
    if plan.sharp:
        settings["dist.use_sharp"] = True
    return settings


def gathers_after_muon(plan: Plan) -> bool:
    """Whether Muon's parameters must be gathered after its step, although the plan overlaps it.

    Overlapped, Bridge would save checkpoints before the gather. Source: Megatron-Bridge 0.6.2, train.py,
    should_disable_forward_pre_hook; its recipes of Muon.
    """
    return plan.optimizer == "muon" and plan.overlap_param_gather


def precision_settings(plan: Plan) -> dict[str, Any]:
    """The recipe of mixed precision and what the plan has otherwise."""
    settings: dict[str, Any] = {
        "mixed_precision": PRECISIONS[plan.precision],
        "mixed_precision.grad_reduce_in_fp32": plan.grad_reduce_in_fp32,
    }
    if plan.precision == "fp32":
        settings |= {"mixed_precision.fp32": True, "mixed_precision.params_dtype": "fp32"}
        return settings | {"mixed_precision.pipeline_dtype": "fp32"}
    if plan.precision in ("bf16", "fp16"):
        return settings
    fp4 = plan.precision == "nvfp4"
    settings["mixed_precision.fp4_param_gather" if fp4 else "mixed_precision.fp8_param_gather"] = (
        plan.fp8_param_gather
    )
    if plan.precision == "mxfp8":
        # ConfigContainer.validate refuses gathered MXFP8 parameters without the shared buffer, but for FSDP.
        reuse = plan.reuse_grad_buf or (plan.fp8_param_gather and not plan.fsdp)
        settings["mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"] = reuse
    settings |= {
        "mixed_precision.fp8_dot_product_attention": plan.fp8_attention,
        "mixed_precision.first_last_layers_bf16": plan.bf16_end_layers > 0,
        "mixed_precision.num_layers_at_start_in_bf16": plan.bf16_end_layers,
        "mixed_precision.num_layers_at_end_in_bf16": plan.bf16_end_layers,
    }
    return settings


def overlap_settings(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    """CommOverlapConfig: what is left unsaid there it decides itself, so everything is said."""
    core = core_fields(plan, model)
    ddp = ddp_fields(plan)
    fields: dict[str, Any] = {name: core.get(name, False) for name in BY_OVERLAP}
    # One stage sends nothing; Bridge sets both to false then.
    if plan.pp == 1:
        fields["batch_p2p_comm"] = False
    fields |= {name: ddp[name] for name in ("overlap_grad_reduce", "overlap_param_gather")}
    fields["bucket_size"] = plan.bucket_size or None
    if plan.defer_embedding_wgrad or plan.wgrad_deferral_limit:
        fields["wgrad_deferral_limit"] = plan.wgrad_deferral_limit
    if row := pipelined(plan):
        fields[FIELD] = row
    if not ddp["use_distributed_optimizer"]:
        # Without the distributed optimizer Bridge reads these from ddp only.
        fields = {
            name: value
            for name, value in fields.items()
            if name not in ("bucket_size", "overlap_param_gather")
        }
    return {f"comm_overlap.{name}": value for name, value in fields.items()}


def other_settings(job: Job, names: Names) -> Iterator[tuple[str, str, Any]]:
    """Settings that the plan carries and that are no fields of Megatron-Core's classes: our name, theirs, value."""
    for name, value in job.plan.settings:
        record = SETTINGS[name]
        if record.mcore or name in BENCHMARK_ONLY:
            continue
        for dotted in (part.strip() for part in record.megatron_bridge.split(",")):
            section, _, field = dotted.partition(".")
            if field and "(" not in dotted and names.has(section, field.split(".")[0]):
                yield name, dotted, setting_value(name, value)
                break


def _refuse(wanted: Mapping[str, Any], job: Job, names: Names) -> None:
    """ValueError for a shape that the release cannot be told, and for graphs that its Megatron-Core refuses."""
    title = f"Megatron-Bridge {names.release}"
    model = {
        name.removeprefix("model."): value for name, value in wanted.items() if name.startswith("model.")
    }
    lost = {
        name: value
        for name, value in model.items()
        if value not in NOTHING and not names.has("model", name) and name not in BENCHMARK_ONLY
    }
    newer = next((each for each in releases("megatron_bridge") if _has_all(lost, each)), "")
    instead = f"--target-version {newer}" if newer else "--to megatron-lm"
    refuse_other_shape({f"model.{name}": value for name, value in lost.items()}, job.model, title, instead)
    refuse_recomputed_graphs(model, names.core_numbers, title, "--target-version 0.3.1 or later")


def _has_all(lost: Mapping[str, Any], release: str) -> bool:
    names, _ = names_of("megatron_bridge", release)
    return all(names.has("model", name) for name in lost)


def _held(wanted: Mapping[str, Any], names: Names, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """The overrides that the release has; a note for each of the others that would do something."""
    for dotted, value in wanted.items():
        section, _, field = dotted.partition(".")
        if section == "model" and field in BENCHMARK_ONLY and not _asked(wanted):
            continue
        if not field:
            if value and not names.has("precisions", value):
                notes.append(
                    f"Megatron-Bridge {names.release} has no precision recipe {value}: it trains in bf16"
                )
                value = "bf16_mixed"
            yield dotted, value
        elif _known(section, field, names):
            yield dotted, value
        elif value not in NOTHING:
            notes.append(f"{dotted}={value}: Megatron-Bridge {names.release} has no such field, left out")


def _asked(wanted: Mapping[str, Any]) -> bool:
    return "train.train_iters" in wanted


def _known(section: str, field: str, names: Names) -> bool:
    first, _, inner = field.partition(".")
    if section == "dataset" and not names.has("dataset", first):
        return names.has("finetuning", first) and (not inner or names.has("packing", inner))
    return names.has(section, first)
