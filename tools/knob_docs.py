"""docs/knobs.md from the catalogue of knobs: every knob, input and setting, by topic.

python tools/knob_docs.py            write it
python tools/knob_docs.py --check    exit 1 when it differs from the catalogue
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from advisor.commands.knobs import values_text
from advisor.options import value_text
from costmodel.knobs import INPUTS, KNOBS, SETTINGS, TOPICS, Knob
from costmodel.knobs.names import FRAMEWORKS

ROOT = Path(__file__).resolve().parents[1]

PAGE = ROOT / "docs" / "knobs.md"
_MADE = "<!-- Made by tools/knob_docs.py from costmodel/knobs/*.toml. Change those, then run it again. -->\n"
_TEXTS = ("changes", "helps", "hurts", "effect")


def knobs_page() -> str:
    """The page: a list of topics, then every record under its topic."""
    parts = [_MADE, "# Knobs\n"]
    parts.append(
        f"{len(KNOBS)} knobs, each a field of a plan and an option of `predict` and `check`. {len(SETTINGS)} "
        "settings, which a plan carries without a change of what is predicted: options too, and the `[settings]` "
        f"of a plan file. {len(INPUTS)} more of the tuning guides' knobs stand with the workload or the model. "
        "`advisor knobs NAME` finds each under any name here, and `--set NAME=VALUE` sets it.\n"
    )
    parts.append("\n".join(f"* [{title}](#{_anchor(title)})" for title in TOPICS) + "\n")
    for title, records in TOPICS.items():
        parts.append(f"## {title}\n")
        parts += [_section(knob) for knob in records.values()]
    return "\n".join(parts)


def _section(knob: Knob) -> str:
    lines = [f"### `{knob.name}`\n", f"{_escaped(knob.meaning)}\n"]
    lines.append(
        f"* values: {_escaped(values_text(knob, full=True))}; default {_code(value_text(knob.default))}"
    )
    lines += [f"* {key}: {_escaped(getattr(knob, key))}" for key in _TEXTS if getattr(knob, key)]
    lines += [
        f"* {title}: {_names(getattr(knob, key))}" for key, title in FRAMEWORKS.items() if getattr(knob, key)
    ]
    if knob.aliases:
        lines.append(f"* also called: {_names(', '.join(knob.aliases))}")
    if knob.words:
        said = ", ".join(
            f"{_code(theirs)} is {_code(value_text(ours))}" for theirs, ours in knob.words.items()
        )
        lines.append(f"* their words: {said}")
    if knob.source:
        lines.append(f"* source: {_escaped(knob.source)}")
    return "\n".join(lines) + "\n"


def _names(text: str) -> str:
    """Names as code, remarks in brackets as they stand."""
    shown = []
    for part in text.split(", "):
        name, bracket, remark = part.partition(" (")
        shown.append(_escaped(part) if part.startswith("(") else _code(name) + bracket + remark)
    return ", ".join(shown)


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    page = knobs_page()
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
    if not fresh:
        print("docs/knobs.md differs from the catalogue. Run `python tools/knob_docs.py`.", file=sys.stderr)
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
