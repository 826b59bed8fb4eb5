"""The page itself: one file that holds everything, opens from disk and asks the network for nothing."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from importlib import resources
from pathlib import Path
from typing import Any

from advisor.report import page_charts
from advisor.report.engine import engine_script, whatif_markup, whatif_script
from advisor.report.markup import Markup, data_script, join, raw, section, tag
from advisor.report.page_answer import answer, why
from advisor.report.page_breakdown import breakdowns
from advisor.report.page_evidence import evidence, runs
from advisor.report.payload import payload
from advisor.report.subject import Subject
from costmodel.plan_file import check_writable, write_whole

# Nothing of the page may ask the network for anything, even if something in it wanted to.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
SCRIPTS = ("units.js", "formula.js", "breakdown.js", "timeline.js", "charts.js", "page.js")
LIBRARY = "vendor/echarts.min.js"


def write_report(path: str | Path, subject: Subject) -> Path:
    """Write the page whole or not at all, over what was there; returns the path. OSError as `check_writable`."""
    target = Path(path).expanduser()
    check_writable(target)
    return write_whole(target, report_page(subject))


def report_page(subject: Subject) -> str:
    """The page about a plan."""
    data = payload(subject)
    mathml = json.dumps(data["formulas"].pop("mathml"), ensure_ascii=False)
    sections = [
        ("answer", "Answer", answer(subject, data)),
        ("why", "Why", why(subject)),
        *zip(("time", "memory"), ("Time", "Memory"), breakdowns(data), strict=True),
        ("timeline", "Timeline", page_charts.timeline(data)),
        ("plans", "All plans", page_charts.plans(data)),
        ("roofline", "Roofline", page_charts.roofline(data)),
        ("scaling", "Scaling", page_charts.scaling(data)),
        ("whatif", "What if", section("whatif", "What if", raw(whatif_markup()))),
        ("evidence", "Evidence", evidence(subject, data)),
        ("runs", "Runs", runs(data)),
    ]
    shown = [(identity, name, body) for identity, name, body in sections if body]
    title = f"{subject.prediction.plan.describe()}, {subject.prediction.model.name}"
    html = tag(
        "html",
        _head(title),
        tag(
            "body",
            tag("a", "To the answer", href="#answer", class_="skip"),
            _top(shown),
            tag("main", *(body for _, _, body in shown)),
            _foot(data),
            data_script("data", data),
            _packed_script("formulas", mathml),
            _packed_script("library", asset(LIBRARY)),
            *(_script(asset(name)) for name in SCRIPTS),
            _script(engine_script(subject.prediction, subject.stack, subject.names)),
            _script(whatif_script()),
        ),
        lang="en",
    )
    # What is not a character (half of a pair, in a file name) cannot be in a file of UTF-8.
    return f"<!doctype html>\n{html}\n".encode("utf-8", "replace").decode("utf-8")


def asset(name: str) -> str:
    """Text of a file of this package."""
    return (resources.files("advisor.report") / "assets" / name).read_text(encoding="utf-8")


def _packed_script(identity: str, content: str) -> Markup:
    return tag("script", packed(content), type="text/plain", id=identity)


def packed(text: str) -> str:
    """A text in fewer letters, as a browser unpacks it: zlib (its "deflate") in base64."""
    return b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _head(title: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", raw(asset("style.css"))),
    )


def _top(shown: list[tuple[str, str, Any]]) -> Markup:
    links = [tag("a", name, href=f"#{identity}") for identity, name, _ in shown]
    return tag(
        "header",
        tag("nav", *links, aria_label="Sections"),
        tag(
            "button", "theme: auto", type="button", class_="button", id="theme", aria_label="Theme: automatic"
        ),
        class_="top",
    )


def _foot(data: dict[str, Any]) -> Markup:
    return tag(
        "footer",
        f"advisor {data['advisor']}, {data['made_on']}. Charts: Apache ECharts 6.1.0 (Apache-2.0). "
        "The page holds everything that it shows and asks the network for nothing.",
    )


def _script(text: str) -> Markup:
    # A script cannot hold the text that ends it; in our own JavaScript it may stand only inside strings.
    return join([raw("<script>"), raw(text.replace("</script", "<\\/script")), raw("</script>")])
