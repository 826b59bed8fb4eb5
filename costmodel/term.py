"""A cost as a tree of named expressions: `Term`, and the `Ledger` in which they are written down.

Every quantity of the model is one entry of a ledger: a name, a sympy expression in inputs and in
earlier entries, a unit, and the formula (a documented function) it came from. The same entries are
printed by `explain --formulas`, compiled for search (`costmodel.compiled`) and checked in tests.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from costmodel.amount import Amount
from costmodel.symbols import BY_NAME, symbol


@dataclass(frozen=True)
class Entry:
    """One named quantity: `expr` is in inputs and earlier entries; `formula` says where it comes from."""

    name: str
    title: str
    unit: str
    expr: Any
    formula: str


@dataclass(frozen=True)
class Term:
    """A node of a breakdown: its value is the ledger entry `name`, and it is the sum of its parts."""

    name: str
    title: str
    unit: str
    parts: tuple[Term, ...] = ()

    def walk(self) -> Iterable[Term]:
        """This term and every term below it, parents first."""
        yield self
        for part in self.parts:
            yield from part.walk()


def formula_name(function: Callable[..., Any] | str) -> str:
    """`costmodel.timing.kernels.gemm_time` for a function; text stays text."""
    return function if isinstance(function, str) else f"{function.__module__}.{function.__qualname__}"


@lru_cache(maxsize=512)
def formula_source(formula: str) -> str:
    """Where a formula comes from, as its docstring says, or its module's; '' for a name that is no function.

    Examples
    --------
    >>> formula_source("costmodel.schedule.bubble_over_ideal")
    'D. Narayanan et al., SC 2021, sec. 2.2, arXiv:2104.04473'
    """
    module, _, function = formula.rpartition(".")
    if not module.startswith("costmodel."):
        return ""
    home = importlib.import_module(module)
    own = _cited(getattr(home, function).__doc__ or "")
    return own if own and own != "module docstring" else _cited(home.__doc__ or "")


def _cited(doc: str) -> str:
    """The words behind `Source:` or under `References`, to the end of their paragraph."""
    found = re.search(r"\bSources?: (.+?)(?:\n\s*\n|$)|References\n\s*-+\n(.+?)(?:\n\s*\n|$)", doc, re.DOTALL)
    return " ".join((found[1] or found[2]).split()).rstrip(".") if found else ""


@dataclass
class Ledger:
    """Named quantities in order of definition; names are unique and never those of inputs."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def define(
        self, name: str, expr: Amount, unit: str, formula: Callable[..., Any] | str, title: str = ""
    ) -> Amount:
        """Write down one quantity; returns the symbol that stands for it in later expressions."""
        import sympy

        assert name not in self.entries, f"{name} is defined twice"
        assert name not in BY_NAME, f"{name} is an input"
        self.entries[name] = Entry(
            name, title or name.replace("_", " "), unit, sympy.sympify(expr), formula_name(formula)
        )
        return symbol(name)

    def term(self, name: str, title: str, expr: Amount, unit: str, formula: Callable[..., Any] | str) -> Term:
        """A leaf of a breakdown."""
        self.define(name, expr, unit, formula, title)
        return Term(name, title, unit)

    def total(self, name: str, title: str, parts: Iterable[Term]) -> Term:
        """A term that is the sum of its parts."""
        import sympy

        parts = tuple(parts)
        self.define(
            name, sympy.Add(*(symbol(part.name) for part in parts)), parts[0].unit, "sum of its parts", title
        )
        return Term(name, title, parts[0].unit, parts)
