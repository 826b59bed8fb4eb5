"""docs/guide-index.md: from the official tuning guides to our knobs, rules and tests, and back.

python tools/guide_docs.py            write it from docs/guides.toml and the catalogues
python tools/guide_docs.py --check    exit 1 when it differs
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from build_docs import _table
from method_docs import test_names

from advisor.rules import TOPICS, topic_rules
from costmodel.knobs import CATALOGUE
from costmodel.knobs.names import find
from executor.diagnose import load_rules as load_diagnoses

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "guides.toml"
PAGE = ROOT / "docs" / "guide-index.md"
# The guides' own indexes of knobs, as they spell them: a head in a comment, then a name a line.
NAMES = ROOT / "tests" / "costmodel" / "data" / "guide_names.txt"
_MADE = "<!-- Made by tools/guide_docs.py from docs/guides.toml. Change that, then run `make fix-docs`. -->\n"
# Names of the guides' indexes that stand for a whole tool, not for one knob.
INDEX_HEADS = {"nemo": "NeMo performance tuning guide", "bridge": "Megatron-Bridge performance tuning guide"}


def load_guides(path: Path = DATA) -> dict[str, Any]:
    """Guides, topics with their advice, and claims of other sources."""
    with path.open("rb") as file:
        return tomllib.load(file)


def guide_page(data: dict[str, Any]) -> str:
    """The page: guides, topics, index names, and the way back from knobs and rules."""
    topics = data["topic"]
    parts = [_MADE, "# From the tuning guides to the knobs, and back\n"]
    parts.append(
        "What the official guides advise, in our words: which knobs follow it, which rules of `advisor check` watch "
        "over it, which symptoms `advisor diagnose` knows it by, and which tests hold it against the model. *But* says "
        "where a guide slips, or what of it is not ours; *in part* marks a claim that the model does not meet in full "
        "([why](#what-the-model-does-not-meet)). "
        "[By name in a guide's index](#names-in-the-guides-indexes) · [by knob](#from-a-knob) · "
        "[by rule](#from-a-rule)\n"
    )
    parts.append("\n".join(f"* **{name}**: {title}" for name, title in data["guides"].items()) + "\n")
    for topic in topics:
        parts += _topic(topic)
    parts += ["## What the model does not meet\n", _unmet(topics)]
    parts += ["## Names in the guides' indexes\n", _index_names()]
    parts += ["## From a knob\n", _back(topics, "knobs", _knob)]
    parts += ["## From a rule\n", _back(topics, "rules", _rule)]
    return "\n".join(parts)


def _topic(topic: dict[str, Any]) -> list[str]:
    where = " · ".join(f"**{guide}** {heading}" for guide, heading in topic["at"].items())
    rows = []
    for advice in topic["advice"]:
        says = advice["says"] + (f". *But*: {advice['truth']}" if "truth" in advice else "")
        rows.append(
            (
                says,
                ", ".join(map(_knob, advice["knobs"])),
                ", ".join(map(_rule, advice.get("rules", ()))),
                ", ".join(map(_symptom, advice.get("symptoms", ()))),
                ", ".join(map(_claim, advice.get("claims", ()))),
            )
        )
    return [
        f"## {topic['title']}\n",
        f"{where}\n",
        _table(("advice", "knobs", "rules", "symptoms", "tests"), rows),
    ]


def _knob(name: str) -> str:
    if name not in CATALOGUE:
        raise ValueError(f"docs/guides.toml names {name!r}, which is no knob")
    return f"[`{name}`](knobs.md#{name})"


@cache
def rule_topics() -> dict[str, str]:
    """Rule -> the file of its topic."""
    return {rule.id: topic for topic in TOPICS for rule in topic_rules(topic)}


def _rule(name: str) -> str:
    topics = rule_topics()
    if name not in topics:
        raise ValueError(f"docs/guides.toml names {name!r}, which is no rule")
    return f"[`{name}`](../advisor/rules/{topics[name]}.toml)"


def _symptom(name: str) -> str:
    if name not in {rule.id for rule in load_diagnoses()}:
        raise ValueError(f"docs/guides.toml names {name!r}, which is no symptom of executor/diagnoses.toml")
    return f"[`{name}`](diagnose.md#symptoms)"


@cache
def unmet_claims() -> dict[str, list[str]]:
    """Claim -> why some test named for it is expected to fail, or is not run."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "claims").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                reasons = [reason for each in node.decorator_list for reason in _reasons(each)]
                for word in node.name.split("_") if reasons else ():
                    if word.startswith("CL") and word[2:].isdigit():
                        found.setdefault(word, []).extend(reasons)
    return found


def _reasons(decorator: ast.expr) -> list[str]:
    """Reasons of the marks xfail and skip in a decorator, those of single parameters too."""
    return [
        str(ast.literal_eval(keyword.value))
        for node in ast.walk(decorator)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("xfail", "skip")
        for keyword in node.keywords
        if keyword.arg == "reason"
    ]


def _unmet(topics: Iterable[dict[str, Any]]) -> str:
    ours = {name for topic in topics for advice in topic["advice"] for name in advice.get("claims", ())}
    rows = [(_claim(name), "; ".join(why)) for name, why in sorted(unmet_claims().items()) if name in ours]
    return _table(("claim", "what the model has, and why"), rows)


@cache
def claim_files() -> dict[str, list[str]]:
    """Claim -> files of its tests."""
    files: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "claims").glob("test_*.py")):
        for name in test_names(path):
            for word in name.split("_"):
                if word.startswith("CL") and word[2:].isdigit():
                    files.setdefault(word, []).append(path.name)
    return files


def _claim(name: str) -> str:
    files = claim_files()
    if name not in files:
        raise ValueError(f"docs/guides.toml names {name}, which no test is named for")
    return f"[{name}](../tests/claims/{files[name][0]})" + (" in part" if name in unmet_claims() else "")


def index_names(path: Path = NAMES) -> dict[str, list[str]]:
    """Guide -> names of its index of knobs, as spelled there."""
    found: dict[str, list[str]] = {}
    guide = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            guide = next(name for name, head in INDEX_HEADS.items() if head in line)
        elif line:
            found.setdefault(guide, []).append(line)
    return found


def _index_names() -> str:
    rows = [
        (guide, f"`{name}`", ", ".join(_knob(knob.name) for knob in find(name)))
        for guide, names in index_names().items()
        for name in names
    ]
    return _table(("guide", "name in its index", "our knob"), rows)


def _back(topics: Iterable[dict[str, Any]], key: str, shown: Any) -> str:
    """Knobs or rules, in alphabetical order, with the topics that name them and where those stand."""
    named: dict[str, dict[str, str]] = {}
    for topic in topics:
        for advice in topic["advice"]:
            for name in advice.get(key, ()):
                named.setdefault(name, {})[topic["title"]] = ", ".join(topic["at"])
    rows = [
        (
            shown(name),
            "; ".join(f"[{title}](#{anchor(title)}) ({guides})" for title, guides in places.items()),
        )
        for name, places in sorted(named.items())
    ]
    return _table((key.removesuffix("s"), "advice (guides)"), rows)


def anchor(title: str) -> str:
    """The anchor that a heading gets."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is")
    options = parser.parse_args(arguments)
    text = guide_page(load_guides())
    fresh = options.page.exists() and options.page.read_text(encoding="utf-8") == text
    if not fresh and not options.check:
        options.page.write_text(text, encoding="utf-8")
        print(f"wrote {options.page}")
    if not fresh and options.check:
        print("docs/guide-index.md differs. Run `make fix-docs`.", file=sys.stderr)
    return 0 if fresh or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
