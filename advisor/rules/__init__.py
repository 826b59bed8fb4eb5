"""Rules between knobs: one definition each, for one plan with its message and for arrays of plans.

A rule is a record of a topic file (`parallel.toml`, `experts.toml`, ...): the expression `when` over the
words of `advisor.rules.facts`, the text with numbers, and the way out. `violations` tells everything that
is wrong with a plan at once; `error_masks` applies the same expressions to a whole search space.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from advisor.rules.facts import FROM_MACHINE, HELPERS, Facts, PlanWords, facts
from advisor.rules.features import Feature, first_with, load_features
from advisor.rules.model_words import machine_words, model_words
from advisor.rules.predicted_words import UNPREDICTED
from advisor.rules.ways import NOTHING_ELSE, Way, joined
from costmodel.columns import plan_columns
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.stack import Stack, default_stack, load_stack
from costmodel.workload import Workload

if TYPE_CHECKING:
    from advisor.rules.room import Room
    from costmodel.prediction import Prediction
    from hardware_db import Cluster


RULES = Path(__file__).parent
# Files of rules by topic; rules are applied and told in this order.
TOPICS = (
    "parallel",
    "pipeline",
    "batch",
    "context",
    "experts",
    "dispatch",
    "overlap",
    "data_parallel",
    "optimizer",
    "precision",
    "memory",
    "graphs",
    "environment",
    "tasks",
    "own_layers",
)
# In the order in which they are told.
SEVERITIES = ("ERROR", "AUTOFIX", "SILENT", "PERF", "ENV", "NOTE")
Mask = NDArray[np.bool_]
# All that expressions reach beside the words.
ALLOWED: Facts = {"__builtins__": {}, **HELPERS}


@dataclass(frozen=True)
class Rule:
    """One rule; see the head of `parallel.toml` for its fields. only: part of a stack that it is about, "" for any.

    lacks: what a way out is told to lack that breaks this rule; "" where a way may. lacking: the rules that have it,
    about what the stack, the machine or the plan lacks, which no way out may break; see `advisor.rules.ways`.
    """

    id: str
    severity: str
    knobs: tuple[str, ...]
    when: str
    says: str
    way_out: tuple[str, ...]
    source: str
    cites: tuple[str, ...] = ()
    only: str = ""
    then: str = ""
    most: int = 0
    lacks: str = ""
    lacking: tuple[Rule, ...] = field(default=(), compare=False, repr=False)

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.when, f"<rule {self.id}>", "eval")

    @cached_property
    def words(self) -> frozenset[str]:
        """Words that the condition depends on."""
        return frozenset(self._code.co_names) - set(HELPERS)

    @cached_property
    def ways(self) -> tuple[tuple[Way, tuple[Rule, ...]], ...]:
        """Its ways out, each with the rules about what is lacking that it could break."""
        ways = [Way(text) for text in self.way_out]
        return tuple((way, way.lacks(self.lacking)) for way in ways)

    def broken(self, words: Facts) -> Any:
        """Where the rule is broken: True or False for every row of the words."""
        return eval(self._code, ALLOWED, words)

    def message(self, of: PlanWords, room: Room | None = None) -> tuple[str, str]:
        """What is wrong and the way out, with the numbers of a row of the words.

        Of the ways those that the stack, the machine and the plan have, and that there is room for; where none is, what
        they lack.
        """
        text, row = _Template(), of.plain
        ways, lacked = [], []
        for way, rules in self.ways:
            missing = int(way.missing(of.single, rules))
            told = text.vformat(way.text, (), row)
            if missing < 0 and (short := room.lacking(told) if room else ""):
                lacked.append(short)
            elif missing < 0:
                ways.append(told)
            else:
                lacked.append(text.vformat(rules[missing].lacks, (), row))
        told = joined(ways, self.most)
        then = f" {self.then}" if told and self.then else ""
        return text.vformat(
            self.says, (), row
        ), told + then or f"{NOTHING_ELSE}{', '.join(dict.fromkeys(lacked))}."


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks: what is wrong with its numbers, and the way out."""

    id: str
    severity: str
    knobs: tuple[str, ...]
    text: str
    way_out: str
    source: str
    cites: tuple[str, ...] = ()

    def line(self) -> str:
        """One line for people and errors."""
        return f"{self.text}. {self.way_out}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "id": self.id,
            "severity": self.severity,
            "knobs": list(self.knobs),
            "text": self.text,
            "way_out": self.way_out,
            "source": self.source,
            "cites": list(self.cites),
        }


class _Template(string.Formatter):
    """Text whose {fields} are expressions in the words of the rules."""

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        value = eval(_compiled(field_name), ALLOWED, kwargs)
        if isinstance(value, float):
            value = f"{value:g}"
        return value, field_name


@lru_cache(maxsize=4096)
def _compiled(field: str) -> CodeType:
    """The expression of a field of a text."""
    return compile(field, "<text of a rule>", "eval")


@lru_cache(maxsize=1)
def load_rules() -> tuple[Rule, ...]:
    """Every rule, topic by topic, in the order of the files."""
    return tuple(rule for topic in TOPICS for rule in topic_rules(topic))


def topic_rules(topic: str) -> tuple[Rule, ...]:
    """Rules of one topic file."""
    records = tomllib.loads((RULES / f"{topic}.toml").read_text(encoding="utf-8"))
    return tuple(Rule(id=name, **record | _tuples(record)) for name, record in records.items())


def _tuples(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Fields of a record that are several; a way out that is one text is one way."""
    way_out = record["way_out"]
    ways = (way_out,) if isinstance(way_out, str) else tuple(way_out)
    return {"knobs": tuple(record["knobs"]), "cites": tuple(record.get("cites", ())), "way_out": ways}


def everywhere(cluster: Cluster) -> Iterator[Rule]:
    """Rules of plan, model and workload alone: another machine or software than the cluster's changes none of them."""
    of_machine = {*machine_words(cluster, 0), *FROM_MACHINE}
    return (rule for rule in load_rules() if not rule.only and not rule.words & of_machine)


@lru_cache(maxsize=32)
def rules_of(stack: str | None) -> tuple[Rule, ...]:
    """The rules that hold for a software stack, None the newest known: the last ones say what it lacks."""
    known = load_stack(stack or default_stack())
    held = [rule for rule in load_rules() if not rule.only or getattr(known, rule.only)]
    lacking = (*stack_rules(stack), *(rule for rule in load_rules() if rule.lacks))
    return tuple(replace(rule, lacking=lacking) for rule in (*held, *stack_rules(stack)))


@lru_cache(maxsize=32)
def stack_rules(stack: str | None) -> tuple[Rule, ...]:
    """A rule for each feature that a stack lacks: an ERROR but where it takes it and does nothing, or is told alone."""
    known = load_stack(stack or default_stack())
    return tuple(feature_rule(feature, known) for feature in load_features() if feature.lacked_by(known))


def feature_rule(feature: Feature, stack: Stack) -> Rule:
    """The rule that a stack lacks a feature."""
    says = feature.says(stack)
    return Rule(
        feature.rule,
        feature.severity,
        feature.knobs,
        feature.uses,
        says,
        feature.ways_out(stack),
        feature.source,
        lacks=says,
    )


def untrainable(model: ModelSpec, cluster: Cluster, stack: str | None) -> str:
    """One line: what a stack lacks for a model or a machine whatever the plan, and which has it; "" where nothing."""
    words = model_words(model) | machine_words(cluster, 0)
    known = load_stack(stack or default_stack())
    needed = [each for each in load_features() if not each.knobs and feature_rule(each, known).broken(words)]
    lacking = [each for each in needed if each.lacked_by(known) and each.severity != "NOTE"]
    if len(lacking) == 1:
        return f"{lacking[0].says(known)}. {joined(lacking[0].ways_out(known))}"
    parts = "; ".join(f"no {each.title}{each.when(known)}" for each in lacking)
    first = first_with(needed, known)
    way_out = f"Try --stack {first}." if first else "Try another model."
    return f"{known.name} has {parts}. {way_out}" if lacking else ""


def left_out() -> dict[str, str]:
    """Entries of the table of constraints that are no rule here, each with the reason."""
    return tomllib.loads((RULES / "left_out.toml").read_text(encoding="utf-8"))


def violations(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    gpus: int = 0,
    predicted: Mapping[str, Any] = UNPREDICTED,
    stack: str | None = None,
    room: Room | None = None,
) -> list[Violation]:
    """Every rule that `plan` breaks, errors first.

    gpus: GPUs there are, 0 when not said. predicted: what is predicted of the plan, see `predicted_words`.
    stack: software that is to run it, None the newest known. room: that ways out must have, see `room_of`.
    """
    settings = getattr(plan, "settings", ())
    words = facts(model, workload, cluster, plan.precision, plan_columns([plan]), gpus, settings)
    # Columns hold modules only where they act; the rule about idle ones needs what the plan says.
    words["modules_given"] = np.array([bool(plan.recompute_modules)])
    words |= predicted
    row = PlanWords(words)
    found = [violation(rule, row, room) for rule in rules_of(stack) if rule.broken(row.single)]
    return sorted(found, key=lambda violation: SEVERITIES.index(violation.severity))


def violation(rule: Rule, row: PlanWords, room: Room | None = None) -> Violation:
    """What `rule` says about a row of the words."""
    text, way_out = rule.message(row, room)
    return Violation(rule.id, rule.severity, rule.knobs, text, way_out, rule.source, rule.cites)


def holds(prediction: Prediction, found: Iterable[Violation]) -> bool:
    """Whether a plan fits and breaks no ERROR rule: else commands about it end with exit code 1."""
    return prediction.fits and all(each.severity != "ERROR" for each in found)


def error_masks(words: Facts, rules: Iterable[Rule] | None = None) -> dict[str, Mask]:
    """Where each ERROR rule of `rules` (default: all) is broken, by id, of the axes that it depends on.

    Rules that nothing breaks are left out.
    """
    errors = [rule for rule in (load_rules() if rules is None else rules) if rule.severity == "ERROR"]
    masks = {rule.id: np.asarray(rule.broken(words), dtype=bool) for rule in errors}
    return {name: mask for name, mask in masks.items() if mask.any()}
