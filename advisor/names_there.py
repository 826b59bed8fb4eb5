"""The options that ways out name, in the words of the framework whose configuration was read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from advisor.render import heading, table, wrap
from advisor.sections import DERIVED, names_shown
from costmodel.knobs import CATALOGUE
from costmodel.knobs.names import FRAMEWORKS
from costmodel.knobs.record import Knob

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
    text: str = getattr(knob, key) or knob.env or ", ".join(knob.aliases) or "no name on file"
    text = text.replace("(derived)", DERIVED)
    names = [name.strip() for name in text.split(",")]
    if not all(name.startswith("--") for name in names):
        return f"{text}, off" if off and text != "no name on file" else text
    inverse = knob.kind == "bool" and all(name.startswith("--no-") for name in names)
    return text if inverse == off else f"leave out {text}"
