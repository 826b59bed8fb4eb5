"""Flavours of torchtitan's models: the model of our catalogue that has a flavour's sizes, else one made of them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from advisor.torchtitan.job import tables
from costmodel.model_file import from_mapping
from costmodel.model_registry import list_models, load_model
from costmodel.model_spec import ModelSpec

# Fields of a model that are its sizes; others are told of by none of torchtitan's tables, or cost nothing.
SIZES = (
    *(
        "num_layers",
        "hidden",
        "ffn_hidden",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab",
        "tied_embeddings",
    ),
    *(
        "gated",
        "activation",
        "norm",
        "qk_norm",
        "qk_l2_norm",
        "linear_bias",
        "qkv_bias",
        "attention_sink",
        "attention_chunk",
    ),
    *(
        "nope_layer_interval",
        "mtp_layers",
        "sliding_window",
        "mla",
        "mamba",
        "gated_delta",
        "indexer",
        "encoder",
    ),
)
OF_EXPERTS = (
    *("num_experts", "topk", "expert_ffn", "shared_expert_ffn", "shared_expert_gate", "latent_size"),
    *("dense_first_layers", "layer_interval"),
)
# Models that others are built from, with a name in front or behind.
VARIANTS = ("simple_fsdp", "compiler_toolkit", "autoparallel", "ft")


@dataclass(frozen=True)
class Flavor:
    """A flavour. model: of our catalogue or made of its sizes; notes: what it is, and what of it is not counted.

    steered: whether a bias of each expert follows its load. pipelined, split: whether it runs on pipeline stages, and
    on context-parallel ranks. kernel: of attention, "" for PyTorch's fused one.
    """

    model: ModelSpec
    steered: bool = False
    pipelined: bool = True
    split: bool = True
    kernel: str = ""
    notes: tuple[str, ...] = ()


def flavor_of(name: str, flavor: str, attention: str = "") -> Flavor:
    """The flavour of a model of torchtitan's. ValueError in one line where it has none such.

    attention: its kernel where the configuration says that, as of 0.3.0, which steers all experts, has stages of every
    model, and keeps attention in each document (models/*/__init__.py, models/common/config_utils.py).
    """
    families = tables("flavors")["models"]
    family, notes = _family(name)
    if family not in families:
        near = difflib.get_close_matches(name, families, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(families)}."
        raise ValueError(
            f"model.name {name!r} is no model of torchtitan {tables('flavors')['release']} that is known here. {hint} "
            "Or name its sizes by --model."
        )
    known = [each for each in families[family] if each != "every"]
    if flavor not in known:
        near = [each for each in known if each.lower() == flavor.lower()]
        near = near or difflib.get_close_matches(flavor, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(known)}."
        raise ValueError(f"model.flavor {flavor!r} is none of {name}. {hint} Or name its sizes by --model.")
    every, said = families[family]["every"], families[family][flavor]
    mapping = _mapping(every, said)
    made = from_mapping({"name": f"{family}-{flavor}"} | mapping)
    model = _catalogued(made)
    notes += [
        f"{name} {flavor}: {model.name}, the model of our catalogue that has its sizes."
        if model is not made
        else f"{name} {flavor}: a model of its own sizes, as no model of our catalogue has them."
    ]
    said = every | said
    if attention:
        newer = {"kernel": attention, "documents": True, "steered": made.moe is not None, "pipelined": True}
        return _flavor(model, said | newer, notes, split=True)
    return _flavor(model, said, notes, split=_splits(family, said.get("kernel", "")))


def _splits(family: str, kernel: str) -> bool:
    """Whether context-parallel ranks share its attention: models/*/model/args.py, update_from_config."""
    return not kernel or (family, kernel) == ("llama3", "flex")


def _flavor(model: ModelSpec, said: dict[str, Any], notes: list[str], split: bool) -> Flavor:
    if kernel := said.get("kernel", ""):
        notes.append(_kernel_note(kernel, said.get("documents", False)))
    return Flavor(
        model,
        steered=said.get("steered", False),
        pipelined=said.get("pipelined", True),
        split=split,
        kernel=said.get("kernel", ""),
        notes=tuple(notes),
    )


def _family(name: str) -> tuple[str, list[str]]:
    """The model that a name is built from, and a note where another engine trains it."""
    for variant in VARIANTS:
        bare = name.removeprefix(f"{variant}.").removesuffix(f"_{variant}")
        if bare != name:
            return bare, [f"{name} is not modelled as {variant} trains it: counted as {bare}."]
    return name, []


def _mapping(every: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    mapping: dict[str, Any] = every["sizes"] | said["sizes"]
    for part in ("moe", "mla", "sliding_window"):
        if found := every.get(part, {}) | said.get(part, {}):
            mapping = mapping | {part: found}
    if "moe" in mapping:
        mapping["moe"] = mapping["moe"] | {"expert_bias": every.get("steered", False)}
    return mapping


def _kernel_note(kernel: str, documents: bool) -> str:
    kind = {
        "flex": "FlexAttention",
        "flex_flash": "FlexAttention",
        "varlen": "variable-length attention",
    }.get(kernel, kernel)
    each = ", and stays in each document, of which none is shorter than a sequence here" if documents else ""
    return f"Not modelled: its attention runs {kind}{each}; the fused kernel of the stack counts."


def _catalogued(made: ModelSpec) -> ModelSpec:
    """The model of the catalogue with the same sizes, `made` where there is none."""
    for name in list_models():
        model = load_model(name)
        if _sizes(model) == _sizes(made):
            return model
    return made


def _sizes(model: ModelSpec) -> list[Any]:
    moe = model.moe
    parts = [getattr(moe, name) for name in OF_EXPERTS] if moe is not None else []
    # Without dense layers there is no width of theirs.
    dense = moe is None or moe.dense_first_layers > 0 or moe.layer_interval > 1
    model = model if dense else replace(model, ffn_hidden=1)
    return [*((getattr(model, name) or None) for name in SIZES), *parts]
