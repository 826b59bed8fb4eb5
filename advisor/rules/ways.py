"""Ways out of rules: alternatives, of which a plan is told those that its stack, its machine and its knobs allow.

What a way takes is read off its own text: `--moe-dispatcher deepep` takes DeepEP. It is there where the plan that
takes it breaks none of the rules about what is lacking: facts of `features.toml`, and rules with `lacks`, about the
machine and about what overlaps and splits need of the plan. So no rule has to say what its ways need, and none can
forget it.
"""

from __future__ import annotations

import ast
import contextlib
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.rules.facts import CHOICES, following_words
from advisor.rules.model_words import precision_words
from advisor.rules.setting_words import DEFAULTS
from costmodel.columns import ITEM_PREFIX, ITEMS
from costmodel.knobs import KNOBS

if TYPE_CHECKING:
    from advisor.rules import Rule
    from advisor.rules.facts import Facts

OPTION = re.compile(r"--(no-)?([a-z][a-z0-9-]*)(?: ([a-z0-9_+](?:[a-z0-9_+.,-]*[a-z0-9_+])?|\{\}))?")
SETTING = re.compile(r"\b([a-z][a-z0-9_]*)=([\w.]+)")
# First words of ways that take something away, or nothing.
TAKES_NOTHING = ("leave", "drop", "lower", "raise", "halve", "keep", "unset")
# What a size stands for that a way computes: more than one rank, so that nobody is told to split what cannot be split.
SEVERAL = 2.0
NOTHING_ELSE = "Nothing else is known here: "


@dataclass(frozen=True)
class Way:
    """One way out: an imperative without its full stop, with {expressions} in the words of the rules; "" is no way."""

    text: str

    @cached_property
    def takes(self) -> Mapping[str, Any]:
        """Knobs and settings that it gives a value, by name: the value, None for a number that it computes."""
        written = _written(self.text)
        if written.lstrip().partition(" ")[0] in TAKES_NOTHING:
            return {}
        taken: dict[str, Any] = {}
        for off, dashed, value in OPTION.findall(written):
            name = dashed.replace("-", "_")
            knob = KNOBS.get(name)
            if knob is None or (knob.kind != "bool" and not value):
                continue
            with contextlib.suppress(ValueError):  # --tp or --cp
                taken[name] = not off if knob.kind == "bool" else None if value == "{}" else knob.parse(value)
        return taken | {name: value for name, value in SETTING.findall(written) if name in DEFAULTS}

    def over(self, words: Facts) -> Facts:
        """The words of a plan that takes this way."""
        changed: Facts = {}
        for name, value in self.takes.items():
            changed |= _words_of(name, value)
        return following_words({**words, **changed})

    def lacks(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Those of the rules about what is lacking that this way can break."""
        names = set(self.takes) | {f"setting_{name}" for name in self.takes}
        return tuple(rule for rule in rules if names & (set(rule.knobs) | rule.words))

    def missing(self, words: Facts, rules: Sequence[Rule]) -> Any:
        """Number of the first of `rules` that keeps a plan from this way, -1 for none; arrays where words are arrays.

        A plan that breaks the rule anyway may take another size, and no way to use more of what is lacking.
        """
        found: Any = np.asarray(-1)
        after = self.over(words) if rules else words
        for number, rule in reversed(list(enumerate(rules))):
            broken = rule.broken(after)
            if not self._uses_more(rule):
                broken = broken & ~rule.broken(words)
            found = np.where(broken, number, found)
        return found

    def _uses_more(self, rule: Rule) -> bool:
        """Whether it chooses or switches something that the rule is about, and does not size it alone."""
        sized = {name for name in self.takes if name in KNOBS and KNOBS[name].kind in ("int", "float")}
        return bool(
            (set(self.takes) - sized) & {*rule.knobs, *(word.removeprefix("setting_") for word in rule.words)}
        )


def joined(ways: Sequence[str], most: int = 0) -> str:
    """Ways as one sentence, a verb that repeats told once: `Try --ep 8, or --overlap-moe-comm.`; "" for none.

    most: ways to tell at most, 0 for all.
    """
    told = [way for way in ways if way]
    told = told[:most] if most else told
    parts, verb = [], ""
    for way in told:
        first, _, rest = way.partition(" ")
        parts.append(rest if first == verb else way)
        verb = first
    text = ", or ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


@lru_cache(maxsize=1024)
def _written(text: str) -> str:
    """The options that a template can say: texts of its expressions stand as they are, other values as {}."""
    pieces = []
    for before, field, _, _ in string.Formatter().parse(text):
        pieces.append(before)
        if field is not None:
            texts = [
                node.value
                for node in ast.walk(ast.parse(field, mode="eval"))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            told = " ".join(texts) or "{}"
            pieces.append(told + "{}" if told.endswith(" ") else told)
    return "".join(pieces)


def _words_of(name: str, value: Any) -> Facts:
    """Words of one knob or setting with a value."""
    if name in DEFAULTS:
        return {f"setting_{name}": np.bool_(True) if isinstance(DEFAULTS[name], bool) else value}
    kind = KNOBS[name].kind
    if name == "precision":
        return precision_words(value)
    if name == "pipeline_layout":
        return {name: np.asarray(1.0)}
    if kind == "choice":
        choices = KNOBS[name].choices
        return {
            CHOICES.get(name, {}).get(choice, f"{name}_{choice}"): np.bool_(choice == value)
            for choice in choices
        }
    if name in ITEM_PREFIX:
        own = {word: np.bool_(item in value) for word, (knob, item) in ITEMS.items() if knob == name}
        # Modules act with selective recompute alone.
        return own | (_words_of("recompute", "selective") if name == "recompute_modules" else {})
    if kind == "bool":
        return {name: np.bool_(value)}
    return {name: np.asarray(SEVERAL if value is None else float(value))}
