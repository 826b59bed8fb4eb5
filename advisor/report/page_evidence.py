"""What the answer rests on: published runs nearby, what was assumed, what was searched, and runs of the plan itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.outside import outside_lines
from advisor.placement import placement_lines
from advisor.render import gib, percent, seconds
from advisor.report.markup import Markup, chart, section, table, tag
from advisor.report.subject import Subject
from advisor.search import HOW_RANKED
from advisor.sections import assumption_texts, batch_text
from advisor.space.declared import declared_space
from advisor.space.text import ADDED_UP, counted, reasons


def evidence(subject: Subject, data: dict[str, Any]) -> Markup:
    """Published runs, assumptions, where groups stand, the space that was searched."""
    prediction = subject.prediction
    interval = data["prediction"]["interval"]
    notes = [*subject.notes, *prediction.assumptions]
    placed = placement_lines(prediction)
    return section(
        "evidence",
        "Evidence and assumptions",
        tag(
            "p",
            f"{percent(interval['level'], 0)} interval {seconds(interval['low'])} to {seconds(interval['high'])}",
            f": {interval['basis']}." if interval["basis"] else ".",
        ),
        *_published(data["prediction"]["evidence"]),
        tag("h3", "Assumed"),
        tag("ul", *(tag("li", text) for text in assumption_texts(notes))),
        *(
            (tag("h3", "Where groups stand"), tag("ul", *(tag("li", line) for line in placed)))
            if placed
            else ()
        ),
        *_space(subject),
    )


def _published(near: list[dict[str, Any]]) -> Iterator[Markup]:
    if not near:
        return
    rows = [
        (
            f"{run['model']}, {run['task']}",
            f"{run['gpus']:,} of {run['cluster']}",
            run["precision"],
            f"{seconds(run['measured_step_time_s'])} for {batch_text(run)}",
            f"{100 * run['our_error']:+.1f} %",
            ", ".join(run["differences"]) or "none that counts",
            ", ".join(part for part in (run["source"], run["date"]) if part),
        )
        for run in near
    ]
    yield table(
        [
            "published run",
            "GPUs",
            "format",
            "measured",
            "we are off by",
            "differences of this plan",
            "source",
        ],
        rows,
        "The nearest published runs",
        "llllrll",
    )


def _space(subject: Subject) -> Iterator[Markup]:
    if subject.explanation is None:
        return
    result = subject.explanation.result
    yield tag("h3", "Space searched")
    yield tag(
        "p",
        f"{counted(result)} No sampling: {HOW_RANKED}.",
    )
    told = (*declared_space(subject.prediction.platform), *outside_lines(subject.explanation.outside))
    yield tag("ul", *(tag("li", f"{line[0].upper()}{line[1:]}.") for line in told))
    if result.rejected:
        rows = reasons(result, len(result.rejected))
        yield table(["dropped by", "combinations", "for example"], rows, "What dropped combinations", "lrl")
        yield tag("p", f"{ADDED_UP[0].upper()}{ADDED_UP[1:]}.", class_="note")


def runs(data: dict[str, Any]) -> Markup | str:
    """Measured beside predicted, where the plan was run."""
    if not data["records"]:
        return ""
    pieces: list[Markup] = []
    for number, record in enumerate(data["records"]):
        rows = [
            (
                row["name"],
                _amount(row["predicted"], row["unit"]),
                _amount(row["measured"], row["unit"]),
                f"{row['measured'] / row['predicted']:.2f}" if row["predicted"] else "",
                row["verdict"],
            )
            for row in record["rows"]
        ]
        pieces.append(tag("h3", tag("code", record["path"])))
        pieces.append(
            tag(
                "p",
                f"{record['plan']}: {record['num_steps']:,} measured steps on {record['cluster']}.",
                class_="note",
            )
        )
        if record["otherwise"]:
            told = f"It ran, and is predicted here, with {', '.join(record['otherwise'])}."
            pieces.append(tag("p", told, class_="note"))
        pieces.append(
            table(
                ["", "predicted", "measured", "measured / predicted", "verdict"],
                rows,
                "Predicted beside measured",
                "lrrrl",
            )
        )
        if record["steps"]:
            pieces.append(
                chart(
                    f"run-{number}-chart",
                    f"Seconds of each of {len(record['steps'])} steps, with the predicted time and its interval.",
                    "Each step as it was measured; the band is the predicted interval. Warm-up steps are hollow.",
                    "low",
                )
            )
        if record["warnings"]:
            pieces.append(tag("ul", *(tag("li", warning) for warning in record["warnings"]), class_="note"))
    return section("runs", "Runs of this plan", *pieces)


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    return gib(value) if unit == "byte" else f"{value:,.0f} {unit}"
