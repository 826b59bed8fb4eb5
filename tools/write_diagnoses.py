"""Writes the tables of docs/diagnose.md from executor/diagnoses.toml: `python tools/write_diagnoses.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "diagnose.md"
START, END = "<!-- made by tools/write_diagnoses.py -->", "<!-- end of what is made -->"


def tables() -> str:
    """Every symptom with what shows it, and those that nothing here can show."""
    from executor.diagnose import load_rules, table

    meanings = table()["facts"]
    lines = ["| symptom | kind | what shows it | knobs | guide |", "|---|---|---|---|---|"]
    for rule in load_rules():
        ways = []
        for evidence in rule.seen:
            told = (str(meanings[fact]).rpartition("; ")[2] for fact in sorted(evidence.words))
            special = [way for way in dict.fromkeys(told) if way != "every log"] or ["every log"]
            ways.append(" and ".join(special))
        knobs = ", ".join(f"`{knob}`" for knob in rule.knobs)
        shown = "; or ".join(dict.fromkeys(ways))
        lines.append(f"| {rule.title} (`{rule.id}`) | {rule.severity} | {shown} | {knobs} | {rule.guide} |")
    lines += ["", "| not visible in a log or a trace | what tells |", "|---|---|"]
    lines += [f"| {symptom} | {way} |" for symptom, way in table()["not_visible"].items()]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with fresh tables."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> int:
    """1 when --check finds the page stale."""
    text = PAGE.read_text(encoding="utf-8")
    fresh = page(text)
    if "--check" in arguments:
        return int(fresh != text)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main(sys.argv[1:]))
