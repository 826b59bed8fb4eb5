"""The page in a real browser: it opens from disk, holds everything, fits every screen and obeys the keyboard."""

from __future__ import annotations

import pytest

from advisor.render import seconds

SECTIONS = [
    "answer",
    "why",
    "time",
    "memory",
    "timeline",
    "plans",
    "roofline",
    "scaling",
    "whatif",
    "evidence",
]


def keys(browser, *names: str):
    """Press keys, one after the other."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    chain = ActionChains(browser.driver)
    for name in names:
        chain.send_keys(getattr(Keys, name))
    chain.perform()


@pytest.mark.parametrize("page", ["large", "hostile"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", ["LAPTOP", "PHONE"])
def test_it_opens_from_disk_without_a_complaint_and_fits_the_screen(browser, request, page, dark, screen):
    made = request.getfixturevalue(page)
    size = getattr(browser, screen)
    browser.open(made.path, size, dark)
    assert browser.run("return document.documentElement.dataset.ready") == "true"
    browser.draw()
    assert browser.run("return document.querySelectorAll('.chart').length") >= 6
    undrawn = "return [...document.querySelectorAll('.chart')].filter(c => !c.querySelector('canvas')).map(c => c.id)"
    assert browser.run(undrawn) == []
    wide = (
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .formula, .chart')"
    )
    wide += " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 200))"
    assert browser.run(wide) == []
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    assert browser.complaints() == []
    assert browser.requests() == []


def test_every_section_is_there_and_the_navigation_leads_to_it(browser, large):
    browser.open(large.path)
    shown = browser.run("return [...document.querySelectorAll('main > section')].map(s => s.id)")
    assert shown == SECTIONS
    led = browser.run(
        "return [...document.querySelectorAll('nav a')].map(a => a.getAttribute('href').slice(1))"
    )
    assert led == shown


def test_the_answer_needs_no_script(browser, large):
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(large.path)
        text = browser.driver.find_element("id", "answer").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    known = large.said["plans"][0]["prediction"]
    for number in (
        seconds(known["step_time_s"]),
        f"{100 * known['mfu']:.1f} %",
        f"{known['memory']['worst_rank_gib']:.1f} GiB",
    ):
        assert number in text
    assert "advisor run plan.toml" in text


def test_charts_are_drawn_when_they_come_into_view_and_not_before(browser, large):
    browser.open(large.path)
    drawn = "return document.getElementById('roofline-chart').dataset.drawn"
    assert browser.run(drawn) is None
    browser.run("document.getElementById('roofline').scrollIntoView()")
    assert browser.wait(drawn) == "true"


def test_tab_reaches_the_controls_and_enter_drills_down_to_a_source(browser, large):
    browser.open(large.path)
    where = "const e = document.activeElement; return e.id || e.className || e.getAttribute('href')"
    seen = []
    while "term" not in seen[-1:] and len(seen) < 120:
        keys(browser, "TAB")
        seen.append(browser.run(where))
    assert seen[0] == "skip"
    assert "theme" in seen
    assert "button copy" in seen
    assert seen[-1] == "term"
    # From the step to a leaf of the forward pass, two rows down.
    keys(browser, "TAB", "TAB", "ENTER")
    assert browser.run("return document.activeElement.id") == "time-detail"
    assert (
        browser.run("return document.querySelector('#time [aria-current=true] .term').dataset.term")
        == "forward_linear"
    )
    assert browser.wait("return document.querySelectorAll('#time-detail math').length === 2")
    # On to the first formula that it is made of, and to an input with where it was read.
    word = browser.run("return document.querySelector('#time-detail [data-word]').dataset.word")
    browser.run("document.querySelector('#time-detail [data-word]').focus()")
    keys(browser, "ENTER")
    title = large.data["formulas"]["entries"][word]["title"]
    assert browser.run("return document.querySelector('#time-detail h3').textContent") == title
    told = browser.run("return document.querySelector('#time-detail tbody').innerText")
    assert "model llama3.1-405b" in told
    assert browser.complaints() == []


def test_the_numbers_put_into_a_formula_give_its_value(browser, large):
    browser.open(large.path)
    browser.run("advisorPage.show('time', 'forward_linear')")
    shown = browser.wait("return document.querySelectorAll('#time-detail math')[1]?.textContent")
    words = large.data["formulas"]["entries"]["forward_linear"]["uses"]
    assert not any(word in shown for word in words if len(word) > 3)
    leaf = next(
        part
        for part in large.data["prediction"]["terms"]["parts"][0]["parts"]
        if part["name"] == "forward_linear"
    )
    assert seconds(leaf["seconds"]) in browser.run("return document.querySelector('#time-detail').innerText")


def test_a_chart_is_chosen_from_like_the_table(browser, large):
    browser.open(large.path)
    browser.run("document.getElementById('memory').scrollIntoView()")
    browser.wait("return document.getElementById('memory-chart').dataset.drawn")
    chart = browser.driver.find_element("id", "memory-chart")
    chart.click()
    chosen = browser.run("return document.querySelector('#memory [aria-current=true] .term').textContent")
    titles = [part["title"] for part in large.data["prediction"]["memory_terms"]["parts"]]
    assert chosen in titles


def test_the_theme_follows_the_system_until_one_is_chosen(browser, large):
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.open(large.path)
    light = browser.run(paper)
    browser.view(dark=True)
    dark = browser.run(paper)
    assert light != dark
    button = browser.driver.find_element("id", "theme")
    button.click()
    assert button.text == "theme: light"
    assert browser.run(paper) == light
    button.click()
    button.click()
    assert button.text == "theme: auto"
    assert browser.run(paper) == dark


def test_what_charts_show_is_told_in_words_and_tables_too(browser, large):
    browser.open(large.path)
    labels = browser.run(
        "return [...document.querySelectorAll('.chart')].map(c => c.getAttribute('aria-label'))"
    )
    assert all(len(label) > 20 for label in labels)
    for part in ("time", "memory", "timeline", "plans", "roofline", "scaling"):
        assert browser.run(f"return document.querySelectorAll('#{part} table tbody tr').length") > 2
    unnamed = "return [...document.querySelectorAll('button, a, summary, input, select')]"
    unnamed += (
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert browser.run(unnamed) == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_two_kinds_of_the_timeline_look_alike(browser, large, dark):
    """Waiting and messages to a neighbour once had one grey, exposed and hidden communication one green."""
    browser.open(large.path, dark=dark)
    browser.draw()
    drawn = "return echarts.getInstanceByDom(document.getElementById('timeline-chart')).getOption().series"
    colours = browser.run(f"{drawn}.map(each => JSON.stringify(each.itemStyle.color))")
    assert len(colours) >= 8
    assert len(set(colours)) == len(colours)


def test_columns_of_short_tables_are_whole_on_a_phone(browser, large):
    """What binds, and how much faster the step would be without it: four short columns."""
    browser.open(large.path, browser.PHONE)
    box = "const box = document.querySelector('#why .scroll'); return [box.scrollWidth, box.clientWidth]"
    wide, shown = browser.run(box)
    assert wide <= shown


def test_hostile_names_stay_text(browser, hostile):
    browser.open(hostile.path)
    browser.draw()
    assert browser.run("return window.hacked") is None
    assert (
        browser.run(
            "return document.querySelectorAll('img, b[onmouseover], i[onerror], iframe, object').length"
        )
        == 0
    )
    shown = browser.run("return document.querySelector('.setting').textContent")
    assert shown.startswith(hostile.said["model"])
    assert hostile.said["model"] in browser.run("return document.title")
    assert browser.run("return advisorPage.data.prediction.model") == hostile.said["model"]
    assert "run <i>" in browser.run("return document.querySelector('#runs h3').textContent")
    hover = "return document.querySelector('#timeline-chart') && advisorPage.escaped(advisorPage.data.prediction.model)"
    assert "<" not in browser.run(hover)


def test_runs_stand_beside_the_prediction(browser, hostile):
    browser.open(hostile.path)
    text = browser.run("return document.getElementById('runs').innerText")
    assert seconds(hostile.said["step_time_s"]) in text
    assert seconds(1.1) in text
    browser.draw()
    assert browser.run("return !!document.querySelector('#run-0-chart canvas')")


def test_paper_is_light_and_has_every_chart(browser, large):
    browser.open(large.path, dark=True)
    paper = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.run(paper)
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run(paper) != dark
    assert browser.wait("return [...document.querySelectorAll('.chart')].every(c => c.dataset.drawn)")
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run(paper) == dark
