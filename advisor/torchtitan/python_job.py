"""A configuration of torchtitan 0.3.0 as a job: what its function makes, under the names of job files."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.torchtitan.flavors import flavor_of
from advisor.torchtitan.job import Job, check, check_known, is_of, tables
from advisor.torchtitan.python_form import (
    ARGS,
    CALLED,
    REGISTRY,
    SHOWN,
    UNKNOWN,
    Made,
    Maker,
    Source,
    read_source,
)

RELEASE = "0.3.0"
# Parts of a configuration whose fields are keys, with their classes; others change no step, or are told.
PARTS = {
    "training": "TrainingConfig",
    "parallelism": "ParallelismConfig",
    "compile": "CompileConfig",
    "debug": "DebugConfig",
}
# A field that job files have under another name.
RENAMED = {"compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel"}
# What recomputes, by its class.
MODES = {"None": "none", "SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
NVFP4 = "nvfp4"
# Converters by class, as job files name them.
CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "NVFP4LinearConverter": NVFP4,
    "Float8GroupedExpertsConverter": "quantize.grouped_mm.float8",
    "MXFP8GroupedExpertsConverter": "quantize.grouped_mm.mx",
}
HEAD, OUTPUT = "lm_head", "output"  # the output layer in filters, here and in job files


def python_job(text: str, config: str = "") -> Job:
    """The job of a file's configuration of that name, or of its only one. ValueError in one line where it has none."""
    source = read_source(text)
    found = source.configurations
    if not found:
        raise ValueError(
            "this file makes no Trainer.Config. Give one that does, or name torchtitan's own by "
            "'--module llama3 --config llama3_8b'."
        )
    if (config and config not in found) or (not config and len(found) > 1):
        near = difflib.get_close_matches(config, found, n=1)
        way = f"Did you mean {near[0]}?" if near else f"Name one by '--module FILE.py --config {found[0]}'."
        which = f"not {config}" if config else f"{len(found)} in all"
        raise ValueError(f"this file makes the configurations {', '.join(found[:8])}, {which}. {way}")
    maker = Maker(source, _recorded)
    return _job(maker.make(config or found[0]), maker.notes)


def named_job(module: str, config: str) -> Job:
    """The job of a configuration that torchtitan 0.3.0 ships. ValueError in one line where it has none such."""
    known = tables("registry")["configurations"]
    family = module.removeprefix(REGISTRY).removesuffix(".config_registry")
    if family not in known or config not in known[family]:
        names = (
            [each for found in known.values() for each in found]
            if family not in known
            else list(known[family])
        )
        near = difflib.get_close_matches(config, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names[:8])}."
        raise ValueError(
            f"--module {module} --config {config} is no configuration of torchtitan {RELEASE}. {hint}"
        )
    return _job(known[family][config], [])


def _recorded(place: str) -> Made | None:
    """A configuration that torchtitan ships, by where it is imported from."""
    module, _, name = place.removeprefix(REGISTRY).partition(".config_registry.")
    return (
        tables("registry")["configurations"].get(module, {}).get(name) if place.startswith(REGISTRY) else None
    )


def recorded(source: Source) -> dict[str, Made]:
    """Every configuration of a module of torchtitan, without what is not read of it: what registry.toml holds."""
    maker = Maker(source, lambda _: None)
    return {name: _plain(maker.make(name)) for name in source.configurations}


def _plain(made: Made) -> Made:
    kept = ("model_spec", "activation_checkpoint", "loss", "optimizer", CALLED, *PARTS)
    found = {name: _told(value) for name, value in made.items() if name in kept and value is not UNKNOWN}
    return found | (
        {"activation_checkpoint": {CALLED: "None"}} if found.get("activation_checkpoint", "") is None else {}
    )


def _told(value: Any) -> Any:
    """Without what is unknown or none, which a TOML file cannot hold."""
    if isinstance(value, dict):
        return {
            name: _told(each)
            for name, each in value.items()
            if each is not UNKNOWN and each not in (None, [])
        }
    if isinstance(value, list):
        return [_told(each) for each in value if each is not UNKNOWN and each is not None]
    return value


def _job(made: Mapping[str, Any], unfollowed: list[str]) -> Job:
    """Its fields under the names of job files; what syntax does not tell is told, and stands at its default."""
    notes: list[str] = [*unfollowed]
    said: dict[str, Any] = {}
    for key, value in _fields(made, notes):
        if value is UNKNOWN or isinstance(value, dict):
            notes.append(f"Not read, as its code makes it: {key}. It counts as torchtitan's default.")
            continue
        if value is None:
            continue
        check_known([key], RELEASE)
        check(key, value)
        said[RENAMED.get(key, key)] = value
    said |= _model(made.get("model_spec"), notes)
    said |= _recompute(made.get("activation_checkpoint", {CALLED: "SelectiveAC.Config"}))
    optimizer = made.get("optimizer")
    if isinstance(optimizer, dict):
        if optimizer.get(CALLED) not in ("default_adamw", "OptimizersContainer.Config"):
            said["optimizer.name"] = str(optimizer.get(CALLED))
    elif optimizer is not None:
        notes.append(_unread("optimizer", "AdamW"))
    loss = made.get("loss")
    if loss is not None and not isinstance(loss, dict):
        notes.append(_unread("loss", "that of whole sequences"))
    elif loss and str(loss.get(CALLED, "")).startswith("ChunkedLoss"):
        notes.append(
            "The loss of a sequence in chunks counts as a fused one: neither has all logits at once."
        )
        said["loss.chunked"] = True
    return Job(said, RELEASE, tuple(dict.fromkeys(notes)))


def _unread(what: str, default: str) -> str:
    return f"Not read, as its code makes it: {what}. It counts as {default}."


def _fields(made: Mapping[str, Any], notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Keys of the parts. notes: takes the parts that are not read, and arguments of theirs without a name."""
    for part, kind in PARTS.items():
        fields = made.get(part, {})
        if fields is None:
            continue
        if not isinstance(fields, dict) or str(fields.get(CALLED, kind)).rpartition(".")[2] != kind:
            notes.append(_unread(f"{part}, as a whole", "torchtitan's default"))
            continue
        if fields.get(ARGS):
            notes.append(_unread(f"what {kind} is given without names", "torchtitan's default"))
        for name, value in fields.items():
            if name not in (CALLED, ARGS):
                yield f"{part}.{name}", value


def _typed(made: Mapping[str, Any], name: str, kind: str, default: Any, notes: list[str]) -> Any:
    """A value of what a call makes where it is of a type of keys, as list[str]; else its default, and a note."""
    value = made.get(name)
    if value is None:
        return default
    if is_of(kind, value):
        return value
    notes.append(_unread(f"{name} of {made.get(CALLED)}", str(default or "not said")))
    return default


def _model(spec: Any, notes: list[str]) -> dict[str, Any]:
    """The flavour of a model_registry, its converters and what it is built with."""
    if not isinstance(spec, dict) or spec.get(CALLED) != "model_registry":
        raise ValueError(
            "model_spec is no model_registry(...) that is followed. Write it so, with a flavour in quotes."
        )
    flavor = next(iter(spec.get(ARGS, [])), spec.get("flavor"))
    family = str(spec.get("from", "")).removeprefix(REGISTRY).removesuffix(".model_registry")
    if not isinstance(flavor, str) or family not in tables("flavors")["models"]:
        raise ValueError(
            f"model_registry({flavor!r}) does not say whose flavour it is: import it, as "
            "from torchtitan.models.llama3 import model_registry."
        )
    said: dict[str, Any] = {"model.name": family, "model.flavor": flavor}
    said["model.attention"] = _typed(
        spec, "attn_backend", "str", "varlen" if family == "gpt_oss" else "flex", notes
    )
    if heads := _typed(spec, "num_mtp_layers", "int", 0, notes):
        said["model.mtp"] = heads
    if backend := _typed(spec, "moe_comm_backend", "str", "", notes):
        said["parallelism.expert_parallel_comm_backend"] = backend
    if spec.get("non_blocking_capacity_factor") is not None:
        said["model.non_blocking_capacity_factor"] = True
    if (gemm := _typed(spec, "tp_gemm_backend", "str", "default", notes)) != "default":
        notes.append(f"Not modelled: tp_gemm_backend {gemm}; its collectives count as without it.")
    converters = spec.get("converters") or []
    if not isinstance(converters, list):
        notes.append(_unread("converters of model_registry", "none"))
        converters = []
    return said | _converters(converters, family, flavor, notes)


def _converters(made: list[Any], family: str, flavor: str, notes: list[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    names: list[str] = []
    for each in made:
        kind = str(each.get(CALLED, "")).removesuffix(".Config") if isinstance(each, dict) else "?"
        names.append(name := CONVERTERS.get(kind, kind))
        if name == "quantize.linear.float8":
            filters = _typed(each, "filter_fqns", "list[str]", [], notes)
            said |= {
                f"{name}.recipe_name": _typed(each, "recipe_name", "str", "rowwise", notes),
                f"{name}.filter_fqns": [OUTPUT if part == HEAD else part for part in filters],
            }
        elif name == NVFP4:
            said[f"{NVFP4}.layers"] = _leading(each, family, flavor, notes)
        elif name == "quantize.linear.mx":
            only = _typed(each, "fqns", "list[str]", [], notes)
            said[f"{name}.filter_fqns"] = [OUTPUT] if only else []
            if only:
                notes.append(
                    f"Not modelled: MXFP8 of {', '.join(only[:4]):.{SHOWN}} alone; every layer counts in it."
                )
    return said | {"model.converters": names}


def _leading(made: Mapping[str, Any], family: str, flavor: str, notes: list[str]) -> int:
    """Layers from the first that are in 4 bits: all, or without the tail that a fraction leaves in 16. [1]

    Source: torchtitan 0.3.0, components/quantization/nvfp4.py, nvfp4_bf16_tail_fqns, which refuses a tail of all.
    """
    layers = flavor_of(family, flavor).model.num_layers
    fqns = made.get("fqns")
    if not fqns:
        return layers
    if isinstance(fqns, dict) and fqns.get(CALLED) == "nvfp4_bf16_tail_fqns":
        fraction = fqns.get("bf16_tail_fraction", next(iter(fqns.get(ARGS, [])[1:]), UNKNOWN))
        if is_of("float", fraction):
            if not 0 <= fraction * layers <= layers - 1:
                raise ValueError(
                    f"nvfp4_bf16_tail_fqns with bf16_tail_fraction {fraction} leaves no layer of {layers} in "
                    "4 bits, or more than there are. Try 0.15."
                )
            tail: int = math.ceil(layers * fraction)
            return layers - tail
    notes.append(_unread(f"fqns of {made.get(CALLED)}", "every layer"))
    return layers


def _recompute(made: Any) -> dict[str, Any]:
    kind = str(made.get(CALLED, "")).partition(".")[0] if isinstance(made, dict) else str(made)
    if kind not in MODES:
        raise ValueError(f"activation_checkpoint {kind!r} is not followed. Known: {', '.join(MODES)}.")
    return {
        "activation_checkpoint.mode": MODES[kind],
        "activation_checkpoint.selective_ac_option": "op",
    }
