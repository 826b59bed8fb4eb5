"""Names of knobs in the framework that trains, and options of ways out in that whose configuration was read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from advisor.render import heading, table, wrap
from costmodel.knobs import CATALOGUE
from costmodel.knobs.names import FRAMEWORKS, is_inverse
from costmodel.knobs.record import Knob
from costmodel.stack import months, shown_stack, vendor_note

# Framework whose names are shown where a stack's own are not on file.
OTHERWISE = "megatron_bridge"
DERIVED = "follows from the others"
NO_NAME = "no name on file"

# An option of ours in a text, as what it is without --no-, and the word behind it.
_OPTION = re.compile(r"--(no-)?([a-z][a-z0-9-]*)(?: (\w+))?")


def names_section(texts: Iterable[str], source: str, stack: str | None) -> list[str]:
    """A table of the options in the texts with what to write in a configuration of `source`, or nothing.

    source: a value of --from. An option that the framework has under no name on file is told as such.
    """
    key = source.replace("-", "_")
    by_option = {knob.option: knob for knob in CATALOGUE.values()}
    rows: dict[str, str] = {}
    for match in _OPTION.finditer(" ".join(texts)):
        negative, word, value = match.groups()
        option = f"--{negative or ''}{word}"
        knob = by_option.get(f"--{word}")
        if knob is not None and option not in rows:
            rows[option] = _to_write(knob, key, bool(negative) or value == "none")
    if not rows:
        return []
    title, note = FRAMEWORKS[key], names_shown(stack)[1]
    lines = [heading(f"Those options in {title}"), *table(["option", "there"], list(rows.items()))]
    return [*lines, wrap(note, "  ", "  ")] if note else lines


def _to_write(knob: Knob, key: str, off: bool) -> str:
    """What a configuration says for it: names of arguments that mean the opposite are left out, or written instead."""
    text: str = getattr(knob, key) or knob.env or ", ".join(knob.aliases) or NO_NAME
    text = text.replace("(derived)", DERIVED)
    if not _arguments(text):
        return f"{text}, off" if off and text != NO_NAME else text
    return _said(knob, text, off)


def _arguments(text: str) -> list[str]:
    """The names of a text of arguments such as "--fp16, --bf16"; none where it is of another kind."""
    names = [name.strip() for name in text.split(",")]
    return names if all(name.startswith("--") for name in names) else []


def _said(knob: Knob, text: str, off: bool) -> str:
    """Arguments to write and to leave out, where one that is there says that the knob is on, or off."""
    names = _arguments(text)
    opposite = [knob.kind == "bool" and is_inverse(knob, name) for name in names]
    written = [name for name, other in zip(names, opposite, strict=True) if other == off]
    left = [name for name, other in zip(names, opposite, strict=True) if other != off]
    return ", ".join([*written, *([f"leave out {', '.join(left)}"] if left else [])])


def names_shown(stack: str | None, vendor: str = "") -> tuple[str, str]:
    """The framework whose names of knobs are shown, and a note where they are not surely those of what trains.

    stack, vendor: as of `shown_stack`.
    """
    shown = shown_stack(stack, vendor)
    framework = FRAMEWORKS[shown.names or OTHERWISE]
    if not shown.names:
        return framework, f"Names are {framework}'s: those of {shown.title} are not on file."
    if not stack and vendor_note(vendor):
        return framework, f"Names are {framework}'s: {vendor_note(vendor)}."
    early = shown.release and shown.names_from and months(shown.release) < months(shown.names_from)
    own = f"Names are those of {shown.family}-{shown.names_from}: those of {shown.name} are not on file."
    return framework, own if early else ""


def name_there(name: str, stack: str | None, vendor: str = "", value: Any = None) -> str:
    """A knob's or setting's name in the configuration of what trains, or that none is on file.

    value: what it is set to; where arguments say so by being there or not, which to write and which to leave out.
    """
    shown = shown_stack(stack, vendor).names or OTHERWISE
    knob = CATALOGUE[name]
    text: str = getattr(knob, shown)
    if isinstance(value, bool) and _arguments(text):
        return _said(knob, text, not value)
    derived = knob.megatron_bridge == "(derived)"
    environment: str = knob.env
    return text.replace("(derived)", DERIVED) or (DERIVED if derived else environment or NO_NAME)
