"""How to add: every example of the page runs, in order, in a folder with a checkout that it changes.

UPDATE_GOLDEN=1 pytest tests/docs/test_extending.py writes what is shown anew.
"""

from __future__ import annotations

import os

import pytest
from page_blocks import ROOT, difference, run_page, steps_of, written

PAGE = ROOT / "docs" / "extending.md"
STEPS = steps_of(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The page's commands and outcomes, run once, and the folder they ran in."""
    folder = tmp_path_factory.mktemp("extending") / "work"
    folder.mkdir()
    steps, outcomes = run_page(PAGE, folder)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), steps, outcomes), encoding="utf-8")
        steps = steps_of(PAGE.read_text(encoding="utf-8"))
    return steps, outcomes, folder


@pytest.mark.launch
@pytest.mark.parametrize("index", range(len(STEPS)), ids=[step.command[:60] for step in STEPS])
def test_an_example_does_what_the_page_shows(ran, index):
    steps, outcomes, _ = ran
    problem = difference(steps[index], outcomes[index])
    assert not problem, problem


@pytest.mark.launch
def test_the_examples_changed_their_checkout_and_not_this_one(ran):
    *_, folder = ran
    for name, added in (
        ("advisor/rules/pipeline.toml", "[very_deep]"),
        ("costmodel/knobs/settings_network.toml", "[nccl_ib_timeout]"),
    ):
        assert added in (folder / "advisor" / name).read_text(encoding="utf-8")
        assert added not in (ROOT / name).read_text(encoding="utf-8")
