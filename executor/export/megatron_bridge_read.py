"""Configurations of Megatron-Bridge read back: a ConfigContainer as YAML, override lines, or a Python file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from costmodel.model_registry import load_model
from executor.export.batch_ramp import ramp_line, ramp_of
from executor.export.configuration_text import dotted_name, flat, value_of
from executor.export.core_model import said_architecture, said_heads
from executor.export.core_read import (
    direct_fields,
    knobs_of,
    model_of,
    other_optimizer,
    said_fields,
)
from executor.export.exchange_read import mixed_exchange
from executor.export.exported import Reading
from executor.export.launch_read import unseen, with_environment
from executor.export.left_open import MEANT, split_open, unsaid
from executor.export.megatron_bridge_task import DEFAULT_TARGETS, reach_of
from executor.export.model_read import of_model
from executor.export.overlap_table import PIPELINED, row_in, with_overlap
from executor.export.python_environment import environment_said, variables_of
from executor.export.target_names import table

FULL = {"bf16": True}
# Recipe of mixed precision -> its fields. Source: mixed_precision.py of Megatron-Bridge 0.6.2.
PRECISION_RECIPES: dict[str, dict[str, Any]] = {
    "bf16_mixed": FULL,
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_delayed_scaling_mixed": FULL
    | {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "bf16_with_fp8_current_scaling_mixed": FULL
    | {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True, "first_last_layers_bf16": True},
    "bf16_with_fp8_subchannel_scaling_mixed": FULL | {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": FULL
    | {
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
    "bf16_with_nvfp4_mixed": FULL | {"fp4": "e2m1", "fp4_param_gather": True},
}
NEMOTRON = FULL | {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True}
NEMOTRON |= {"first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 2}
PRECISION_RECIPES["nemotron_h_bf16_with_fp8_current_scaling_mixed"] = NEMOTRON
# Parts of the container whose fields are those of Megatron-Core's classes, the later winning over the earlier.
CORE_PARTS = ("optimizer", "model", "ddp", "mixed_precision", "comm_overlap")
USER = (
    "tokenizer",
    "checkpoint",
    "logger",
    "scheduler",
    "validation",
    "profiling",
    "rng",
    "rerun_state_machine",
)
USER += ("env_vars", "straggler", "ft", "inprocess_restart", "nvrx_straggler", "tensor_inspect")
SAID = (
    "train.micro_batch_size",
    "train.global_batch_size",
    "train.manual_gc",
    "train.train_iters",
    "train.train_samples",
    "train.rampup_batch_size",
    "train.decrease_batch_size_if_needed",
    "WORLD_SIZE",
)


def reading(text: str) -> Reading:
    """The configuration as knobs of ours. ValueError in one line when the text is none."""
    said, recipe, dump = flat(text, _flat_python)
    missing = () if dump else tuple(unsaid(said))
    said, left = split_open(said, MEANT | said_fields() | set(direct_fields()))
    fields = core_values(said)
    knobs = knobs_of(fields, gpus := _world(said))
    for dotted, name in (("train.micro_batch_size", "micro_batch"), ("train.manual_gc", "manual_gc")):
        if said.get(dotted) is not None:
            knobs[name] = said[dotted]
    knobs = with_overlap(knobs, said, "comm_overlap")
    if said.get("dist.use_sharp"):
        knobs["sharp"] = True
    model = model_of_recipe(recipe) or model_of(fields)
    workload = workload_of(said)
    if variables := variables_of(said):
        knobs = with_environment(knobs, variables)
    if model:
        knobs = of_model(knobs, load_model(model))
    name = "train.rampup_batch_size"
    ramp = ramp_of(said.get(name), workload.get("global_batch"), name)
    return Reading(
        knobs=knobs,
        model=model,
        architecture={} if model else said_architecture(fields),
        workload=workload,
        gpus=gpus,
        mtp_heads=said_heads(fields, dump),
        left_open=left,
        unsaid=missing,
        unread=() if dump else tuple(unread(said, recipe)),
        otherwise=(
            *mixed_exchange(fields),
            *other_optimizer(said.get("optimizer.optimizer")),
            *(
                [ramp_line(ramp, said.get("train.train_samples"), said.get("train.train_iters"))]
                if ramp
                else []
            ),
        ),
        batches=ramp.smaller if ramp and not said.get("train.decrease_batch_size_if_needed") else (),
        unseen=unseen(variables),
    )


def _flat_python(tree: ast.Module) -> tuple[dict[str, Any], str]:
    """What a file of ours, or one written like it, assigns to the container; and the recipe it imports."""
    said: dict[str, Any] = {}
    recipe = ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron.bridge.recipes."):
            found = [
                alias.name
                for alias in node.names
                if alias.name.endswith("_config") and "squad" not in alias.name
            ]
            recipe = (
                f"{str(node.module).removeprefix('megatron.bridge.recipes.')}:{found[0]}" if found else recipe
            )
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                _assign(said, dotted_name(target), node.value)
    said |= {f"env_vars.{name}": value for name, value in environment_said(tree).items()}
    return said, recipe


def _assign(said: dict[str, Any], dotted: str, value: ast.expr) -> None:
    root, _, path = dotted.partition(".")
    if root == "WORLD_SIZE" and isinstance(value, ast.Constant):
        said["WORLD_SIZE"] = value.value
    elif path and isinstance(value, ast.Call):
        name = dotted_name(value.func).rpartition(".")[2]
        if path == "mixed_precision":
            args = [arg.value for arg in value.args if isinstance(arg, ast.Constant)]
            said[path] = str(args[0]) if args else name if name in PRECISION_RECIPES else ""
        elif name in ("CommOverlapConfig", "LoRA"):
            said[f"{path}._target_"] = name
            said.update({f"{path}.{each.arg}": value_of(each.value) for each in value.keywords})
        elif row := row_in(value):
            said.update({f"{path}.{PIPELINED[0]}.{key}": each for key, each in row.items()})
        elif name == "default_squad_config":
            said["dataset._target_"] = name
    elif path:
        said[path] = value_of(value)


def _world(said: Mapping[str, Any]) -> int:
    """Ranks that the text is written for, 0 where it says no number."""
    world = said.get("WORLD_SIZE", 0)
    return world if isinstance(world, int) and world > 0 else 0


def core_values(said: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Megatron-Core's classes by bare name, as the run would have them."""
    fields: dict[str, Any] = {}
    for part in CORE_PARTS:
        if part == "mixed_precision":
            recipe = said.get(part)
            if isinstance(recipe, str) and recipe.replace("-", "_") in PRECISION_RECIPES:
                fields |= PRECISION_RECIPES[recipe.replace("-", "_")]
            elif recipe:
                raise ValueError(
                    f"mixed_precision {recipe!r} is no recipe we know. Known: {', '.join(PRECISION_RECIPES)}."
                )
        values = {name: value for dotted, value in said.items() for name in [_inside(dotted, part)] if name}
        if part in ("comm_overlap", "mixed_precision"):
            values = {name: value for name, value in values.items() if value is not None}
        fields |= values
    for dotted in ("dist.use_torch_fsdp2", "dist.use_megatron_fsdp"):
        if said.get(dotted):
            fields[dotted.partition(".")[2]] = True
    return fields


def _inside(dotted: str, part: str) -> str:
    first, _, rest = dotted.partition(".")
    return rest if first == part and rest and not rest.startswith("_") and "." not in rest else ""


def workload_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Batch, sequence and task."""
    found: dict[str, Any] = {}
    for dotted in ("model.seq_length", "dataset.sequence_length", "dataset.seq_length"):
        if said.get(dotted):
            found["seq_len"] = said[dotted]
    if said.get("train.global_batch_size"):
        found["global_batch"] = said["train.global_batch_size"]
    dataset = str(said.get("dataset._target_", ""))
    tuned = any(word in dataset for word in ("Finetuning", "SFT", "HFDataset", "squad"))
    if said.get("peft._target_") or said.get("peft.dim"):
        reach = reach_of(said.get("peft.target_modules") or DEFAULT_TARGETS)
        found |= {"task": "lora", "lora_rank": said.get("peft.dim", 32), "lora_targets": reach}
    elif tuned:
        found["task"] = "sft"
    if tuned or found.get("task") == "lora":
        packing = [
            said.get(f"dataset.{name}.packed_sequence_size")
            for name in ("packed_sequence_specs", "offline_packing_specs")
        ]
        found["packed"] = any(size and size > 0 for size in packing)
    return found


def model_of_recipe(recipe: str) -> str:
    """Our model that a recipe of Bridge trains, "" when it is none of ours."""
    module, _, function = recipe.rpartition(":")
    stems = {
        str(name): record["stem"].partition(":")[2]
        for name, record in table("megatron_bridge_recipes")["recipes"].items()
    }
    tasks = ("pretrain", "sft", "peft", "finetune")
    # Some modules have recipes of several models: the function tells first.
    ours = [
        name for name, stem in stems.items() if function.startswith(tuple(f"{stem}_{task}" for task in tasks))
    ]
    ours += [name for name, stem in stems.items() if module.rpartition(".")[2] == stem]
    return ours[0] if ours else ""


def unread(said: Mapping[str, Any], recipe: str) -> Iterator[str]:
    """What was said and has no counterpart in a plan; what is off or the user's own is no loss."""
    if recipe and not model_of_recipe(recipe):
        yield f"recipe {recipe}: no model of ours"
    for dotted, value in said.items():
        section, _, field = dotted.partition(".")
        known = field in said_fields() or field in direct_fields()
        if dotted in SAID or section in USER or known or not field or value in (None, False):
            continue
        if section in ("dataset", "peft", "dist", "mixed_precision", "comm_overlap") or field.startswith("_"):
            continue
        yield f"{dotted}={value}: no knob of ours"
