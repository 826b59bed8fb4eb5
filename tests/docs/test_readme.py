"""The example at the top of the README is what the command prints; a line of dots stands for lines left out."""

from __future__ import annotations

import shlex
import textwrap

from click.testing import CliRunner
from page_blocks import ROOT

from advisor.cli import advisor
from costmodel.model_registry import list_models

LEFT_OUT = "..."


def test_the_first_example_prints_what_the_readme_shows(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("    $ advisor explain"))
    end = next(
        index for index in range(start, len(lines)) if lines[index] and not lines[index].startswith("    ")
    )
    command, *shown = textwrap.dedent("\n".join(lines[start:end])).strip().splitlines()
    result = CliRunner().invoke(advisor, shlex.split(command)[2:])
    assert result.exit_code == 0
    printed, at = result.stdout.splitlines(), 0
    dotted = "\n".join(LEFT_OUT if line.strip() == LEFT_OUT else line for line in shown)
    for part in dotted.split(f"\n{LEFT_OUT}"):
        wanted = part.strip("\n").splitlines()
        if not wanted:
            continue
        assert wanted[0] in printed[at:], wanted[0]
        at = printed.index(wanted[0], at)
        assert printed[at : at + len(wanted)] == wanted
        at += len(wanted)


def test_the_number_of_models_is_that_of_the_catalogue():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f" {len(list_models())} of them by name" in text
