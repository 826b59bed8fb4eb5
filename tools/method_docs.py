"""The made parts of docs/methods/*.md: formulas, inputs with sources, knobs with rules, code and tests.

python tools/method_docs.py            write them
python tools/method_docs.py --check    exit 1 when one differs from the code

A page is written by hand but for the blocks between `<!-- made: KIND WORD ... -->` and `<!-- made end -->`:

formulas NAME ... [family FEATURE ...]   entries of the ledger of a family, a dense decoder when none is named
functions MODULE.FUNCTION ...            documented functions that are no entry by themselves
inputs [NAME ...]                        what the page's formulas read of hardware, formats and fits, with sources
knobs NAME ...                           knobs, and the rules that name them
code                                     the files of the page's formulas
tests FILE::TEST ... CLnnn ...           tests; a claim stands for every test of its name
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from build_docs import _broken, _table, _unit

ROOT = Path(__file__).resolve().parents[1]
METHODS = ROOT / "docs" / "methods"
_BLOCK = re.compile(
    r"(?P<head><!-- made: (?P<words>[^>]*?)\s*-->\n)(?P<body>.*?)(?P<end><!-- made end -->)", re.S
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Formulas of more lines are folded.
LONGEST = 9
# Symbols of these groups are read from data files; the others are the question that was asked.
GROUPS = ("hardware", "precision", "step")
# The two plans whose inputs are shown: a dense model on Hopper, experts on Blackwell.
DENSE_EXAMPLE = ("llama3-8b", "dgx-h100", "fp8-cs", {"dp": 8})
EXPERTS_EXAMPLE = ("deepseek-v3", "gb200-nvl72", "mxfp8", {"dp": 64, "ep": 64})


class Page:
    """One page: what its formulas are, while its blocks are made from top to bottom."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.told: set[str] = set()
        self.entries: list[dict[str, str]] = []
        self.functions: list[str] = []
        self.features: set[str] = set()

    def made(self) -> str:
        """The page with its blocks made anew."""
        for match in _BLOCK.finditer(self.text):
            kind, *words = match["words"].split()
            if kind == "formulas":
                self._read(words)
            elif kind == "functions":
                self.functions += words
        return _BLOCK.sub(lambda match: match["head"] + self._block(match["words"]) + match["end"], self.text)

    def _read(self, words: list[str]) -> None:
        names, family = split_family(words)
        found = ledger(family)
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"{self.name}: no entry {', '.join(missing)} in the ledger of {sorted(family)}")
        self.entries += [found[name] for name in names]
        self.features |= family

    def _block(self, text: str) -> str:
        kind, *words = text.split()
        makers: dict[str, Callable[[list[str]], str]] = {
            "formulas": self._formulas,
            "functions": self._functions,
            "inputs": self._inputs,
            "knobs": knob_table,
            "code": self._code,
            "tests": test_list,
        }
        if kind not in makers:
            raise ValueError(f"{self.name}: {kind!r} is no kind of block: {', '.join(makers)}")
        return f"\n{makers[kind](words)}\n"

    def _formulas(self, words: list[str]) -> str:
        names, family = split_family(words)
        parts = []
        for entry in (ledger(family)[name] for name in names):
            of_code = entry["formula"].startswith("costmodel.")
            where = f", from `{entry['formula']}`" if of_code else f": {entry['formula']}"
            parts.append(f"**{entry['name']}** [{_unit(entry['unit'])}]{where}\n")
            parts += self._docstring(entry["formula"], entry["doc"])
            parts.append(folded(f"```text\n{_broken(entry['expression'])}\n```\n"))
        return "\n".join(parts)

    def _functions(self, words: list[str]) -> str:
        parts = []
        for name in words:
            parts += [f"**{name.rpartition('.')[2]}**, `{name}`\n", *self._docstring(name, documented(name))]
        return "\n".join(parts)

    def _docstring(self, formula: str, text: str) -> list[str]:
        """A docstring, once a page."""
        if not text or formula in self.told:
            return []
        self.told.add(formula)
        return [f"```text\n{inspect.cleandoc(text)}\n```\n"]

    def _inputs(self, more: list[str]) -> str:
        from costmodel.symbols import BY_NAME

        words = dict.fromkeys(more)
        for entry in self.entries:
            words |= dict.fromkeys(_WORD.findall(entry["expression"]))
        chosen = [BY_NAME[word] for word in BY_NAME if word in words and BY_NAME[word].group in GROUPS]
        example = EXPERTS_EXAMPLE if "experts" in self.features else DENSE_EXAMPLE
        values, sources = bound(example)
        rows = [
            (f"`{x.name}`", _unit(x.unit), x.meaning, f"{values[x.name]:.4g}", sources.get(x.name, ""))
            for x in chosen
        ]
        model, cluster, precision, _ = example
        head = f"As bound for {model} on {cluster} in {precision}. Other symbols: [glossary](../glossary.md)."
        return f"{head}\n\n" + _table(("symbol", "unit", "meaning", "value", "read from"), rows)

    def _code(self, _: list[str]) -> str:
        modules = [entry["formula"].rpartition(".")[0] for entry in self.entries]
        modules += [name.rpartition(".")[0] for name in self.functions]
        paths = dict.fromkeys(
            module.replace(".", "/") + ".py"
            for module in modules
            if module.startswith(("costmodel.", "executor."))
        )
        links = [f"[{path}](../../{path})" for path in paths if (ROOT / path).exists()]
        return ", ".join(links) + ".\n"


def folded(block: str) -> str:
    """A long block under a line that opens it."""
    if block.count("\n") <= LONGEST:
        return block
    return f"<details><summary>{block.count(chr(10)) - 2} lines</summary>\n\n{block}\n</details>\n"


def split_family(words: list[str]) -> tuple[list[str], frozenset[str]]:
    """Names and the features of the family they are of."""
    from costmodel.formulas import DENSE

    if "family" not in words:
        return words, DENSE
    at = words.index("family")
    return words[:at], frozenset(words[at + 1 :])


@cache
def ledger(family: frozenset[str]) -> dict[str, dict[str, str]]:
    """Entries of a family by name, as docs/formulas.md has them."""
    from costmodel.formulas import all_formulas

    return {entry["name"]: entry for entry in all_formulas(family)}


def documented(name: str) -> str:
    """The docstring of a function. ValueError when there is none."""
    module, _, function = name.rpartition(".")
    text = getattr(importlib.import_module(module), function).__doc__
    if not text:
        raise ValueError(f"{name} has no docstring")
    return str(text)


@cache
def _bound(model: str, cluster: str, precision: str, knobs: tuple[tuple[str, int], ...]):  # type: ignore[no-untyped-def]
    from costmodel.model_registry import load_model
    from costmodel.plan import Plan
    from costmodel.predict import predict
    from costmodel.workload import Workload
    from hardware_db import load_cluster

    plan = Plan(precision=precision, **dict(knobs))
    spec = load_model(model)
    found = predict(spec, Workload(4096, 1024), load_cluster(cluster), plan)
    return found.values, found.sources


def bound(example: tuple[str, str, str, dict[str, int]]) -> tuple[dict[str, float], dict[str, str]]:
    """Values and sources of every input of an example."""
    model, cluster, precision, knobs = example
    values, sources = _bound(model, cluster, precision, tuple(sorted(knobs.items())))
    return values, sources


def knob_table(names: list[str]) -> str:
    """Knobs with their meaning, and the rules that name them."""
    from advisor.rules import TOPICS, topic_rules
    from costmodel.knobs import CATALOGUE

    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        raise ValueError(f"not in the catalogue of knobs: {', '.join(unknown)}")
    rules = [(topic, rule) for topic in TOPICS for rule in topic_rules(topic)]
    rows = []
    for name in names:
        linked = [
            f"[{rule.id}](../../advisor/rules/{topic}.toml)" for topic, rule in rules if name in rule.knobs
        ]
        shown = linked[:6] + ([f"and {len(linked) - 6} more"] if len(linked) > 6 else [])
        rows.append((f"[{name}](../knobs.md#{name})", CATALOGUE[name].meaning, ", ".join(shown)))
    return _table(("knob", "meaning", "rules"), rows)


def test_list(words: list[str]) -> str:
    """Tests as links, a file a line."""
    found: dict[str, list[str]] = {}
    for word in words:
        if "::" in word:
            path, _, name = word.partition("::")
            if name not in test_names(ROOT / path):
                raise ValueError(f"{path} has no test {name}")
            found.setdefault(path, []).append(name)
            continue
        named = [
            (path, name)
            for path in sorted((ROOT / "tests" / "claims").glob("test_*.py"))
            for name in test_names(path)
            if word in name.split("_")
        ]
        if not named:
            raise ValueError(f"no test is named for {word}")
        for path, name in named:
            found.setdefault(str(path.relative_to(ROOT)), []).append(name)
    return (
        "\n".join(
            f"* [{path}](../../{path}): " + "; ".join(spoken(name) for name in dict.fromkeys(names))
            for path, names in found.items()
        )
        + "\n"
    )


def spoken(name: str) -> str:
    """A test's name as words."""
    return name.removeprefix("test_").replace("_", " ")


@cache
def test_names(path: Path) -> tuple[str, ...]:
    """Test functions of a file, those of classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def stale(pages: Iterable[Path]) -> dict[Path, str]:
    """Pages that differ from what their blocks should hold, with what they should be."""
    made = {}
    for path in pages:
        text = path.read_text(encoding="utf-8")
        fresh = Page(path.name, text).made()
        if fresh != text:
            made[path] = fresh
    return made


def main(arguments: list[str] | None = None) -> int:
    """0 when the pages are (now) equal to the code, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--folder", type=Path, default=METHODS, help="where the pages are")
    options = parser.parse_args(arguments)
    different = stale(sorted(options.folder.glob("*.md")))
    for path, text in different.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if different and options.check:
        names = ", ".join(path.name for path in different)
        print(f"docs/methods differs from the code: {names}. Run `make fix-docs`.", file=sys.stderr)
    return 1 if different and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
