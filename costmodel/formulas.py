"""Entries of the ledger as formulas to read: with their docstrings, and with the numbers of a prediction put in."""

from __future__ import annotations

import importlib
import re
from functools import lru_cache

from costmodel.family import compiled_family
from costmodel.prediction import CORRECTION, Prediction

DENSE = frozenset({"attention", "mlp"})


def all_formulas(features: frozenset[str] = DENSE) -> list[dict[str, str]]:
    """Every entry of a family's ledger in order: name, title, unit, expression, formula and its docstring."""
    expressions = compiled_family(features).expressions()
    return [{**entry, "expression": expressions[name]} for name, entry in described(features).items()]


def described(features: frozenset[str]) -> dict[str, dict[str, str]]:
    """The same by name, without the expressions, whose text takes longest to make."""
    return {
        name: {"name": name, **entry, "doc": _docstring(entry["formula"])}
        for name, entry in compiled_family(features).entries.items()
    }


@lru_cache(maxsize=256)
def _docstring(formula: str) -> str:
    module, _, function = formula.rpartition(".")
    if not module.startswith("costmodel."):
        return ""
    return (getattr(importlib.import_module(module), function).__doc__ or "").strip()


def explain_entry(prediction: Prediction, name: str) -> list[str]:
    """One entry in lines: expression, with numbers put in, value, meaning, where inputs come from.

    The step of a simulated pipeline is told with what the simulation changes: the ledger has the closed form alone.
    """
    compiled = compiled_family(prediction.features)
    entry, expression = compiled.entries[name], compiled.expressions()[name]
    values = prediction.behind(name)
    words = dict.fromkeys(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", expression))
    numbered = re.sub(
        r"[A-Za-z_][A-Za-z0-9_]*",
        lambda match: f"{values[match[0]]:.6g}" if match[0] in values else match[0],
        expression,
    )
    doc = _docstring(entry["formula"])
    lines = [
        f"{name} [{entry['unit']}]: {prediction.platform.told(entry['title'])}",
        f"  = {expression}",
        f"  = {numbered}",
        f"  = {values[name]:.6g} {entry['unit']}",
        f"  {entry['formula']}" + (f": {doc.splitlines()[0]}" if doc else ""),
    ]
    lines += [f"  {word}: {prediction.sources[word]}" for word in words if word in prediction.sources]
    if name == prediction.time.name and (corrections := correction_lines(prediction)):
        lines += [*corrections, f"  so that the step is {prediction.step_time_s:.6g} s"]
    return lines


def correction_lines(prediction: Prediction) -> list[str]:
    """What simulating the pipeline adds to the closed form, as `explain_entry` tells a term; none where it is not."""
    found = next((part for part in prediction.time.parts if part.name == CORRECTION), None)
    if found is None:
        return []
    doc = _docstring(found.formula)
    return [
        f"{found.name} [{found.unit}]: {found.title}",
        f"  = {found.value:.6g} {found.unit}",
        f"  {found.formula}: {doc.splitlines()[0]}",
    ]
