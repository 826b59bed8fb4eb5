"""advisor knobs: the catalogue of knobs, or one of them in full."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import asdict
from typing import Any

import click

from advisor.options import flag, value_text
from advisor.render import bold, table, wrap
from costmodel.knobs import KNOBS, Knob

_FRAMEWORKS = {"megatron_bridge": "Megatron-Bridge", "megatron_lm": "Megatron-LM", "nemo": "NeMo"}


@click.command(name="knobs")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(name: str | None, as_json: bool) -> None:
    """The knobs of a plan; with NAME, its meaning, range, framework names, when it helps and hurts.

    NAME is a knob of ours, an option, or a name of a framework.

    \b
    advisor knobs                        all of them
    advisor knobs tp                     one
    advisor knobs model.cp_comm_type     the one with that name in Megatron-Bridge
    """
    if name is None:
        records = [as_record(knob) for knob in KNOBS.values()]
        click.echo(json.dumps({"knobs": records}, indent=2) if as_json else "\n".join(catalogue()))
        return
    found = find_knobs(name)
    if as_json:
        click.echo(json.dumps({"knobs": [as_record(knob) for knob in found]}, indent=2))
    else:
        click.echo("\n\n".join("\n".join(page(knob)) for knob in found))


def as_record(knob: Knob) -> dict[str, Any]:
    """A knob as plain values."""
    return asdict(knob) | {"choices": list(knob.choices), "option": flag(knob.name)}


def catalogue() -> list[str]:
    """All knobs, a line each."""
    rows = [(knob.name, _range(knob), value_text(knob.default), knob.meaning) for knob in KNOBS.values()]
    return [
        *table(["knob", "values", "default", "meaning"], rows),
        "",
        f"{len(KNOBS)} knobs. `advisor knobs NAME` shows one in full; NAME may be a framework's.",
    ]


def page(knob: Knob) -> list[str]:
    """One knob in full."""
    rows = [
        ("option", flag(knob.name)),
        ("values", _range(knob, full=True)),
        ("default", value_text(knob.default)),
        ("changes", knob.changes),
        ("helps", knob.helps),
        ("hurts", knob.hurts),
        *((title, getattr(knob, attribute)) for attribute, title in _FRAMEWORKS.items()),
        ("source", knob.source),
    ]
    lines = [bold(f"{knob.name}: {knob.meaning}")]
    return lines + [wrap(f"{label:<16}{text}", "  ", " " * 18) for label, text in rows if text]


def find_knobs(name: str) -> list[Knob]:
    """Knobs of that name, ours first, then a framework's (last parts count). ValueError with the nearest."""
    wanted = name.strip().lstrip("-").replace("-", "_").lower()
    if wanted in KNOBS:
        return [KNOBS[wanted]]
    names = {knob.name: _words(knob) for knob in KNOBS.values()}
    last = wanted.rsplit(".", 1)[-1]
    for exact in (wanted, last):
        found = [KNOBS[knob] for knob, words in names.items() if exact in words]
        if found:
            return found
    known = {word: knob for knob, words in names.items() for word in {knob, *words}}
    near = difflib.get_close_matches(last, known, n=3, cutoff=0.5)
    suggestions = list(dict.fromkeys(known[word] for word in near))
    hint = f"Did you mean {', '.join(suggestions)}?" if suggestions else "`advisor knobs` lists them all."
    raise ValueError(f"{name!r} is not a knob of ours or of a framework. {hint}")


def _words(knob: Knob) -> set[str]:
    """Every name of a knob in the frameworks, whole and by its last part, in our spelling."""
    words: set[str] = set()
    for attribute in _FRAMEWORKS:
        for text in re.findall(r"[A-Za-z_][\w.-]*", getattr(knob, attribute).replace("--", " ")):
            whole = text.replace("-", "_").lower()
            words |= {whole, whole.rsplit(".", 1)[-1]}
    return words - {"derived", "plugins", "model", "trainer"}


def _range(knob: Knob, full: bool = False) -> str:
    if knob.kind == "int":
        return f"{knob.low} to {knob.high}" if full else f"{knob.low}.."
    if knob.kind == "bool":
        return "on, off"
    joined = ", ".join(knob.choices)
    return joined if full or len(joined) <= 24 else f"{knob.choices[0]}, ... ({len(knob.choices)})"
