"""Expressions as text: what repeats has one line of its own, and readers see what sympy would print."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
import sympy
from sympy.printing.pycode import PythonCodePrinter

from costmodel.expression_text import expression_printer, printed, readable
from costmodel.formulas import DENSE
from costmodel.step import build_step
from costmodel.term import Ledger

X, Y, Z = sympy.symbols("tp h s", positive=True)
SHARED = sympy.Max(X * Y, Z + 1)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return build_step(DENSE)[0]


def lines(expressions: dict[str, sympy.Expr]) -> dict[str, str]:
    printer = expression_printer(PythonCodePrinter)({"fully_qualified_modules": False})
    return dict(printed(printer, expressions))


def test_what_two_quantities_share_is_printed_once_before_them():
    found = lines({"first": SHARED + X, "second": sympy.sqrt(SHARED)})
    shared, *others = found
    assert others == ["first", "second"]
    assert found[shared].startswith("maximum(")
    assert all("maximum" not in found[name] and shared in found[name] for name in others)


def test_what_stands_once_has_no_line_of_its_own():
    assert list(lines({"first": SHARED + X, "second": X * Y})) == ["_part0", "first", "second"]
    assert list(lines({"first": SHARED + X, "second": X + 1})) == ["first", "second"]


def test_a_family_works_out_no_maximum_twice(ledger):
    """Each was worked out as often as it stood somewhere: seven times the work of a prediction."""
    found = lines({name: entry.expr for name, entry in ledger.entries.items()})
    nodes = [node for text in found.values() for node in ast.walk(ast.parse(text))]
    calls = Counter(ast.unparse(node) for node in nodes if isinstance(node, ast.Call))
    repeated = sum(times - 1 for times in calls.values())
    assert repeated < 0.05 * len(calls)  # numbers alone, which cost nothing


def test_readers_see_what_sympy_prints(ledger):
    expressions = {name: entry.expr for name, entry in ledger.entries.items()}
    expressions |= {"number": sympy.Float(1.0), "twice": 2.5 * SHARED + 1.0 / SHARED}
    assert readable(expressions) == {name: str(expr) for name, expr in expressions.items()}
