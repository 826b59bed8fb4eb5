"""Where the step's time and the worst rank's memory go: a chart, a table of every term, and a panel to drill into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.render import gib, percent, seconds
from advisor.report.markup import Markup, chart, section, tag

GIB = 2**30


def breakdowns(data: dict[str, Any]) -> list[Markup]:
    """The sections of time and memory."""
    known = data["prediction"]
    memory = known["memory"]
    stage = f"{memory['worst_stage']} pipeline stage" if known["knobs"]["pp"] > 1 else "all ranks alike"
    return [
        _breakdown("time", "Time of one step", known["terms"], "seconds", ""),
        _breakdown(
            "memory",
            f"Memory of the worst rank ({stage})",
            known["memory_terms"],
            "bytes",
            f"Allocated {memory['allocated_gib']:.1f}, reserved {memory['reserved_gib']:.1f}, of the device "
            f"{memory['worst_rank_gib']:.1f} of {memory['device_gib']:.1f} GiB.",
        ),
    ]


def _breakdown(identity: str, title: str, root: dict[str, Any], key: str, note: str) -> Markup:
    what = "step time" if key == "seconds" else "memory"
    biggest = sorted(root["parts"], key=lambda part: -part[key])[:3]
    negative = any(leaf[key] < 0 for leaf in _leaves(root))
    below = " What is below zero stands in the table only." if negative else ""
    told = ", ".join(f"{part['title']} {percent(part['share'])}" for part in biggest)
    return section(
        identity,
        title,
        tag("p", note, class_="note") if note else "",
        tag(
            "div",
            chart(
                f"{identity}-chart",
                f"Treemap of the {what} by term. Largest: {told}. The table beside it has every number.",
                "Area is share of the whole. Choose a term, here or in the table, for its formula, its inputs and "
                f"their sources.{below}",
            ),
            _tree_table(root, key, f"{title}, term by term; parts sum to the whole"),
            class_="beside",
        ),
        tag(
            "div",
            tag(
                "p", "Choose a term to see its formula, its numbers and where they come from.", class_="note"
            ),
            id=f"{identity}-detail",
            class_="detail",
            tabindex="-1",
            role="region",
            aria_live="polite",
            aria_label=f"{what}: the term chosen",
        ),
    )


def _tree_table(root: dict[str, Any], key: str, caption: str) -> Markup:
    rows = [
        tag(
            "tr",
            tag(
                "th",
                tag(
                    "button",
                    term["title"],
                    type="button",
                    class_="term",
                    data_term=term["name"],
                    data_of=key,
                ),
                scope="row",
                style=f"--level:{level}",
            ),
            tag("td", _amount(term[key], key), class_="right"),
            tag("td", percent(term["share"]), class_="right"),
            tag(
                "td",
                tag("i", style=f"width:{100 * max(term['share'], 0):.2f}%"),
                class_="bar",
                aria_hidden="true",
            ),
            data_level=level,
        )
        for term, level in _rows(root, key)
    ]
    zero = [term["title"] for term in _leaves(root) if not term[key]]
    foot = tag("p", f"Zero here: {', '.join(dict.fromkeys(zero))}.", class_="note") if zero else ""
    head = tag(
        "tr",
        *(
            tag("th", name, scope="col", class_=side)
            for name, side in (("term", None), ("value", "right"), ("share", "right"))
        ),
        tag("td", "", class_="bar"),
    )
    inner = tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", *rows), class_="table tree"
    )
    return tag("div", tag("div", inner, class_="scroll"), foot)


def _rows(term: dict[str, Any], key: str, level: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    yield term, level
    for part in term["parts"]:
        if part[key]:
            yield from _rows(part, key, level + 1)


def _leaves(term: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not term["parts"]:
        yield term
    for part in term["parts"]:
        yield from _leaves(part)


def _amount(value: float, key: str) -> str:
    return seconds(value) if key == "seconds" else gib(value)
