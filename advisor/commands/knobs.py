"""advisor knobs: the catalogue of knobs and settings, or one of them in full."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from advisor.commands import HELP
from advisor.options import value_text
from advisor.render import bold, table, wrap
from costmodel.knobs import CATALOGUE, INPUTS, KNOBS, SETTINGS, TOPICS, Knob
from costmodel.knobs.names import FRAMEWORKS, find

_HOMES = {
    "knob": "a field of the plan",
    "setting": "carried by the plan, [settings] of a plan file",
    "workload": "[workload] of a plan file",
    "model": "a property of the model",
}


@click.command(name="knobs", context_settings=HELP)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(name: str | None, as_json: bool) -> None:
    """The knobs of a plan; with NAME, its meaning, range, framework names, when it helps and hurts.

    NAME is a knob of ours, an option, a name in NeMo, Megatron-Bridge, Megatron-LM or Megatron-Core, or an
    environment variable. Settings follow the knobs: a plan carries them, and no prediction changes with them.

    \b
    advisor knobs                        all of them, by topic
    advisor knobs tp                     one
    advisor knobs model.cp_comm_type     the one with that name in Megatron-Bridge
    advisor knobs NCCL_NVLS_ENABLE       the one of that environment variable
    """
    if name is None:
        click.echo(json.dumps(everything(), indent=2) if as_json else "\n".join(catalogue()))
        return
    found = find_knobs(name)
    if as_json:
        click.echo(json.dumps({"knobs": [as_record(knob) for knob in found]}, indent=2))
    else:
        click.echo("\n\n".join("\n".join(page(knob)) for knob in found))


def everything() -> dict[str, Any]:
    """The whole catalogue as plain values: knobs, inputs of workload and model, settings."""
    parts = {"knobs": KNOBS, "inputs": INPUTS, "settings": SETTINGS}
    return {part: [as_record(knob) for knob in records.values()] for part, records in parts.items()}


def as_record(knob: Knob) -> dict[str, Any]:
    """A knob as plain values."""
    values = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(knob).items()
    }
    return values | {"option": "" if knob.home == "model" else knob.option}


def catalogue() -> list[str]:
    """All knobs by topic, a line each, then the settings."""
    lines: list[str] = []
    for title, records in TOPICS.items():
        rows = [
            (knob.name, values_text(knob), value_text(knob.default), knob.meaning)
            for knob in records.values()
        ]
        lines += [bold(title), *table(["knob", "values", "default", "meaning"], rows), ""]
    counts = f"{len(KNOBS)} knobs, {len(SETTINGS)} settings, which no prediction changes with"
    return [
        *lines,
        wrap(
            f"{counts}, and {len(CATALOGUE) - len(KNOBS) - len(SETTINGS)} inputs of workload and model. "
            "`advisor knobs NAME` shows one in full; NAME may be a framework's."
        ),
    ]


def page(knob: Knob) -> list[str]:
    """One knob in full."""
    said = {theirs: value_text(ours) for theirs, ours in knob.words.items()}
    words = ", ".join(f"{theirs} is {ours}" for theirs, ours in said.items() if theirs != ours)
    rows = [
        ("option", "" if knob.home == "model" else knob.option),
        ("values", values_text(knob, full=True)),
        ("default", value_text(knob.default)),
        ("stands in", _HOMES[knob.home]),
        ("changes", knob.changes),
        ("helps", knob.helps),
        ("hurts", knob.hurts),
        ("effect", knob.effect),
        *((title, getattr(knob, key)) for key, title in FRAMEWORKS.items()),
        ("also called", ", ".join(knob.aliases)),
        ("their words", words),
        ("source", knob.source),
    ]
    lines = [bold(wrap(f"{knob.name}: {knob.meaning}"))]
    return lines + [wrap(f"{label:<16}{text}", "  ", " " * 18) for label, text in rows if text]


def find_knobs(name: str) -> list[Knob]:
    """Knobs and settings of that name; see `costmodel.knobs.names.find`."""
    return find(name)


def values_text(knob: Knob, full: bool = False) -> str:
    """The values a knob takes, in a word or two unless in full."""
    if knob.kind in ("int", "float"):
        return f"{knob.low} to {knob.high}" if full else f"{knob.low}.."
    if knob.kind in ("bool", "text"):
        return {"bool": "on, off", "text": "text"}[knob.kind]
    joined = ", ".join(choice or "none" for choice in knob.choices)
    return joined if full or len(joined) <= 24 else f"{knob.choices[0]}, ... ({len(knob.choices)})"
