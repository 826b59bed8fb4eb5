"""Ledgers compiled to NumPy: one line per quantity, over arrays of plans, cached on disk.

The compiled text is plain Python made from the sympy expressions. Scalars (model, hardware) are
gathered in front of products, so that each array operation is done once; quantities an output does
not need are left out; temporaries are freed after their last use to stay in the processor's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.symbols import BY_NAME
from costmodel.term import Ledger, Term

Function = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class CompiledModel:
    """What evaluation and explanation need, without sympy.

    search evaluates the few numbers that rank plans, host those that `costmodel.host_memory` compares, full every
    entry: of inputs that are arrays or numbers, and broadcast. entries holds name, title, unit, printed expression and
    formula of each; trees the breakdowns by name.
    """

    search: Function
    host: Function
    full: Function
    entries: dict[str, dict[str, str]]
    trees: dict[str, Term]


def compile_model(
    build: Callable[[], tuple[Ledger, dict[str, Term]]],
    outputs: Iterable[str],
    host: Iterable[str],
    family: str,
) -> CompiledModel:
    """Compile the ledger that `build` makes, or read it from the cache when no source file changed.

    outputs, host: entries that `CompiledModel.search` and `CompiledModel.host` give.
    """
    path = cache_folder() / f"{family}-{SOURCES}.json"
    record = kept_record(path, {"search", "host", "full", "entries", "trees"})
    if record is None:
        ledger, trees = build()
        lines = _lines(ledger)
        record = {
            "search": _source(ledger, lines, list(outputs), free=True),
            "host": _source(ledger, lines, list(host), free=True),
            "full": _source(ledger, lines, list(ledger.entries), free=False),
            "entries": {
                entry.name: {
                    "title": entry.title,
                    "unit": entry.unit,
                    "expression": str(entry.expr),
                    "formula": entry.formula,
                }
                for entry in ledger.entries.values()
            },
            "trees": {name: tree_to_list(tree) for name, tree in trees.items()},
        }
        keep_record(path, record)
    return CompiledModel(
        search=_function(record["search"]),
        host=_function(record["host"]),
        full=_function(record["full"]),
        entries=record["entries"],
        trees={name: tree_from_list(tree) for name, tree in record["trees"].items()},
    )


def cache_folder() -> Path:
    """Folder of compiled models: $ADVISOR_CACHE, else the user's cache folder."""
    if os.environ.get("ADVISOR_CACHE"):
        return Path(os.environ["ADVISOR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "advisor"


def _sources_digest() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Of the files as they were when this process started: what it compiles comes from those.
SOURCES = _sources_digest()


def kept_record(path: Path, keys: set[str]) -> dict[str, Any] | None:
    """What was compiled earlier; None where there is nothing whole with these keys."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        return record if keys <= set(record) else None
    except (OSError, ValueError, TypeError):
        return None


def keep_record(path: Path, record: dict[str, Any]) -> None:
    """Write whole or not at all; without a writable cache the model is compiled again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump(record, file)
        os.replace(file.name, path)
    except OSError:
        pass


def _function(source: str) -> Function:
    import numpy

    namespace: dict[str, Any] = {
        "ceiling": numpy.ceil,
        "maximum": numpy.maximum,
        "minimum": numpy.minimum,
        "log": numpy.log,
        "sqrt": numpy.sqrt,
    }
    exec(compile(source, "<cost model>", "exec"), namespace)
    function: Function = namespace["evaluate"]
    return function


def _lines(ledger: Ledger) -> dict[str, str]:
    """Python text of every entry, in the order of the ledger."""
    printer = _printer()
    printer.arrays = {entry.name for entry in BY_NAME.values() if entry.group == "plan"}
    lines = {}
    for name, entry in ledger.entries.items():
        if any(symbol.name in printer.arrays for symbol in entry.expr.free_symbols):
            printer.arrays.add(name)
        lines[name] = f"{name} = {printer.doprint(entry.expr)}"
    return lines


def _source(ledger: Ledger, lines: dict[str, str], outputs: list[str], free: bool) -> str:
    """Python text of `evaluate(v)`, which maps inputs by name to the outputs by name."""
    needed: set[str] = set()
    inputs: set[str] = set()
    waiting = list(outputs)
    uses: dict[str, set[str]] = {}
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        if name in BY_NAME:
            inputs.add(name)
            continue
        needed.add(name)
        uses[name] = {str(symbol) for symbol in ledger.entries[name].expr.free_symbols}
        waiting.extend(uses[name])
    order = [name for name in ledger.entries if name in needed]
    last_use: dict[str, str] = {}
    for name in order:
        for used in uses[name]:
            last_use[used] = name
    text = ["def evaluate(v):"]
    text += [f"    {name} = v[{name!r}]" for name in sorted(inputs)]
    for name in order:
        text.append(f"    {lines[name]}")
        finished = sorted(used for used in uses[name] if last_use[used] == name and used not in outputs)
        if free and finished:
            text.append(f"    del {', '.join(finished)}")
    text.append("    return {" + ", ".join(f"{name!r}: {name}" for name in outputs) + "}")
    return "\n".join(text) + "\n"


def scalars_first(base: Any) -> Any:
    """A sympy code printer over `base` whose products multiply their scalars before they touch an array.

    `costmodel.javascript` prints with it too, so that both languages add and multiply in the same order.
    """

    class ScalarsFirst(base):  # type: ignore[misc]
        """Text of expressions; minimum, maximum, ceiling and log are functions that the text's reader has."""

        arrays: set[str]
        known: dict[Any, bool]

        def _is_array(self, expr: Any) -> bool:
            # An expression is printed once all of its symbols are defined, so what is known stays true.
            if expr not in self.known:
                self.known[expr] = any(symbol.name in self.arrays for symbol in expr.free_symbols)
            return self.known[expr]

        def _group(self, factors: list[Any]) -> str:
            return "*".join(
                f"({self._print(factor)})" if factor.is_Add else self._print(factor) for factor in factors
            )

        def _print_Mul(self, expr: Any) -> str:
            import sympy

            parts: dict[tuple[bool, bool], list[Any]] = {}
            for factor in expr.args:
                below = factor.is_Pow and factor.exp.is_Rational and factor.exp.is_negative
                if below:
                    factor = sympy.Pow(factor.base, -factor.exp)
                parts.setdefault((self._is_array(factor), below), []).append(factor)
            scalar = self._group(parts.get((False, False), [])) or "1.0"
            if (False, True) in parts:
                scalar += f"/({self._group(parts[False, True])})"
            array = self._group(parts.get((True, False), []))
            text = array if scalar == "1.0" and array else f"({scalar})" + (f"*{array}" if array else "")
            if (True, True) in parts:
                text += f"/({self._group(parts[True, True])})"
            return text

        def _print_Add(self, expr: Any, order: Any = None) -> str:
            scalars = [arg for arg in expr.args if not self._is_array(arg)]
            arrays = [arg for arg in expr.args if self._is_array(arg)]
            texts = [self._print(arg) for arg in arrays]
            if scalars:
                texts.append("(" + " + ".join(self._print(arg) for arg in scalars) + ")")
            return "(" + " + ".join(texts) + ")"

        def _print_Pow(self, expr: Any, rational: bool = False) -> str:
            base = self._print(expr.base)
            if expr.exp.is_Integer and 0 < abs(int(expr.exp)) <= 3:
                power = "*".join([f"({base})"] * abs(int(expr.exp)))
                return power if expr.exp > 0 else f"(1.0/({power}))"
            return f"({base})**({self._print(expr.exp)})"

        def _fold(self, name: str, expr: Any) -> str:
            texts = sorted(self._print(arg) for arg in expr.args)
            result: str = texts[0]
            for text in texts[1:]:
                result = f"{name}({result}, {text})"
            return result

        def _print_Max(self, expr: Any) -> str:
            return self._fold("maximum", expr)

        def _print_Min(self, expr: Any) -> str:
            return self._fold("minimum", expr)

        def _print_ceiling(self, expr: Any) -> str:
            return f"ceiling({self._print(expr.args[0])})"

        def _print_log(self, expr: Any) -> str:
            return f"log({self._print(expr.args[0])})"

    return ScalarsFirst


def _printer() -> Any:
    from sympy.printing.pycode import PythonCodePrinter

    printer = scalars_first(PythonCodePrinter)({"fully_qualified_modules": False})
    printer.known = {}
    return printer


def tree_to_list(term: Term) -> list[Any]:
    """A breakdown as plain values."""
    return [term.name, term.title, term.unit, [tree_to_list(part) for part in term.parts]]


def tree_from_list(record: list[Any]) -> Term:
    """The breakdown that `tree_to_list` took apart."""
    name, title, unit, parts = record
    return Term(name, title, unit, tuple(tree_from_list(part) for part in parts))
