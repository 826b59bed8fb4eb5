"""What a software stack lacks, as rules: facts of the features*.toml beside it, by family and release."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.stack import Stack, default_stack, families, load_stack, months

FILES = tuple(
    Path(__file__).with_name(name)
    for name in ("features.toml", "features_parallel.toml", "features_models.toml")
)
NEVER, UNTIL = "never", "until "


@dataclass(frozen=True)
class Feature:
    """What some family or release cannot run; see the head of `features.toml` for the fields."""

    name: str
    title: str
    knobs: tuple[str, ...]
    uses: str
    instead: tuple[str, ...]
    source: str
    since: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    severity: str = "ERROR"

    @property
    def rule(self) -> str:
        """Id of the rule that a plan breaks by using it on a stack without it."""
        return f"stack_{self.name}"

    def dated(self, stack: Stack) -> str:
        """What is known of a stack's family: the release that brought it, "until" the last, "never", "" for nothing."""
        if self.flag:
            return self._flagged(stack) if getattr(stack, self.flag) else ""
        group = "megatron" if stack.megatron_core else "other"
        names = [stack.family, *["dtensor"] * stack.dtensor, group]
        return next((self.since[name] for name in names if name in self.since), "")

    def lacked_by(self, stack: Stack) -> bool:
        """Whether the stack is known not to have it; of a family without a release only what it never has."""
        dated = self.dated(stack)
        if dated == NEVER or not (dated and stack.release):
            return dated == NEVER
        if dated.startswith(UNTIL):
            return months(stack.release) > months(dated.removeprefix(UNTIL))
        return months(stack.release) < months(dated)

    def _flagged(self, stack: Stack) -> str:
        """The first release of the family after those with its flag."""
        releases = families()[stack.family]["releases"]
        without = (each for each in releases if not getattr(load_stack(f"{stack.family}-{each}"), self.flag))
        return next((each for each in without if months(each) > months(stack.release)), NEVER)

    def says(self, stack: Stack) -> str:
        """That a stack lacks it, and when it came or went."""
        return f"{stack.name} has no {self.title}{self.when(stack)}"

    def when(self, stack: Stack) -> str:
        """When it came to the family of a stack without it, or went."""
        dated = self.dated(stack)
        if dated.startswith(UNTIL):
            return f", which {stack.family} had {dated}"
        return "" if dated == NEVER else f", which came with {stack.family}-{dated}"

    def ways_out(self, stack: Stack) -> tuple[str, ...]:
        """What to do instead, and which stack has it."""
        dated = self.dated(stack)
        other = f"{stack.family}-{dated.removeprefix(UNTIL)}" if dated != NEVER else self._elsewhere()
        ways = (each if each.startswith("{'try ") else f"try {each}" for each in self.instead)
        return (*ways, *([f"try --stack {other}"] if other else []))

    def _elsewhere(self) -> str:
        """The first family whose newest release has it."""
        return _newest_with([self])


def first_with(needed: Sequence[Feature], stack: Stack) -> str:
    """The first release of a stack's family that has all of some features, else the first other family's newest."""
    releases = (load_stack(f"{stack.family}-{each}") for each in families()[stack.family]["releases"])
    having = (each.name for each in releases if not any(feature.lacked_by(each) for feature in needed))
    return next(having, "") or _newest_with(needed)


def _newest_with(needed: Sequence[Feature]) -> str:
    """The newest release of the first family whose newest has all of some features, "" for none."""
    newest = (load_stack(name) for name in families())
    having = (each.name for each in newest if each.release and not any(one.lacked_by(each) for one in needed))
    return next(having, "")


@lru_cache(maxsize=1)
def load_features() -> tuple[Feature, ...]:
    """Every feature, in the order of the files."""
    records = {
        name: record for file in FILES for name, record in tomllib.loads(file.read_text("utf-8")).items()
    }
    return tuple(
        Feature(name, **record | {key: tuple(record[key]) for key in ("knobs", "instead")})
        for name, record in records.items()
    )


@lru_cache(maxsize=32)
def lacked(stack: str | None) -> frozenset[str]:
    """Names of the features that a stack, None for the newest known, is known not to have, and cannot do without.

    Those with the severity NOTE are only told: what lacks them is told as the first release that has them runs it.
    """
    known = load_stack(stack or default_stack())
    needed = (feature for feature in load_features() if feature.severity != "NOTE")
    return frozenset(feature.name for feature in needed if feature.lacked_by(known))


def unheard(knobs: Mapping[str, Any], stack: str | None) -> list[str]:
    """A note where knobs ask for Transformer Engine's fused loss and the release has Megatron-Core's alone."""
    known = load_stack(stack or default_stack())
    fused = knobs.get("fused_cross_entropy", True)
    if not fused or knobs.get("cross_entropy_fusion_impl") != "te" or not known.native_loss:
        return []
    return [
        f"{known.name} has no fused loss but Megatron-Core's own: that is priced, not Transformer Engine's (te)."
    ]
