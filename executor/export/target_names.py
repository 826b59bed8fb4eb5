"""Names that the releases of Megatron-Bridge and NeMo have, and which recipe there trains a model of ours.

The tables `*_names.toml` are written by tools/record_targets.py from the releases' own source; `*_recipes.toml` say
which of those recipes is which model.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Names:
    """One release of a target: what it has, by section, and the Megatron-Core it is written for."""

    target: str
    release: str
    core: str
    sections: Mapping[str, frozenset[str]]

    def has(self, section: str, name: str) -> bool:
        """Whether the release has the name."""
        return name in self.sections.get(section, frozenset())

    @property
    def numbers(self) -> tuple[int, ...]:
        """The release as numbers that compare."""
        return _numbers(self.release)

    @property
    def core_numbers(self) -> tuple[int, ...]:
        """Its Megatron-Core as numbers that compare."""
        return _numbers(self.core)


@lru_cache(maxsize=4)
def table(name: str) -> Mapping[str, Any]:
    """A table of this folder, by its file's stem."""
    with (HERE / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def releases(target: str) -> tuple[str, ...]:
    """Releases of the target that are recorded, oldest first."""
    return tuple(table(f"{target}_names")["releases"])


def names_of(target: str, wanted: str) -> tuple[Names, str]:
    """Names of the wanted release ("" is the newest) and a note when another had to stand in for it.

    The newest release that is not newer than the wanted one stands in, else the oldest: names rarely vanish.
    """
    known = releases(target)
    title = target.replace("_", "-")
    if not wanted:
        return _release(target, known[-1]), ""
    if not re.fullmatch(r"v?\d+(\.\d+)*((rc|a|b)\d+)?(\.post\d+|\.dev\d+)?", wanted.strip()):
        raise ValueError(
            f"--target-version {wanted!r} is no release of {title}. Known: {', '.join(known)}; "
            "leave it out for the newest."
        )
    number = _numbers(wanted)
    # 0.3 means 0.3.1, the release of that line that is recorded.
    same = [release for release in known if _numbers(release)[: len(number)] == number]
    older = [release for release in known if _numbers(release) <= number]
    release = (same or older or known)[-1] if same or older else known[0]
    exact = release == wanted.removeprefix("v") or bool(same)
    note = "" if exact else f"{title} {wanted} is not recorded: names are those of {release}, the nearest"
    return _release(target, release), note


def recipe_names(target: str, model: str) -> Mapping[str, str]:
    """Recipe of our model by task, "model" its module or family; nothing when the target has none."""
    return dict(table(f"{target}_recipes")["recipes"].get(model, {}))


@lru_cache(maxsize=16)
def _release(target: str, release: str) -> Names:
    record = table(f"{target}_names")
    sections = {
        section: frozenset(
            name
            for having, names in found.items()
            if having == "always" or release in having.split()
            for name in names
        )
        for section, found in record.items()
        if isinstance(found, dict) and section != "megatron_core"
    }
    return Names(target, release, record["megatron_core"][release], sections)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"rc|a|b|\.post|\.dev", release)[0]))
