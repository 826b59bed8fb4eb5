"""The methods pages: made parts equal the code, no page lacks a part, and no formula lacks a page."""

from __future__ import annotations

import re

import pytest
from build_docs import FAMILIES
from method_docs import METHODS, Page, folded, main, stale

from costmodel.formulas import all_formulas
from costmodel.knobs import KNOBS
from costmodel.stack import load_stack
from costmodel.step_constants import parameter_keys
from costmodel.symbols import BY_NAME
from hardware_db import load_cluster

PAGES = sorted(path for path in METHODS.glob("*.md") if path.name != "README.md")
SECTIONS = (
    "What it models",
    "Formulas",
    "Inputs",
    "What it leaves out",
    "How it is checked",
    "Code",
)


def test_made_parts_equal_the_code(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_can_fail_and_mends(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- made: formulas tokens -->\nold\n<!-- made end -->\n")
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    assert "page.md" in capsys.readouterr().err
    assert main(["--folder", str(tmp_path)]) == 0
    assert "b*s/cp" in page.read_text()
    assert main(["--check", "--folder", str(tmp_path)]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_every_section(page):
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [title for title in SECTIONS if title not in found] == []
    assert text.count("<!-- made:") == text.count("<!-- made end -->")
    assert "::" in text  # tests are named


def test_the_index_names_every_page():
    index = (METHODS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([a-z-]+\.md)\)", index)) == {page.name for page in PAGES}


def test_every_formula_of_every_family_is_on_a_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    families = [frozenset({"attention", "mlp"}), *map(frozenset, FAMILIES.values())]
    formulas = {entry["formula"] for family in families for entry in all_formulas(family)}
    functions = {name for name in formulas if name.startswith("costmodel.") and "," not in name}
    assert len(functions) > 40
    assert sorted(name for name in functions if f"`{name}`" not in text) == []


def test_every_fitted_constant_is_among_the_inputs_of_a_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    keys = parameter_keys(load_cluster("dgx-h100"), "fp8", load_stack("nemo"))
    assert [name for name in keys if name in BY_NAME and f"| `{name}` |" not in text] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("formulas no_such_entry", "no entry no_such_entry"),
        ("tests tests/docs/test_methods.py::test_none", "has no test test_none"),
        ("tests CL999", "no test is named for CL999"),
        ("knobs no_such_knob", "no_such_knob"),
        ("pictures", "is no kind of block"),
    ],
)
def test_a_block_that_cannot_be_made_is_told(words, said):
    with pytest.raises(ValueError, match=said):
        Page("page", f"<!-- made: {words} -->\n<!-- made end -->\n").made()


def test_long_formulas_are_folded():
    assert folded("```text\na\n```\n").startswith("```")
    assert folded("```text\n" + "a\n" * 20 + "```\n").startswith(
        "<details><summary>20 lines</summary>\n\n```"
    )


def test_only_stale_pages_are_written(tmp_path):
    (tmp_path / "page.md").write_text("# By hand\n")
    assert stale(tmp_path.glob("*.md")) == {}


def test_every_knob_of_a_plan_is_on_a_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in KNOBS if f"(../knobs.md#{name})" not in text] == []
