"""Every claim that was collected from the guides and from published work has a test named by its id."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The ids as collected: first and last of each run without gaps; the numbers between were merged or dropped.
RANGES = (
    (1, 6),
    (8, 27),
    (29, 30),
    (32, 38),
    (40, 70),
    (72, 79),
    (81, 86),
    (88, 113),
    (203, 203),
    (205, 205),
    (207, 210),
    (214, 214),
    (216, 216),
    (218, 218),
)
CLAIMS = [f"CL{number:03}" for first, last in RANGES for number in range(first, last + 1)]


def names_in(path: Path) -> list[str]:
    """Names of the test functions of a file, those of its classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


NAMES = [name for path in sorted(HERE.glob("test_*.py")) for name in names_in(path)]


def test_there_are_115_claims():
    assert len(CLAIMS) == len(set(CLAIMS)) == 115


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_claim_has_a_test(claim):
    assert any(claim in name.split("_") for name in NAMES), f"no test is named test_{claim}_..."


def test_every_id_in_a_name_is_a_claim():
    """A slip in an id would leave one claim untested and test another one twice."""
    named = [
        word for name in NAMES for word in name.split("_") if word.startswith("CL") and word[2:].isdigit()
    ]
    assert set(named) <= set(CLAIMS)


def test_no_test_hides_another_of_the_same_name():
    """Two functions of one name in one class or file: Python keeps the last one alone."""
    for path in sorted(HERE.glob("test_*.py")):
        for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(scope, ast.Module | ast.ClassDef):
                names = [node.name for node in scope.body if isinstance(node, ast.FunctionDef)]
                twice = [name for name, count in Counter(names).items() if count > 1]
                assert twice == [], f"{path.name}: {twice}"
