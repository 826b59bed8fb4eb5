"""Ledgers printed as JavaScript: the same expressions as `costmodel.compiled`, for the page of a report.

The printer is sympy's, with what `costmodel.expression_text` gives both languages, so that both add and multiply in the
same order and compute once what stands in several places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from costmodel.compiled import (
    SOURCES,
    cache_folder,
    keep_record,
    kept_record,
    tree_from_list,
    tree_to_list,
)
from costmodel.expression_text import expression_printer, printed
from costmodel.term import Ledger, Term

# What printed text calls; `mod` is Python's remainder, which has the sign of the divisor.
PRELUDE = """const {max: maximum, min: minimum, ceil: ceiling, floor, log, sqrt, exp, abs} = Math;
const mod = (a, b) => a - b * Math.floor(a / b);
"""
# Words of the language, which no entry of a ledger and no local name may be.
RESERVED = frozenset(
    """
    arguments await break case catch class const continue debugger default delete do else enum eval export extends
    false finally for function if implements import in instanceof interface let new null package private protected
    public return static super switch this throw true try typeof var void while with yield
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Family:
    """A family of models and plans for a page.

    source: of `(v) => values`, every entry of the ledger by name from all inputs by name; trees: breakdowns.
    """

    source: str
    trees: dict[str, Term]


@lru_cache(maxsize=8)
def family_javascript(features: frozenset[str]) -> Family:
    """The ledger of `costmodel.step.build_step` for a family, kept on disk as `costmodel.compiled` keeps it."""
    path = cache_folder() / f"{'-'.join(sorted(features))}-{SOURCES}.js.json"
    record = kept_record(path, {"source", "trees"})
    if record is None:
        from costmodel.step import build_step

        ledger, trees = build_step(features)
        record = {
            "source": ledger_javascript(ledger),
            "trees": {name: tree_to_list(tree) for name, tree in trees.items()},
        }
        keep_record(path, record)
    return Family(record["source"], {name: tree_from_list(tree) for name, tree in record["trees"].items()})


def ledger_javascript(ledger: Ledger) -> str:
    """A function of JavaScript that maps inputs by name to every entry of the ledger by name."""
    expressions = {name: entry.expr for name, entry in ledger.entries.items()}
    inputs = sorted(
        {symbol.name for expr in expressions.values() for symbol in expr.free_symbols} - set(expressions)
    )
    lines = [f"const {{{', '.join(inputs)}}} = v;"]
    for name, text in printed(_printer(), expressions):
        assert name not in RESERVED, f"{name} is a word of JavaScript"
        lines.append(f"const {name} = {text};")
    body = "\n".join(lines)
    return f"(v) => {{\n{PRELUDE}{body}\nreturn {{{', '.join(expressions)}}};\n}}"


def expression_javascript(expr: Any) -> str:
    """One expression as JavaScript text; its functions are those of PRELUDE."""
    text: str = _printer().doprint(expr)
    return text


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text of it ends the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def object_javascript(values: Mapping[str, str]) -> str:
    """An object literal of names and the texts that compute them."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in values.items()) + "}"


def _printer() -> Any:
    from sympy.printing.jscode import JavascriptCodePrinter

    class JavaScript(expression_printer(JavascriptCodePrinter)):  # type: ignore[misc]
        """JavaScript text with Python's meaning of every operation."""

        prefix = "$$"

        def _print_Float(self, expr: Any) -> str:
            return repr(float(expr))

        def _print_Rational(self, expr: Any) -> str:
            return f"({int(expr.p)}/{int(expr.q)})"

        def _print_Integer(self, expr: Any) -> str:
            return f"({int(expr)})" if expr < 0 else str(int(expr))

        def _print_floor(self, expr: Any) -> str:
            return f"floor({self._print(expr.args[0])})"

        def _print_exp(self, expr: Any) -> str:
            return f"exp({self._print(expr.args[0])})"

        def _print_Abs(self, expr: Any) -> str:
            return f"abs({self._print(expr.args[0])})"

        def _print_Mod(self, expr: Any) -> str:
            return f"mod({self._print(expr.args[0])}, {self._print(expr.args[1])})"

        def _print_Relational(self, expr: Any) -> str:
            sign = {"==": "===", "!=": "!=="}.get(expr.rel_op, expr.rel_op)
            return f"(({self._print(expr.lhs)}) {sign} ({self._print(expr.rhs)}))"

        def _print_And(self, expr: Any) -> str:
            return "(" + " && ".join(self._print(arg) for arg in expr.args) + ")"

        def _print_Or(self, expr: Any) -> str:
            return "(" + " || ".join(self._print(arg) for arg in expr.args) + ")"

        def _print_Not(self, expr: Any) -> str:
            return f"(!({self._print(expr.args[0])}))"

    return JavaScript()
