"""Documents say what the code does: made pages are fresh, links lead somewhere, examples parse."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from advisor.cli import COMMANDS, advisor
from costmodel.formulas import all_formulas
from costmodel.symbols import INPUTS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
# Fenced blocks of a shell, and the examples of the commands' help.
BLOCK = re.compile(r"```(?:sh|bash|console)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "tools" / "build_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_pages_equal_the_code(build, capsys):
    assert build.main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_can_fail(build, tmp_path):
    assert build.main(["--folder", str(tmp_path)]) == 0
    assert build.main(["--check", "--folder", str(tmp_path)]) == 0
    (tmp_path / "cli.md").write_text("old")
    assert build.main(["--check", "--folder", str(tmp_path)]) == 1


def test_every_symbol_knob_and_formula_is_told(build):
    glossary, formulas = build.glossary_page(), build.formulas_page()
    assert all(f"| `{entry.name}` |" in glossary for entry in INPUTS)
    assert all(f"## {entry['name']}\n" in formulas for entry in all_formulas())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def examples() -> list[tuple[str, str]]:
    """Every `advisor ...` line of the documents and of the commands' help."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            found += [(page.name, line) for line in block.splitlines()]
    for name in COMMANDS:
        try:
            command = advisor.get_command(click.Context(advisor), name)
        except ModuleNotFoundError:
            continue  # not written yet
        found += [(f"help of {name}", line) for line in command.epilog.replace("\\\n", " ").splitlines()]
    lines = [(where, re.sub(r"^\$ ", "", line.strip())) for where, line in found]
    return [
        (where, re.split(r"\s{2,}|\s#\s", line)[0]) for where, line in lines if line.startswith("advisor ")
    ]


@pytest.mark.parametrize(("where", "line"), examples())
def test_examples_parse(where, line):
    _, name, *rest = shlex.split(line)
    if name.startswith("-"):
        return
    assert name in COMMANDS, f"{where}: {line}"
    command = advisor.get_command(click.Context(advisor), name)
    group = click.Context(advisor, **advisor.context_settings)
    with click.Context(command, parent=group) as context:
        command.parse_args(context, rest)
