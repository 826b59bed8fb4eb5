"""Names of Megatron-LM's arguments, and what each version of it has; the table is `megatron_lm.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("megatron_lm.toml")


@dataclass(frozen=True)
class Version:
    """One version of Megatron-LM.

    hybrid_pattern: flag of the layers of a hybrid; hybrid_switch: another that it needs; hybrid_stages: whether
    the pattern tells stages. graph_modules: flag of the captured parts; graph_whole: whether a graph of the whole
    step is a scope or an implementation. te_loss: whether it takes Transformer Engine's fused loss. lacks: flags of
    ours that it does not have.
    """

    name: str
    te_loss: bool
    hybrid_pattern: str
    hybrid_switch: str
    hybrid_stages: bool
    graph_modules: str
    graph_whole: str
    source: str
    lacks: tuple[str, ...]


@lru_cache(maxsize=1)
def names() -> Mapping[str, Any]:
    """The table."""
    with TABLE.open("rb") as file:
        return tomllib.load(file)


@lru_cache(maxsize=1)
def versions() -> tuple[Version, ...]:
    """The versions known, oldest first."""
    return tuple(Version(**record | {"lacks": tuple(record["lacks"])}) for record in names()["versions"])


def version_of(text: str) -> tuple[Version, str]:
    """The version meant, and a note when it is not one of ours: the nearest before it. "" is the newest."""
    known = versions()
    if not text:
        return known[-1], ""
    numbers = [int(number) for number in re.findall(r"\d+", text)[:2]]
    if not numbers:
        listed = ", ".join(version.name for version in known)
        raise ValueError(f"--target-version {text!r} is no version of Megatron-LM. Known: {listed}.")
    found = known[0]
    for version in known:
        if [int(number) for number in version.name.split(".")] <= numbers:
            found = version
    if [int(number) for number in found.name.split(".")] == numbers:
        return found, ""
    return found, f"names of version {found.name}, the nearest to {text} that is known"


def flag_of(field: str) -> str:
    """The flag that gives a field of Megatron-Core its value or switches it on."""
    return str(names()["flags"].get(field) or "--" + field.replace("_", "-"))
