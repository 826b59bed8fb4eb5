"""Ledgers compiled to NumPy: one line per quantity, over arrays of plans, cached on disk.

The compiled text is plain Python made from the sympy expressions by `costmodel.expression_text`. Scalars (model,
hardware) are gathered in front of products and what several quantities share has a line of its own, so that each array
operation is done once; quantities an output does not need are left out; temporaries are freed after their last use to
stay in the processor's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.expression_text import expression_printer, printed, readable
from costmodel.symbols import BY_NAME
from costmodel.term import Ledger, Term

Function = Callable[[dict[str, Any]], dict[str, Any]]
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class CompiledModel:
    """What evaluation and explanation need, without sympy.

    search evaluates the few numbers that rank plans, host those that `costmodel.host_memory` compares, full every
    entry: of inputs that are arrays or numbers, and broadcast. entries holds title, unit and formula of each; trees
    the breakdowns by name; expressions the text of each entry by name, made when it is first asked for.
    """

    search: Function
    host: Function
    full: Function
    entries: dict[str, dict[str, str]]
    trees: dict[str, Term]
    expressions: Callable[[], dict[str, str]]


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
    built = cache(build)
    record = kept_record(path, {"search", "host", "full", "entries", "trees"})
    if record is None:
        ledger, trees = built()
        expressions = {name: entry.expr for name, entry in ledger.entries.items()}
        texts = _texts(expressions)
        record = {
            "search": _source(texts, list(outputs), free=True),
            "host": _source(texts, list(host), free=True),
            "full": _source(texts, list(ledger.entries), free=False),
            "entries": {
                entry.name: {
                    "title": entry.title,
                    "unit": entry.unit,
                    "formula": entry.formula,
                }
                for entry in ledger.entries.values()
            },
            "trees": {name: tree_to_list(tree) for name, tree in trees.items()},
        }
        keep_record(path, record)

    @cache
    def told() -> dict[str, str]:
        return _expressions(path.with_suffix(".text.json"), built)

    return CompiledModel(
        search=_function(record["search"]),
        host=_function(record["host"]),
        full=_function(record["full"]),
        entries=record["entries"],
        trees={name: tree_from_list(tree) for name, tree in record["trees"].items()},
        expressions=told,
    )


def _expressions(path: Path, build: Callable[[], tuple[Ledger, dict[str, Term]]]) -> dict[str, str]:
    """Text of every entry by name, from the cache where it is."""
    record = kept_record(path, {"expressions"})
    if record is None:
        ledger, _ = build()
        record = {"expressions": readable({name: entry.expr for name, entry in ledger.entries.items()})}
        keep_record(path, record)
    told: dict[str, str] = record["expressions"]
    return told


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


def _texts(expressions: Mapping[str, Any]) -> dict[str, str]:
    """Python text of every expression and of what they share, by name, each after what it uses."""
    from sympy.printing.pycode import PythonCodePrinter

    printer = expression_printer(PythonCodePrinter)({"fully_qualified_modules": False})
    return dict(printed(printer, expressions))


def _source(texts: Mapping[str, str], outputs: list[str], free: bool) -> str:
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
        uses[name] = {word for word in _WORD.findall(texts[name]) if word in texts or word in BY_NAME}
        waiting.extend(uses[name])
    order = [name for name in texts if name in needed]
    last_use: dict[str, str] = {}
    for name in order:
        for used in uses[name]:
            last_use[used] = name
    text = ["def evaluate(v):"]
    text += [f"    {name} = v[{name!r}]" for name in sorted(inputs)]
    for name in order:
        text.append(f"    {name} = {texts[name]}")
        finished = sorted(used for used in uses[name] if last_use[used] == name and used not in outputs)
        if free and finished:
            text.append(f"    del {', '.join(finished)}")
    text.append("    return {" + ", ".join(f"{name!r}: {name}" for name in outputs) + "}")
    return "\n".join(text) + "\n"


def tree_to_list(term: Term) -> list[Any]:
    """A breakdown as plain values."""
    return [term.name, term.title, term.unit, [tree_to_list(part) for part in term.parts]]


def tree_from_list(record: list[Any]) -> Term:
    """The breakdown that `tree_to_list` took apart."""
    name, title, unit, parts = record
    return Term(name, title, unit, tuple(tree_from_list(part) for part in parts))
