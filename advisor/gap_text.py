"""A measurement beside its prediction as text: the verdict, the terms, the one to blame, what to change."""

from __future__ import annotations

from collections.abc import Callable

from advisor.diagnose_text import measured_lines
from advisor.gap import Gap
from advisor.measured.checks import COLD, UNMARKED
from advisor.render import bold, heading, memory, percent, seconds, table, wrap
from executor.compare import Row
from hardware_db.units import three_figures


def gap_lines(found: Gap) -> list[str]:
    """The page of `compare` for a log, a run or a trace with its prediction."""
    lines = [bold(wrap(answer(found))), *(wrap(text) for text in blame_texts(found))]
    lines += [heading("Predicted beside measured"), *_rows(found.rows)]
    if found.traced:
        lines += [heading("By the trace, a step"), *_rows(found.traced)]
    findings = [each for each in found.diagnosed.diagnosis.findings if each.rule.severity != "rest"]
    if findings:
        lines.append(heading("Symptoms (`advisor diagnose` tells more)"))
        for each in findings[:6]:
            ceiling = f", a cure wins at most {percent(each.ceiling)} of the step" if each.ceiling else ""
            lines.append(wrap(f"{each.rule.title}{ceiling}: {each.evidence}", "  ", "    "))
    lines += [heading("Measured"), *measured_lines(found.measured)]
    lines += [wrap(f"warning: {text}", "  ", "    ") for text in found.measured.warnings]
    lines += [wrap(text, "  ", "    ") for text in found.measured.notes]
    return lines


def answer(found: Gap) -> str:
    """One line: both times, the sign, and where that lies; before them, where the two are not of one run."""
    predicted, measured = float(found.predicted["step_time_s"]), found.measured.step
    interval = found.predicted["interval"]
    share = abs(found.seconds) / predicted
    way = "longer" if found.seconds > 0 else "less"
    apart = found.measured.apart
    if apart:
        return (
            f"{apart} Its {seconds(measured)} a step and the {seconds(predicted)} predicted do not compare; "
            f"{found.measured.remedy}."
        )
    cold = found.measured.log is not None and found.measured.log.cold
    doubt = f" But {COLD if cold else UNMARKED}." if cold or found.measured.unmarked else ""
    return (
        f"{seconds(measured)} a step measured, {percent(share)} {way} than the {seconds(predicted)} predicted: "
        f"{found.verdict} of {seconds(interval['low'])} to {seconds(interval['high'])}.{doubt}"
    )


def blame_texts(found: Gap) -> list[str]:
    """Which term, how much of the gap, what to change, and the most that it can bring."""
    blame = found.blame
    if blame is None:
        if (
            not found.measured.another
            and found.measured.log is not None
            and not found.traced
            and not any(row.unit == "s" for row in found.rows[1:])
        ):
            return [
                "No term can be blamed: the log has no timers. Log with --timing-log-level 2 "
                "--timing-log-option minmax, or add --trace."
            ]
        return []
    row = blame.row
    over = seconds(blame.excess)
    inside = found.verdict.startswith("inside")
    if found.seconds > 0 and inside:
        return [
            f"Most of it is {row.name}: {seconds(row.measured)} measured, {seconds(row.predicted)} predicted, "
            f"{over} more; the whole lies inside the interval."
        ]
    if found.seconds <= 0:
        return [
            f"Most of it is {row.name}: {seconds(row.measured)} measured, {seconds(row.predicted)} predicted, "
            f"{over} less."
        ]
    of = (
        f", {percent(blame.share)} of the gap"
        if blame.share <= 1
        else ", more than the gap: other terms are quicker"
    )
    texts = [
        f"To blame: {row.name}, {seconds(row.measured)} measured against {seconds(row.predicted)} predicted: "
        f"{over} more{of}."
    ]
    if blame.cure is not None:
        texts.append(
            f"What to change: {blame.cure.do} At most {percent(blame.ceiling)} of the step is won when the term takes "
            "what was predicted."
        )
    return texts


def _rows(rows: list[Row]) -> list[str]:
    shown: dict[str, Callable[[float], str]] = {
        "s": lambda value: seconds(value) if value else "0",
        "byte": memory,
        "tokens/s": lambda value: f"{value:,.0f}",
        "TFLOP/s": lambda value: f"{value:,.1f}" if abs(value) >= 9.95 else three_figures(value),
    }
    cells = []
    for row in rows:
        show, delta = shown[row.unit], row.measured - row.predicted
        sign = "+" if delta > 0 else "-" if delta < 0 else ""
        cells.append(
            [row.name, show(row.predicted), show(row.measured), sign + show(abs(delta)), row.verdict]
        )
    return table(["quantity", "predicted", "measured", "difference", "verdict"], cells, "lrrrl")
