"""Rules of diagnosis, as data in diagnoses.toml, against facts: what is wrong, by what evidence, at most how much.

A rule fires on the first of its evidences that holds. One whose every evidence lacks a fact is `unseen`: the log
cannot tell, and the names of the missing facts say what would.
"""

from __future__ import annotations

import ast
import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

TABLE = Path(__file__).with_name("diagnoses.toml")
SEVERITIES = ("fault", "loss", "risk", "rest")
ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.Mod,
    ast.Compare,
    ast.Gt,
    ast.GtE,
    ast.Lt,
    ast.LtE,
    ast.Eq,
    ast.NotEq,
    ast.In,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
)
FUNCTIONS = {"min": min, "max": max}


class Unseen(LookupError):
    """A fact that nothing tells."""


class Facts(dict[str, Any]):
    """Facts by name; asking for one that is absent or None raises `Unseen`."""

    def __missing__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        raise Unseen(name)

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is None:
            raise Unseen(name)
        return value


@dataclass(frozen=True)
class Evidence:
    """One way to see a symptom: a condition, a sentence with its numbers, the ceiling as a share of the step [1]."""

    when: str
    shows: str
    ceiling: str

    @property
    def words(self) -> set[str]:
        """Names of facts in the three."""
        fields = [name for _, name, _, _ in string.Formatter().parse(self.shows) if name]
        return (set(fields) | names_in(self.when) | names_in(self.ceiling)) - set(FUNCTIONS)

    @property
    def measured(self) -> bool:
        """Whether the condition rests on a measurement beyond the step time, not on plan and prediction alone."""
        meanings = table()["facts"]
        names = names_in(self.when) - set(FUNCTIONS) - {"step", "num_lines"}
        found = [str(meanings[name]) for name in names]
        return any(not meaning.rpartition("; ")[2].startswith("a plan") for meaning in found)

    @property
    def inferred(self) -> bool:
        """Whether predicted seconds alone speak for it."""
        return not self.measured and any(name.startswith("p_") for name in names_in(self.when))


@dataclass(frozen=True)
class Rule:
    """One symptom. knobs: of the catalogue, that change it; ways: what to do; guide: where the guides say so."""

    id: str
    title: str
    severity: str
    cause: str
    ways: tuple[str, ...]
    knobs: tuple[str, ...]
    guide: str
    seen: tuple[Evidence, ...]

    @property
    def do(self) -> str:
        """The ways out as one sentence, or as what the one of them says; "" where none is left."""
        text = "; ".join(way.rstrip(".") for way in self.ways)
        knob = "_" in text.partition(" ")[0]  # a name stays as it is typed
        return f"{text[:1] if knob else text[:1].upper()}{text[1:]}." if text else ""


@dataclass(frozen=True)
class Finding:
    """A rule that fired. ceiling: the share of the step that its cure can bring at most [1]; None: not time.

    measured: False when only plan and prediction speak for it. words: names of the facts that its evidence rests on.
    """

    rule: Rule
    evidence: str
    ceiling: float | None
    measured: bool = True
    words: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        rule = self.rule
        return {
            "id": rule.id,
            "title": rule.title,
            "severity": rule.severity,
            "evidence": self.evidence,
            "cause": rule.cause,
            "do": rule.do,
            "knobs": list(rule.knobs),
            "guide": rule.guide,
            "ceiling_share": self.ceiling,
            "measured": self.measured,
        }


@dataclass(frozen=True)
class Diagnosis:
    """findings: faults first, then what is measured, by ceiling; what is left over last.

    unseen: rules that nothing measured can judge here, with the facts that are missing; clear: rules that hold not.
    """

    findings: tuple[Finding, ...]
    unseen: dict[str, tuple[str, ...]]
    clear: tuple[str, ...]


@lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """The file: `facts`, `rules`, `not_visible`."""
    with TABLE.open("rb") as file:
        return tomllib.load(file)


@lru_cache(maxsize=1)
def load_rules() -> tuple[Rule, ...]:
    """Every rule of the file."""
    return tuple(
        Rule(
            id=name,
            title=record["title"],
            severity=record["severity"],
            cause=record["cause"],
            ways=(record["do"],) if isinstance(record["do"], str) else tuple(record["do"]),
            knobs=tuple(record.get("knobs", ())),
            guide=record["guide"],
            seen=tuple(
                Evidence(each["when"], each["shows"], str(each.get("ceiling", ""))) for each in record["seen"]
            ),
        )
        for name, record in table()["rules"].items()
    )


@lru_cache(maxsize=512)
def compiled(text: str) -> CodeType:
    """An expression of the file as code; nothing but arithmetic and comparisons is allowed."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        assert isinstance(node, ALLOWED), f"{text}: {type(node).__name__} is not allowed"
        assert not isinstance(node, ast.Call) or (
            isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        )
    return compile(tree, "diagnoses.toml", "eval")


def names_in(text: str) -> set[str]:
    """Names in an expression of the file; none in an empty one."""
    tree = ast.parse(text or "0", mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def value(text: str, facts: Facts) -> Any:
    """What an expression of the file gives. Unseen when it needs an absent fact."""
    return eval(compiled(text), {"__builtins__": {}}, facts)


class Words(string.Formatter):
    """Numbers in sentences: {x:%} a share, {x:s} a time, {x:gib} memory, {x:x} a ratio, {x:lines} lines of a log."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """One number with its unit."""
        if format_spec == "%":
            return f"{100 * value:.1f} %"
        if format_spec == "s":
            for unit, scale in (("s", 1.0), ("ms", 1e-3)):
                if abs(value) >= scale:
                    return f"{value / scale:.3g} {unit}"
            return f"{value / 1e-6:.3g} us"
        if format_spec == "gib":
            return f"{value / 2**30:.1f} GiB"
        if format_spec == "lines":
            return f"{value} line" if value == 1 else f"{value} lines"
        if format_spec == "x":
            return f"{value:.2f}"
        return str(super().format_field(value, format_spec))


def diagnose(facts: Mapping[str, Any], apart: bool = False) -> Diagnosis:
    """Every rule against the facts. apart: the prediction is known to be of another run than the facts.

    A run quicker than the prediction's interval is not the run predicted either. Then nothing is inferred from
    predicted seconds alone; where that is known by other signs, the step time is not judged by the interval at all.
    """
    known = Facts(facts)
    step, low = facts.get("step"), facts.get("p_low")
    another = step is not None and low is not None and step < low
    findings: list[Finding] = []
    unseen: dict[str, tuple[str, ...]] = {}
    clear: list[str] = []
    for rule in load_rules():
        missing: list[str] = []
        judged, fired = not any(evidence.measured for evidence in rule.seen), None
        for evidence in rule.seen:
            if evidence.inferred and (apart or (another and rule.severity != "rest")):
                continue
            try:
                holds = value(evidence.when, known)
                judged = judged or evidence.measured
                if not holds:
                    continue
                ceiling = float(value(evidence.ceiling, known)) if evidence.ceiling else None
                text = Words().vformat(evidence.shows, (), known)
            except Unseen as lack:
                missing.append(str(lack.args[0]))
                continue
            share = None if ceiling is None else min(max(ceiling, 0.0), 1.0)
            fired = Finding(rule, text, share, evidence.measured, frozenset(evidence.words))
            break
        if fired:
            findings.append(fired)
        elif missing and (not judged or len(missing) == len(rule.seen)):
            unseen[rule.id] = tuple(dict.fromkeys(missing))
        else:
            clear.append(rule.id)
    findings.sort(
        key=lambda each: (SEVERITIES.index(each.rule.severity), not each.measured, -(each.ceiling or 0.0))
    )
    return Diagnosis(tuple(findings), unseen, tuple(clear))
