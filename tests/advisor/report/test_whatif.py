"""The section "What if" as a reader uses it: keys, results that follow, words of the rules, phone width."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from advisor.report.controls import MAIN
from costmodel.knobs import KNOBS

SETTLED = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


@pytest.fixture(scope="module")
def page(browser: Any, large: Any) -> Any:
    """The page of a 405B plan, open at laptop size."""
    browser.open(large.path)
    return browser


@pytest.fixture(autouse=True)
def _unchanged(page: Any) -> None:
    """Every test begins at the plan."""
    page.run("document.querySelector('#whatif .acts button').click()")


def text(page: Any, selector: str) -> str:
    """What a reader sees of an element."""
    return str(page.run("return document.querySelector(arguments[0]).innerText", f"#whatif {selector}"))


def knob(page: Any, name: str) -> Any:
    """The control of a knob."""
    return page.driver.find_element(By.ID, f"knob-{name}")


def test_it_begins_with_the_plan(page: Any, large: Any) -> None:
    said = large.said["plans"][0]["prediction"]
    now = page.run("return advisorModel.evaluate()")
    assert now["step_time"] == pytest.approx(said["step_time_s"], rel=1e-9)
    assert now["memory"] / 2**30 == pytest.approx(said["memory"]["worst_rank_gib"], rel=1e-9)
    assert text(page, ".verdict").startswith("Runs and fits")
    assert text(page, ".numbers").count("as the plan") == 4
    assert page.run("return document.querySelector('#whatif .acts button').disabled") is True


def test_every_control_has_a_name_and_is_reached_by_the_keyboard(page: Any) -> None:
    controls = page.run(
        "return [...document.querySelectorAll('#whatif input, #whatif select')].map((each) => "
        "[each.labels.length, each.tabIndex, each.labels[0]?.textContent])"
    )
    assert len(controls) > len(MAIN)
    assert all(labels == 1 and tab == 0 and name for labels, tab, name in controls)


def test_keys_move_a_slider_and_the_result_follows(page: Any) -> None:
    slider = knob(page, "pp")
    before = text(page, ".numbers")
    slider.send_keys(Keys.ARROW_LEFT)
    page.wait(SETTLED)
    assert text(page, ".numbers") != before
    now = page.run(
        "return advisorModel.evaluate({pp: Number(document.querySelector('output[for=knob-pp]').value)})"
    )
    assert slider.get_attribute("aria-valuetext") == str(now["settings"]["pp"])
    assert f"dp {now['settings']['dp']}" in text(page, ".verdict")
    assert "was" in page.run("return arguments[0].closest('.knob').innerText", slider)


def test_a_switch_and_a_choice_change_time_memory_and_the_command(page: Any) -> None:
    command = text(page, ".line code")
    knob(page, "overlap_grad_reduce").send_keys(Keys.SPACE)
    page.run(
        "const e = arguments[0]; e.selectedIndex = 0; e.dispatchEvent(new Event('change'))",
        knob(page, "zero_stage"),
    )
    page.wait(SETTLED)
    changed = text(page, ".line code")
    assert "--no-overlap-grad-reduce" in changed
    assert "--zero-stage 0" in changed
    assert "overlap-grad-reduce" not in command
    assert "optimizer state" in text(page, ".scroll + .scroll table")
    page.run("document.querySelector('#whatif .acts button').click()")
    assert text(page, ".line code") == command
    assert knob(page, "overlap_grad_reduce").is_selected()


def test_a_broken_rule_is_told_in_its_own_words_with_the_way_out(page: Any) -> None:
    knob(page, "sequence_parallel").send_keys(Keys.SPACE)
    if not knob(page, "tp_comm_overlap").is_selected():
        knob(page, "tp_comm_overlap").send_keys(Keys.SPACE)
    page.wait(SETTLED)
    assert text(page, ".verdict").startswith("Does not run: 1 error")
    assert "exist only with sequence_parallel. Add --sequence-parallel, or try" in text(
        page, ".broken .ERROR"
    )
    assert ", new:" in text(page, ".broken .ERROR")


def test_what_nothing_is_predicted_for_says_why(page: Any) -> None:
    for _ in range(8):
        knob(page, "micro_batch").send_keys(Keys.ARROW_RIGHT)
        knob(page, "global_batch").send_keys(Keys.ARROW_LEFT)
        knob(page, "pp").send_keys(Keys.ARROW_LEFT)
    page.wait(SETTLED)
    assert "is not a multiple of micro_batch x dp" in text(page, ".broken")
    assert page.run("return document.querySelector('#whatif .numbers')") is None


def test_knobs_beyond_the_main_ones_stand_under_their_topics(page: Any) -> None:
    topics = page.run(
        "return [...document.querySelectorAll('#whatif .whatif > div > details > summary')].map((e) => e.textContent)"
    )
    assert {KNOBS["vboost"].topic, KNOBS["bucket_size"].topic} <= set(topics)


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(page: Any, dark: bool) -> None:
    page.view(page.PHONE, dark)
    try:
        wide = page.run("return document.documentElement.scrollWidth")
        outside = page.run(
            "return [...document.querySelectorAll('#whatif input, #whatif select, #whatif button')]"
            ".filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5).length"
        )
        assert (wide, outside) == (page.PHONE[0], 0)
    finally:
        page.view(page.LAPTOP)


def test_the_console_stays_empty(page: Any) -> None:
    page.complaints()
    knob(page, "tp").send_keys(Keys.ARROW_LEFT)
    page.wait(SETTLED)
    assert page.complaints() == []
