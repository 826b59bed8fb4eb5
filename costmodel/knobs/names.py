"""Every name of every knob and setting: ours, the frameworks', environment variables, the guides' spellings."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Any

from costmodel.knobs import CATALOGUE, KNOBS
from costmodel.knobs.record import Knob

FRAMEWORKS = {
    "nemo": "NeMo",
    "megatron_bridge": "Megatron-Bridge",
    "megatron_lm": "Megatron-LM",
    "mcore": "Megatron-Core",
    "torchtitan": "torchtitan",
    "env": "environment",
}


# Letters from which a word may be the first of a knob's meaning.
SPOKEN = 4

# What a question says beside the knobs: options of the same name, which no pin and no --set takes.
WORKLOAD = (
    "task",
    "packed",
    "mean_length",
    "length_cv",
    "lora_rank",
    "lora_targets",
    "moe_imbalance",
    "moe_adjacent",
)
BESIDE = ("model", "gpus", "gpu", "cluster", "stack", *WORKLOAD)


def normal(name: str) -> str:
    """A name as the index has it: no dashes, no value behind '=', lower case."""
    return name.split("=", 1)[0].strip().lstrip("-").replace("-", "_").lower()


def framework_names(knob: Knob) -> tuple[str, ...]:
    """The names in other tools and the aliases; remarks in brackets are no names."""
    texts = [re.sub(r"\([^)]*\)", "", getattr(knob, key)) for key in FRAMEWORKS]
    named = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(name for name in [*named, *knob.aliases, *knob.related] if name))


@lru_cache(maxsize=1)
def _indexes() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Records by whole name, and by the last part of a dotted name."""
    whole: dict[str, list[str]] = {}
    last: dict[str, list[str]] = {}
    for record in CATALOGUE.values():
        # A field's text as it stands counts too: remarks such as "(derived)" are shown, so they may be asked for.
        texts = [getattr(record, key) for key in FRAMEWORKS]
        for name in dict.fromkeys(normal(text) for text in [*framework_names(record), *texts] if text):
            whole.setdefault(name, []).append(record.name)
            end = last.setdefault(name.rsplit(".", 1)[-1], [])
            if record.name not in end:
                end.append(record.name)
    return whole, last


def find(name: str) -> list[Knob]:
    """Records of that name, ours first, then a framework's. ValueError with the nearest names.

    Of a dotted name the longest known ending counts: recipe.model.config.cp_comm_type is model.config.cp_comm_type.
    """
    wanted = normal(name)
    whole, last = _indexes()
    for own in (wanted, wanted.removeprefix("no_")):
        if own in CATALOGUE:  # some variables are a setting, and another name of a knob that says more
            return [CATALOGUE[found] for found in dict.fromkeys([own, *whole.get(own, [])])]
    parts = wanted.split(".")
    for ending in (".".join(parts[start:]) for start in range(len(parts))):
        if ending in whole:
            return [CATALOGUE[found] for found in whole[ending]]
    for end in (parts[-1], parts[-1].removeprefix("no_")):
        found = last.get(end) or ([end] if end in CATALOGUE else [])
        if found:
            return [CATALOGUE[each] for each in found]
    if wanted in BESIDE:
        raise ValueError(
            f"{name!r} is no knob but an option of its own: --{wanted.replace('_', '-')}. "
            "`advisor predict --help` tells of it."
        )
    raise ValueError(f"{name!r} is not a knob of ours or of a framework. {_nearest(parts[-1], last)}")


def _nearest(wanted: str, last: dict[str, list[str]]) -> str:
    known = last | {name: [name] for name in CATALOGUE}
    # A word or two of what a knob is called comes before spellings, to which an abbreviation is never near.
    spoken = re.sub(r"[_-]", " ", wanted) if len(wanted) >= SPOKEN else "\0"
    said = [knob.name for knob in KNOBS.values() if knob.meaning.lower().startswith(spoken)]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    suggestions = list(dict.fromkeys([*said, *(known[word][0] for word in near)]))[:3]
    return f"Did you mean {', '.join(suggestions)}?" if suggestions else "`advisor knobs` lists them all."


def parse_pair(pair: str, option: str = "--set") -> tuple[Knob, Any]:
    """The record and the value of one NAME=VALUE, under any name. ValueError in one line.

    option: where it was given, for the error.
    """
    name, separator, text = pair.partition("=")
    if not separator or not name.strip():
        raise ValueError(f"{option} {pair!r} is not NAME=VALUE. Try {option} tp=4.")
    knob = meant(name, option)
    value = knob.parse(text)
    return knob, (not value if knob.kind == "bool" and is_inverse(knob, name) else value)


def meant(name: str, option: str) -> Knob:
    """The one knob or setting of a name, ours or a framework's. ValueError in one line.

    option: where it was given, for the error.
    """
    if normal(name) in BESIDE:
        raise ValueError(f"{option} {name}: it is no knob. Use --{normal(name).replace('_', '-')}.")
    found = find(name)
    same = [knob for knob in found if not _counts_otherwise(knob, name)]
    if len(same) > 1:
        raise ValueError(
            f"{option} {name} means {' or '.join(knob.name for knob in same)}. Name one of them."
        )
    if not same:
        ways = " or ".join(f"{knob.name} ({_values(knob)})" for knob in found)
        raise ValueError(f"{option} {name} has other values than ours. Set {ways} instead.")
    knob = same[0]
    if knob.home not in ("knob", "setting"):
        raise ValueError(f"{option} {name}: {knob.name} stands with the {knob.home}. {_way_out(knob)}")
    return knob


def _ends(name: str) -> set[str]:
    wanted = normal(name)
    return {wanted, wanted.rsplit(".", 1)[-1]}


def _counts_otherwise(knob: Knob, name: str) -> bool:
    return bool(_ends(name) & {normal(word) for word in knob.related}) and normal(name) != knob.name


def is_inverse(knob: Knob, name: str) -> bool:
    """Whether that name of a knob is true where the knob is off."""
    ends = _ends(name)
    return bool(ends & {normal(word) for word in knob.inverse}) or any(end.startswith("no_") for end in ends)


def _values(knob: Knob) -> str:
    if knob.kind == "bool":
        return "true, false"
    return ", ".join(knob.choices) or (knob.kind if knob.kind == "text" else f"{knob.low} to {knob.high}")


def _way_out(knob: Knob) -> str:
    return f"Use {knob.option}." if knob.home == "workload" else "Use a model that has it."
