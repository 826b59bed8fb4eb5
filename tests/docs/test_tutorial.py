"""The tutorial is true: every command of it runs, in order, in a fresh folder, and prints what the page shows.

UPDATE_GOLDEN=1 pytest tests/docs/test_tutorial.py writes what is shown anew.
"""

from __future__ import annotations

import json

import pytest
from page_blocks import ROOT, difference, run_for_tests, steps_of

PAGE = ROOT / "docs" / "tutorial.md"
STEPS = steps_of(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The page's outcomes, run once, and the folder they ran in."""
    return run_for_tests(PAGE, tmp_path_factory.mktemp("tutorial") / "work")


@pytest.mark.launch
@pytest.mark.parametrize("index", range(len(STEPS)), ids=[step.command[:60] for step in STEPS])
def test_a_command_prints_what_the_page_shows(ran, index):
    steps, outcomes, _ = ran
    problem = difference(steps[index], outcomes[index])
    assert not problem, problem


@pytest.mark.launch
def test_the_run_was_measured_and_compared(ran):
    """What the page shows of `advisor run` was compared up to its first numbers: here are the numbers."""
    *_, folder = ran
    (record,) = (folder.parent / "work-home" / ".cache" / "advisor" / "runs").iterdir()
    found = json.loads((record / "comparison.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in found["rows"]}
    assert all(rows[name]["measured"] > 0 < rows[name]["predicted"] for name in ("step time", "forward"))
    assert found["measured"]["num_steps"] == 6


@pytest.mark.launch
def test_the_advisor_that_ran_is_the_installed_one(ran):
    *_, folder = ran
    assert list(folder.glob("env/lib/python*/site-packages/advisor/cli.py"))
