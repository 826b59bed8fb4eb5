"""Recipes of NeMo 2 read back: dumped as YAML by NeMo-Run, or a Python file of ours."""

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
    said_fields,
)
from executor.export.exchange_read import mixed_exchange
from executor.export.exported import Reading
from executor.export.launch_read import unseen, with_environment
from executor.export.left_open import MEANT, split_open, unsaid
from executor.export.megatron_bridge_read import PRECISION_RECIPES, workload_of
from executor.export.model_read import of_model
from executor.export.nemo_settings import CONFIG, GARBAGE, OVERLAP, PRECISIONS, STRATEGY
from executor.export.overlap_table import PIPELINED, row_in, with_overlap
from executor.export.python_environment import environment_said, variables_of
from executor.export.target_names import names_of, releases, table

# Parts of a recipe whose fields are those of Megatron-Core's classes, the later winning over the earlier.
CORE_PARTS = ("optim.config", CONFIG, STRATEGY, f"{STRATEGY}.ddp", "trainer.plugins", OVERLAP)
HEADS = f"{CONFIG}.mtp_num_layers"
# What a recipe's function takes, and where it puts that.
RECIPE_TAKES = {"num_nodes": "trainer.num_nodes", "num_gpus_per_node": "trainer.devices", "use_mtp": HEADS}
KINDS = {"bf16-mixed": "bf16", "bf16": "bf16", "16-mixed": "fp16", "fp16-mixed": "fp16", "32": "fp32"}
USER = ("log.", "resume.", "data.", "peft.", "optim.lr_scheduler", "trainer.", "env_vars.")


def reading(text: str) -> Reading:
    """The recipe as knobs of ours. ValueError in one line when the text is none."""
    said, module, dump = flat(text, _flat_python)
    missing = () if dump else tuple(unsaid(said))
    said, left = split_open(said, MEANT | said_fields() | set(direct_fields()))
    fields = core_values(said)
    nodes, devices = said.get("trainer.num_nodes") or 0, said.get("trainer.devices") or 0
    world = nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else 0
    knobs = knobs_of(fields, world)
    if said.get("data.micro_batch_size"):
        knobs["micro_batch"] = said["data.micro_batch_size"]
    # Lightning collects on its own unless the callback is there.
    knobs["manual_gc"] = any(dotted.startswith(GARBAGE) for dotted in said)
    knobs = with_overlap(knobs, said, OVERLAP)
    if fields.get("use_sharp"):
        knobs["sharp"] = True
    model = model_of_module(module, said) or model_of(fields)
    if variables := variables_of(said):
        knobs = with_environment(knobs, variables)
    if model:
        knobs = of_model(knobs, load_model(model))
    name, steps = "data.rampup_batch_size", said.get("trainer.max_steps")
    ramp = ramp_of(said.get(name), said.get("data.global_batch_size"), name)
    told = [ramp_line(ramp, None, steps if isinstance(steps, int) and steps > 0 else None)] if ramp else []
    return Reading(
        knobs=knobs,
        model=model,
        architecture={} if model else said_architecture(fields),
        workload=_workload(said),
        gpus=world,
        mtp_heads=said_heads(fields, dump),
        left_open=left,
        unsaid=missing,
        unread=() if dump else tuple(_unread(said)),
        otherwise=(*mixed_exchange(fields), *told),
        batches=ramp.smaller if ramp else (),
        unseen=unseen(variables),
    )


def _flat_python(tree: ast.Module) -> tuple[dict[str, Any], str]:
    """What a file of ours, or one written like it, assigns to the recipe; and the recipe's module."""
    said: dict[str, Any] = {}
    module = ""
    names = {"recipe": ""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted_name(node.func).endswith(".model"):
            module = dotted_name(node.func).split(".")[-2]
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = dotted_name(node.targets[0])
        if isinstance(node.value, ast.Call):
            called = dotted_name(node.value.func)
            if called.endswith(("pretrain_recipe", "finetune_recipe")):
                module = called.split(".")[-2] if "." in called else ""
                said |= _keywords(node.value, RECIPE_TAKES)
                if called.endswith("finetune_recipe"):
                    said["dataset._target_"] = "squad"
                continue
            said |= _called(node.value, target, names)
        else:
            root, _, path = target.partition(".")
            if root in names and path:
                said[f"{names[root]}.{path}".lstrip(".")] = value_of(node.value)
    said |= {f"env_vars.{name}": value for name, value in environment_said(tree).items()}
    return said, module


def _called(call: ast.Call, target: str, names: dict[str, str]) -> dict[str, Any]:
    """A call that is assigned: run.Config of a callback or a part, or a precision recipe."""
    called = dotted_name(call.func)
    if row := row_in(call):
        root, _, path = target.partition(".")
        return {f"{names.get(root, root)}.{path}.{PIPELINED[0]}.{key}": value for key, value in row.items()}
    inner = dotted_name(call.args[0]) if call.args else ""
    root, _, path = target.partition(".")
    if called.endswith("_mixed") and path == "trainer.plugins":
        return {path: called.rpartition(".")[2]}
    if not called.endswith("Config") or not inner:
        return {}
    place = f"callbacks.{inner}" if inner.endswith("Callback") else path
    if not path:
        names[root] = place
    if not place:
        return {}
    keywords = {f"{place}.{each.arg}": value_of(each.value) for each in call.keywords if each.arg}
    return {f"{place}._target_": inner} | keywords


def _keywords(call: ast.Call, places: Mapping[str, str]) -> dict[str, Any]:
    found = {places[each.arg]: value_of(each.value) for each in call.keywords if each.arg in places}
    if isinstance(found.get(HEADS), bool):
        found[HEADS] = int(found[HEADS])
    return found


def core_values(said: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Megatron-Core's classes by bare name, as the run would have them."""
    fields: dict[str, Any] = {}
    for part in CORE_PARTS:
        if part == "trainer.plugins":
            fields |= _plugin(said)
        values = {name: value for dotted, value in said.items() for name in [_inside(dotted, part)] if name}
        if part in ("trainer.plugins", OVERLAP):
            values = {name: value for name, value in values.items() if value is not None}
        fields |= values
    if fields.pop("fsdp", None):
        fields["use_megatron_fsdp"] = True
    return fields


def _plugin(said: Mapping[str, Any]) -> dict[str, Any]:
    """What the precision recipe, or the plugin's own arguments, say."""
    name = said.get("trainer.plugins")
    if isinstance(name, str) and name:
        ours = next((precision for precision, recipe in PRECISIONS.items() if recipe == name), "")
        known = "bf16_with_fp8_delayed_scaling_mixed" if ours == "fp8-delayed" else name
        if known not in PRECISION_RECIPES:
            raise ValueError(
                f"precision plugin {name!r} is not known. Known: {', '.join(filter(None, PRECISIONS.values()))}."
            )
        return PRECISION_RECIPES[known]
    kind = KINDS.get(str(said.get("trainer.plugins.precision", "")), "")
    return {"bf16": kind == "bf16", "fp16": kind == "fp16", "params_dtype": kind} if kind else {}


def _inside(dotted: str, part: str) -> str:
    rest = dotted.removeprefix(f"{part}.")
    return rest if rest != dotted and "." not in rest and not rest.startswith("_") else ""


def _workload(said: Mapping[str, Any]) -> dict[str, Any]:
    """Batch, sequence and task, in the words that `workload_of` reads."""
    words = {
        "dataset.seq_length": said.get("data.seq_length") or said.get(f"{CONFIG}.seq_length"),
        "train.global_batch_size": said.get("data.global_batch_size"),
        "dataset.packed_sequence_specs.packed_sequence_size": said.get(
            "data.packed_sequence_specs.packed_sequence_size"
        ),
        "dataset._target_": said.get("dataset._target_")
        or ("squad" if "Squad" in str(said.get("data._target_")) else ""),
    }
    if str(said.get("_target_", "")).endswith(".finetune"):
        words["dataset._target_"] = "squad"
    peft = {dotted: value for dotted, value in said.items() if dotted.startswith("peft.")}
    return workload_of(words | peft)


def model_of_module(module: str, said: Mapping[str, Any]) -> str:
    """Our model that a recipe's module, or the configuration class of its model, stands for."""
    known = {str(record["module"]): str(name) for name, record in table("nemo_recipes")["recipes"].items()}
    if module:
        return known.get(module, "")
    config = str(said.get(f"{CONFIG}._target_", "")).rpartition(".")[2]
    for release in reversed(releases("nemo")) if config else ():
        for entry in names_of("nemo", release)[0].sections["configs"]:
            place, _, name = entry.partition(":")
            if name == config and place in known:
                return known[place]
    return ""


def _unread(said: Mapping[str, Any]) -> Iterator[str]:
    """What was said and has no counterpart in a plan; what is off or the user's own is no loss."""
    fields = said_fields() | set(direct_fields())
    for dotted, value in said.items():
        field = dotted.rpartition(".")[2]
        own = dotted.startswith((*USER, "callbacks.", "dataset.")) and not dotted.startswith(f"{STRATEGY}.")
        known = field in fields or field in ("use_sharp", "fsdp") or field.startswith("_")
        if not own and not known and value not in (None, False):
            yield f"{dotted}={value}: no knob of ours"
