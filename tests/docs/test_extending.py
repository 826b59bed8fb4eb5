"""How to add: every example of the page runs, in order, in a folder with a checkout that it changes.

UPDATE_GOLDEN=1 pytest tests/docs/test_extending.py writes what is shown anew.
"""

from __future__ import annotations

import pytest
from page_blocks import ROOT, difference, run_for_tests, steps_of

PAGE = ROOT / "docs" / "extending.md"
STEPS = steps_of(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The page's commands and outcomes, run once, and the folder they ran in."""
    return run_for_tests(PAGE, tmp_path_factory.mktemp("extending") / "work")


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
