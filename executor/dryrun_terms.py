"""Amounts of the model beside those of a dry run: one term each, with a verdict."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.rank_amounts import Message, RankAmounts

DIFFERENCES = Path(__file__).with_name("dryrun_differences.toml")
# Activations are counted by formulas that leave out masks, statistics and indices of a few bytes a token.
SAVED_TOLERANCE = 0.01
EQUAL, WITHIN, DOCUMENTED, DIFFERS = "equal", "within", "documented", "differs"
PASSES = ("forward", "backward")
# torch's names of collectives of lists: our word, and whether the size is that of one rank's part.
UNEVEN = {"allgather_": ("all_gather", False), "reduce_scatter_": ("reduce_scatter", True)}


@dataclass(frozen=True)
class Difference:
    """A known difference. terms: patterns of "section name"; needs: what a plan must have for it; at_most: how far
    apart the numbers may lie, as a share of the counted one [1]; at_most_units: the same in the term's unit;
    reason: who is right and why."""

    name: str
    terms: tuple[str, ...]
    needs: tuple[str, ...]
    at_most: float
    at_most_units: float
    reason: str

    def explains(self, term: str, predicted: float, counted: float, has: frozenset[str]) -> bool:
        """Whether two numbers of a term may lie apart as they do for this reason."""
        apart = abs(predicted - counted)
        near = apart <= self.at_most_units and apart <= self.at_most * abs(counted or predicted)
        return near and has.issuperset(self.needs) and any(fnmatchcase(term, each) for each in self.terms)


@dataclass(frozen=True)
class Term:
    """One amount on both sides. tolerance: 0 must be equal to the digit [1]; reason: of a documented difference."""

    section: str
    name: str
    unit: str
    predicted: float
    counted: float
    tolerance: float
    verdict: str
    reason: str = ""

    @property
    def difference(self) -> float:
        """Predicted over counted, less one; infinite when only one side has it. [1]"""
        if self.predicted == self.counted:
            return 0.0
        return self.predicted / self.counted - 1 if self.counted else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`; a difference that is no number is null."""
        apart = self.difference
        return asdict(self) | {"difference": apart if apart != float("inf") else None}


@lru_cache(maxsize=1)
def differences() -> tuple[Difference, ...]:
    """The documented differences."""
    with DIFFERENCES.open("rb") as file:
        records = tomllib.load(file)["difference"]
    return tuple(
        Difference(
            name=one["name"],
            terms=tuple(one["terms"]),
            needs=tuple(one.get("needs", ())),
            at_most=one.get("at_most", float("inf")),
            at_most_units=one.get("at_most_units", float("inf")),
            reason=" ".join(one["reason"].split()),
        )
        for one in records
    )


def compare(predicted: RankAmounts, counted: RankAmounts, features: Iterable[str] = ()) -> list[Term]:
    """All terms of one stage. features: what the plan and model have, for the documented differences."""
    has = frozenset(features)
    found: list[Term] = []
    for section, unit, exact, ours, theirs in _sections(predicted, counted):
        for name in dict.fromkeys([*ours, *theirs]):
            pair = ours.get(name, 0.0), theirs.get(name, 0.0)
            if any(pair):
                found.append(_term(section, name, unit, *pair, 0.0 if exact else SAVED_TOLERANCE, has))
    return found


Sums = Mapping[str, float]


def _sections(ours: RankAmounts, theirs: RankAmounts) -> Iterable[tuple[str, str, bool, Sums, Sums]]:
    """Section, unit, whether it must be equal, and its amounts by name on both sides."""
    yield "flops", "FLOP", True, _products(ours), _products(theirs)
    yield "messages", "byte", True, message_bytes(ours.messages), message_bytes(theirs.messages)
    yield "parameters", "1", True, ours.parameters, theirs.parameters
    yield "state", "byte", True, ours.state, theirs.state
    yield "saved", "byte", False, {"all": sum(ours.saved.values())}, {"all": sum(theirs.saved.values())}


def _products(amounts: RankAmounts) -> Sums:
    return {f"{name} {one}": entry.get(one, 0.0) for name, entry in amounts.flops.items() for one in PASSES}


def message_bytes(messages: Iterable[Message]) -> Sums:
    """Bytes of all messages of an operation, group and phase: "tp all_gather forward". [byte]

    Two pipeline stages use the group of all ranks for one of their two directions, lest they wait for each other
    (Megatron-Core 0.16.1, p2p_communication.py). With several optimizer instances groups of a part of the ranks have
    no names of ours, and a trace tells them as world: those between instances, and those of experts inside one.
    Collectives of parts that may differ in size have torch's own names; the reduce-scatter is told with one part.
    """
    found: dict[str, float] = {}
    for one in messages:
        group = one.group
        if group == "world" and one.operation in ("send", "recv"):
            group = "pp"
        elif group == "world" and one.phase in ("gradients", "parameters"):
            group = "instances" if one.operation == "all_reduce" else "edp"
        operation, parts = UNEVEN.get(one.operation, (one.operation, False))
        name = f"{group} {operation} {one.phase}"
        found[name] = found.get(name, 0) + one.total_bytes * (one.ranks if parts else 1)
    return found


def _term(
    section: str, name: str, unit: str, ours: float, theirs: float, tolerance: float, has: frozenset[str]
) -> Term:
    plain = Term(section, name, unit, ours, theirs, tolerance, EQUAL)
    if ours == theirs:
        return plain
    if abs(plain.difference) <= tolerance:
        return replace(plain, verdict=WITHIN)
    for known in differences():
        if known.explains(f"{section} {name}", ours, theirs, has):
            return replace(plain, verdict=DOCUMENTED, reason=known.reason)
    return replace(plain, verdict=DIFFERS)
