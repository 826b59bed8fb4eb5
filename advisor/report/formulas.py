"""Formulas behind a plan's terms: typeset, with values, meanings and sources of everything they are made of."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from costmodel.compiled import SOURCES, cache_folder
from costmodel.formulas import described
from costmodel.plan_file import write_whole
from costmodel.prediction import Prediction, TermValue
from costmodel.symbols import BY_NAME, INPUTS

PLACES = {entry.name: place for place, entry in enumerate(INPUTS)}
# How a source says what it is; the first that it says counts.
_KINDS = (
    (re.compile(r", datasheet,"), "data sheet"),
    (re.compile(r", derived,"), "derived"),
    (re.compile(r", measured,"), "measured"),
    (re.compile(r", assumed,"), "assumed"),
    (re.compile(r"fitted by"), "fitted"),
    (re.compile(r"\bprior\b|fit_priors|\bassumed\b"), "assumed"),
    (re.compile(r"^model "), "published configuration"),
    (re.compile(r"^workload"), "asked for"),
    (re.compile(r"precision\.toml|stacks\.toml"), "definition"),
    (re.compile(r"^link "), "data sheet"),
)
# A source in a repository: owner+repository@release:path, as the model files write it.
_REPOSITORY = re.compile(r"([\w.-]+)\+([\w.-]+)@([\w.-]+):([\w./-]+)")
_ADDRESS = re.compile(r"https?://[^\s,;)]+")


def formulas_of(prediction: Prediction) -> dict[str, Any]:
    """Everything that the terms of a prediction are made of: entries, inputs, and documents of the formulas.

    entries: name -> title, unit, value, formula, uses (names in the expression). inputs: name -> value, unit,
    meaning, source, kind, link. documents: formula -> text of its definition. mathml: name -> the expression.
    """
    typeset = _typeset(prediction.features)
    told = described(prediction.features)
    names = _needed(_terms(prediction), typeset)
    entries = {
        name: {
            "title": prediction.platform.told(told[name]["title"]),
            "unit": told[name]["unit"],
            "value": prediction.behind(name)[name],
            "formula": told[name]["formula"],
            "uses": typeset[name]["uses"],
        }
        for name in names
    }
    used = {word for name in names for word in typeset[name]["uses"] if word in BY_NAME}
    documents = {told[name]["formula"]: told[name]["doc"] for name in names if told[name]["doc"]}
    return {
        "entries": entries,
        "inputs": {name: _input(prediction, name) for name in sorted(used, key=PLACES.__getitem__)},
        "documents": documents,
        "mathml": {name: typeset[name]["mathml"] for name in names},
    }


def _terms(prediction: Prediction) -> Iterable[str]:
    waiting: list[TermValue] = [prediction.time, prediction.memory]
    while waiting:
        term = waiting.pop()
        yield term.name
        waiting += term.parts


def _needed(names: Iterable[str], typeset: dict[str, dict[str, Any]]) -> list[str]:
    """Those names and everything below them, in the order of the ledger."""
    waiting, seen = [name for name in names if name in typeset], set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [word for word in typeset[name]["uses"] if word in typeset]
    return [name for name in typeset if name in seen]


def _input(prediction: Prediction, name: str) -> dict[str, Any]:
    """One input symbol: value, unit, meaning, and where it was read."""
    entry = BY_NAME[name]
    source = prediction.sources.get(name, "")
    record: dict[str, Any] = {
        "value": prediction.values[name],
        "unit": entry.unit,
        "meaning": prediction.platform.told(entry.meaning),
        "source": source or "the plan",
        "kind": kind_of_source(source) if source else "chosen",
    }
    link = link_of_source(source)
    return record | ({"link": link} if link else {})


def kind_of_source(source: str) -> str:
    """How a number is known, from the words of its source.

    Examples
    --------
    >>> kind_of_source("gpu b200, hbm_bandwidth: 8 TB/s, datasheet, NVIDIA DGX B200 datasheet")
    'data sheet'
    """
    return next((kind for words, kind in _KINDS if words.search(source)), "stated")


def link_of_source(source: str) -> str:
    """The address of a source that names one, or a file of a public repository; else empty.

    Examples
    --------
    >>> link_of_source("model m: owner+name@v1:src/a.py class A")
    'https://github.com/owner/name/blob/v1/src/a.py'
    """
    if found := _ADDRESS.search(source):
        return found[0]
    if found := _REPOSITORY.search(source):
        return "https://github.com/{}/{}/blob/{}/{}".format(*found.groups())
    return ""


def _typeset(features: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Name -> mathml and uses of every entry of a family, from the cache where it is fresh."""
    printer = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    path = cache_folder() / f"{'-'.join(sorted(features))}-{SOURCES}-mathml-{printer}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict):
            return record
    except (OSError, ValueError):
        pass
    record = _printed(features)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(record))
    except OSError:
        pass  # without a writable cache it is typeset again next time
    return record


def _printed(features: frozenset[str]) -> dict[str, dict[str, Any]]:
    from sympy.printing.mathml import MathMLPresentationPrinter

    from costmodel.step import build_step

    class Names(MathMLPresentationPrinter):  # type: ignore[misc]
        """Presentation MathML in which a symbol is one identifier, spelt as everywhere else."""

        def _print_Symbol(self, symbol: Any, style: str = "plain") -> Any:
            node = self.dom.createElement("mi")
            node.appendChild(self.dom.createTextNode(symbol.name))
            return node

    printer = Names()
    ledger, _ = build_step(features)
    return {
        name: {
            "mathml": _lean(printer.doprint(entry.expr)),
            "uses": sorted(symbol.name for symbol in entry.expr.free_symbols),
        }
        for name, entry in ledger.entries.items()
    }


def _lean(mathml: str) -> str:
    """The same formula in fewer letters: characters for their entities, no row around a single child.

    A product has its dot: names are words and numbers have digits, which must not run together.
    """
    text = mathml.replace("&InvisibleTimes;", "\u22c5").replace("&ApplyFunction;", "\u2061")
    while True:
        shorter = re.sub(r"<mrow>(<(m[ino])>[^<]*</\2>)</mrow>", r"\1", text)
        if shorter == text:
            return text
        text = shorter
