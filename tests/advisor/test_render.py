"""Texts close: parts as printed sum to the whole as printed; nothing is wider than the page."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import render
from advisor.render import closing_round, gib, percent, seconds, table, tree, wrap
from costmodel.prediction import TermValue

amounts = st.floats(-1e3, 1e6, allow_nan=False)
positive = st.floats(0, 1e4, allow_nan=False)


@given(st.lists(amounts, min_size=1, max_size=12), st.integers(0, 4))
def test_rounded_parts_sum_to_the_rounded_total(values, digits):
    total = math.fsum(values)
    rounded = closing_round(values, total, digits)
    assert round(math.fsum(rounded) / 10**-digits) == round(total / 10**-digits)
    assert all(abs(a - b) <= 2 * 10**-digits for a, b in zip(values, rounded, strict=True))


def leaf(number: int, value: float) -> TermValue:
    return TermValue(f"part_{number}", f"part {number}", "s", value, "tests")


def whole(values: list[float]) -> TermValue:
    return TermValue(
        "step", "step", "s", math.fsum(values), "tests", tuple(leaf(i, v) for i, v in enumerate(values))
    )


@given(st.lists(positive, min_size=1, max_size=9).filter(lambda values: sum(values) > 1e-3))
def test_a_printed_tree_closes(values):
    lines = tree(whole(values), 1.0, "s", 3)
    printed = [float(re.match(r"\s*(-?[\d,.]+) s", line)[1].replace(",", "")) for line in lines]
    assert math.isclose(sum(printed[1:]) if len(printed) > 1 else printed[0], printed[0], abs_tol=1e-9)


def test_small_parts_are_gathered_and_named():
    lines = tree(whole([10.0, 0.01, 0.02, 5.0]), 1.0, "s", 3)
    assert len(lines) == 4
    assert lines[-1].endswith("other: part 1; part 2")
    assert "0.030 s" in lines[-1]


def test_small_parts_that_have_no_room_are_counted_and_none_is_cut():
    """It ended in the middle of a word: "pipeline send/recv, expos..."."""
    told = tree(whole([1000.0, *[1.0] * 9]), 1.0, "s", 3)[-1].partition("other: ")[2]
    *names, more = told.split("; ")
    assert all(re.fullmatch(r"part \d", name) for name in names)
    assert more == f"{9 - len(names)} more"
    assert names


def test_one_small_part_keeps_its_name():
    assert "part 1" in tree(whole([10.0, 0.01]), 1.0, "s", 3)[-1]


def test_negative_parts_are_shown_with_their_sign():
    assert any("-1.000 s" in line for line in tree(whole([6.0, -1.0]), 1.0, "s", 3))


def test_deep_levels_close_on_what_is_printed_above_them():
    inner = TermValue("in", "inner", "s", 1.0, "tests", tuple(leaf(i, 1 / 3) for i in range(3)))
    root = TermValue("step", "step", "s", 2.0005, "tests", (inner, leaf(9, 1.0005)))
    lines = tree(root, 1.0, "s", 3)
    values = [float(line.split()[0]) for line in lines]
    assert values[1] == pytest.approx(sum(values[2:5]))
    assert values[0] == pytest.approx(values[1] + values[5])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.1234, "5.123 s"),
        (0.04567, "45.67 ms"),
        (3.2e-5, "32.00 us"),
        (0.99999, "1.000 s"),
        (3900, "1 h 05 min"),
        (0, "0.000 us"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_other_units():
    assert gib(3 * 2**30) == "3.0 GiB"
    assert gib(2**20) == "1.0 MiB"
    assert percent(0.1234) == "12.3 %"
    assert render.count(70.6e9) == "70.6 B"
    assert render.count(512) == "512"


@given(st.lists(st.lists(st.text("ab cd", max_size=60), min_size=3, max_size=3), max_size=5))
def test_tables_break_their_last_column_and_leave_no_trailing_space(rows):
    short = [[row[0][:8], row[1][:8], row[2]] for row in rows]
    lines = table(["one", "two", "three"], short)
    assert all(len(line) <= render.width() for line in lines)
    assert all(line == line.rstrip() for line in lines)


PATHS = st.lists(st.text("ab_./-*", min_size=1, max_size=90), min_size=3, max_size=3)


@given(st.lists(PATHS, min_size=1, max_size=5), st.sampled_from(["60", "80", "100"]))
def test_tables_fit_any_page_and_lose_no_letter(rows, columns):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        lines = table(["one", "two", "three"], rows, "lrl")
    assert all(len(line) <= int(columns) for line in lines)
    for letter in "ab_./-*":
        assert "".join(lines[1:]).count(letter) == sum(cell.count(letter) for row in rows for cell in row)


@given(st.lists(st.text("xyz_./*(", min_size=1, max_size=150), min_size=1, max_size=9))
def test_folded_lines_keep_to_the_page_and_to_their_words(words):
    line = "  = " + " ".join(words)
    folded = render.folded(line)
    assert all(len(each) <= render.width() for each in folded.splitlines())
    assert re.sub(r"\s", "", folded) == re.sub(r"\s", "", line)


@pytest.mark.parametrize(("columns", "wide"), [("40", 60), ("80", 80), ("200", 100)])
def test_the_page_follows_the_terminal(monkeypatch, columns, wide):
    monkeypatch.setenv("COLUMNS", columns)
    assert render.width() == wide


def test_bars_are_as_long_as_their_share():
    assert [render.bar(share, 10) for share in (0, 0.001, 0.5, 1, 2)] == [
        "",
        "#",
        "#" * 5,
        "#" * 10,
        "#" * 10,
    ]


def test_wrapped_text_keeps_to_the_page():
    assert all(len(line) <= render.width() for line in wrap("word " * 100, "  - ", "    ").splitlines())


def test_plain_when_piped(monkeypatch):
    assert not render.colours()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert render.bold("x") == "\x1b[1mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert render.bold("x") == "x"
