"""What a published row recomputes in the backward pass, however it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.measurements.rows import Row, whole_number
from costmodel.plan import RECOMPUTE_MODULES

# Megatron-Bridge's recipes as they were resolved ("v0.5.0:...", "HEAD:..."): they name what is on.
RESOLVED_RECIPE = re.compile(r"v0\.|HEAD:")
KINDS = ("none", "selective", "full")
# Words of other tables, by what they mean; the first that stands in a text counts. Full recompute is of blocks or of
# uniform units of layers in Megatron-LM, and all that most other software means by its checkpointing.
WORDS = (
    ("none", r"^(none|0|0\.0|false|off|disabled|no|not|without)\b"),
    ("selective", r"\bselective|\bsac\b"),
    (
        "full",
        r"\b(full|block\w*|uniform\w*|whole|all|every)\b|^(1|1\.0|true|yes|on|enabled)$"
        r"|checkpoint|\bckpt\b|recomput|\bremat",
    ),
)
# Which names no module of activations, and a number of layers in words.
OF_ACTIVATIONS = re.compile(r"activations?[ _-]?(?=checkpoint|ckpt|recomp|re-comp|remat)")
LAYERS = re.compile(r"(?<!every )(\d+) ?layers?\b")
CORE_ATTENTION = re.compile(r"core[ _-]?att(?:entio)?n")


def granularity(row: Row) -> tuple[str, str]:
    """Of KINDS what a row says of recompute, "" where nothing that is read; in words how that was told, if by others.

    An empty column beside modules is selective, beside a number of layers full.
    """
    text = row.text("recompute_granularity")
    if text in KINDS:
        return text, ""
    if text:
        spaced = re.sub(r"[_+,;/()-]+", " ", text)
        found = next((kind for kind, words in WORDS if re.search(words, spaced)), "")
        found = found or ("selective" if modules_in(text) else "")
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        read = f"taken as {found}" if found else f"is none of {', '.join(KINDS)}: taken as not said"
        return found, f"recompute_granularity {shown!r} {read}"
    if modules_in(row.text("recompute_modules")):
        return "selective", "recompute_granularity not stated: selective, as modules are named"
    if row.whole("recompute_num_layers") or row.text("recompute_num_layers").lower() == "all":
        return "full", "recompute_granularity not stated: full, as a number of layers is"
    return "", ""


def modules_in(text: str) -> tuple[str, ...]:
    """The modules that a text in small letters names, in our order."""
    named = re.findall(r"\w+", CORE_ATTENTION.sub("core_attn", OF_ACTIVATIONS.sub("", text)))
    return tuple(module for module in RECOMPUTE_MODULES if module in named)


def modules_stated(row: Row) -> tuple[str, ...]:
    """The modules that a row names, in either column."""
    return modules_in(f"{row.text('recompute_granularity')} {row.text('recompute_modules')}")


def recompute_knobs(
    row: Row, habit: Mapping[str, Any], vpp: int, stage_layers: int, assumed: list[str]
) -> tuple[str, tuple[str, ...], int]:
    """Recompute setting; Megatron counts the layers of each virtual stage, plans those of the stage.

    Of the method "uniform" the number is the layers kept as one unit: all of them are recomputed. stage_layers: of a
    pipeline stage [1], of which "selective layer" computes some again as a whole. assumed: takes how words were read.
    """
    stated, words = granularity(row)
    assumed += [words] if words else []
    stated = stated or habit.get("recompute", "none")
    text = row.text("recompute_granularity")
    if stated == "full":
        units = row.json("other_flags").get("recompute_method") == "uniform" or "uniform" in text
        said = row.text("recompute_num_layers")
        if said and said.lower() != "all" and whole_number(said) is None:
            assumed.append(f"recompute_num_layers {said!r:.40} is no whole number: every layer")
        told = LAYERS.search(text)
        layers = row.whole("recompute_num_layers") or (int(told[1]) if told and not said else 0)
        return "full", (), 0 if units else layers * vpp
    if stated != "selective":
        return "none", (), 0
    if "selective_layers" in habit and re.search(r"\blayer\b", f"{text} {row.text('recompute_modules')}"):
        return "full", (), max(stage_layers // habit["selective_layers"], 1)
    modules = modules_stated(row)
    if not modules and RESOLVED_RECIPE.match(row.text("recipe_key")):
        # Megatron-Core takes core_attn where no list is given, nothing where the list is empty.
        return "none", (), 0
    return "selective", modules or tuple(habit.get("recompute_modules", ("core_attn",))), 0
