"""Sections of docs/accuracy.md: report in, Markdown lines out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.evidence import evidence_table

Report = Mapping[str, Any]
GROUPS = {
    "family": "family",
    "gpu": "GPU",
    "precision": "precision",
    "task": "task",
    "stack": "software release",
    "source": "source",
}
LEFT_OUT = ("tenth", "model", "release", "system")
# A reason that has not been given.
NOT_STUDIED = "not studied"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]]


def percent(value: float | None, sign: bool = False) -> str:
    """0.083 as 8.3%, with its sign if asked for; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def summary_section(
    reports: Mapping[str, Report], fit: Mapping[str, Any], gaps: Sequence[Mapping[str, str]]
) -> list[str]:
    """What the page says, first: errors, intervals, ranking and gaps in some lines."""
    names = list(reports)
    report = reports[names[0]]
    summary, order = report["summary"], report["summary"]["ranking"]
    lines = [
        "# Accuracy on published runs",
        "",
        f"Written by `python benchmarks/accuracy.py {' '.join(names)}`: {summary['n']} published runs predicted, "
        f"{summary['skipped']} rows skipped (layout, batch, sequence or time not stated, unknown models).",
        "",
        f"- Step time, in sample: mean error {percent(summary['mape'])}, median {percent(summary['median_ape'])}, "
        f"nine of ten within {percent(summary['p90_ape'])}, bias {percent(summary['bias'], True)}.",
    ]
    held = [
        f"{kind} {percent(fit[f'mape_leave_one_{kind}_out'])}"
        for kind in LEFT_OUT
        if f"mape_leave_one_{kind}_out" in fit
    ]
    if held:
        lines.append(f"- With the row's own group left out of the fit, mean error: {', '.join(held)}.")
    lines.append(f"- Measured inside the 90 % interval: {percent(summary['interval_coverage'])}.")
    if order["n"]:
        lines.append(
            f"- Ranking: of {order['n']} pairs of plans of the same work, the faster is predicted faster in "
            f"{percent(order['share'])}; taking the plan predicted fastest costs {percent(order['mean_regret'])} "
            f"over the fastest measured, mean of {order['works']} works."
        )
    if gaps:
        values = [float(row["gap"]) for row in gaps]
        lines.append(
            f"- Published recipes against our best plan, both predicted: median gap {statistics.median(values):.2f}, "
            f"largest {max(values):.2f}, over {len(values)} works. A large gap is a discovery or an error of ours; "
            "the ten largest are studied below."
        )
    for name in names[1:]:
        more = reports[name]["summary"]
        lines.append(
            f"- `{name}`: {more['n']} runs, mean error {percent(more['mape'])}, median "
            f"{percent(more['median_ape'])}, {percent(more['interval_coverage'])} inside the interval, "
            f"{percent(more['ranking']['share'])} of {more['ranking']['n']} pairs ranked right."
        )
    caption = "predicted against measured step time, and the errors' histogram"
    return [*lines, "", f"![{caption}](accuracy.svg)"]


def holdout_section(report: Report, fit: Mapping[str, Any]) -> list[str]:
    """Errors in sample beside those of rows whose model, system or release was left out of the fit."""
    rows = []
    if "mape_in_sample" in fit:
        mean, median = fit["mape_in_sample"], fit.get("median_in_sample")
        rows.append(["the fit's rows of this table, in sample", percent(mean), percent(median)])
    for kind in LEFT_OUT:
        mean, median = (fit.get(f"{size}_leave_one_{kind}_out") for size in ("mape", "median"))
        rows.append([f"leave one {kind} out", percent(mean), percent(median)])
    summary = report["summary"]
    shipped = ["as shipped, this page's rows", percent(summary["mape"]), percent(summary["median_ape"])]
    return [
        "",
        "## In sample and left out",
        "",
        "The factors over the kernel tables are fitted to these rows. What they are worth shows where a whole model, "
        "system or software release is left out of the fit and then predicted, and a tenth of the rows, as one more "
        "run of these tables would be. Fits use the closed form, without the schedule's simulation, and "
        f"{fit.get('rows', 'some')} rows of {', '.join(fit.get('tables', ['the tables']))}, without those that their "
        "publisher calls untuned, the steps of an optimisation history before its last and those whose recipe is "
        "guessed from its framework's defaults; a dash: not computed.",
        "",
        *table(["errors", "mean", "median"], [shipped, *rows]),
        *untuned_lines(),
    ]


def untuned_lines() -> list[str]:
    """What runs take that nobody tuned, and why their intervals are wide."""
    record = evidence_table().untuned
    if not record:
        return []
    return [
        "",
        f"{record['runs']} of the runs are called not tuned for speed (functional checks on real data, half of them "
        f"fine-tuning). They took {record['quicker']:.2g} to {record['slower']:.2g} times as long as "
        "predicted; no formula of ours says which. Such rows have that interval instead of the one near runs give: it "
        "rests on these very runs, so their coverage here says nothing, and they count in the means all the same.",
    ]


def group_sections(report: Report) -> list[str]:
    """A table of errors by each kind of group."""
    lines: list[str] = []
    for name, title in GROUPS.items():
        rows = [
            [
                key,
                str(group["n"]),
                percent(group["mape"]),
                percent(group["median_ape"]),
                percent(group["bias"], True),
                percent(group["interval_coverage"]),
            ]
            for key, group in report["summary"]["by"].get(name, {}).items()
        ]
        headers = [title, "runs", "mean", "median", "bias", "in 90 % interval"]
        lines += ["", f"## By {title}", "", *table(headers, rows)]
    return lines


def worst_section(report: Report, reasons: Mapping[str, Mapping[str, str]], number: int) -> list[str]:
    """The worst rows, each with what was found about it. Re-measurements of a plan count once."""
    rows, seen = [], set()
    for row in sorted(report["rows"], key=lambda row: (-abs(row["rel_error"]), row["id"])):
        run = f"{row['model']} x{row['gpus']} {row['plan']}"
        if (run, row["cluster"]) in seen or len(rows) == number:
            continue
        seen.add((run, row["cluster"]))
        told = reasons.get(row["id"], {}).get("reason", NOT_STUDIED)
        rows.append([percent(row["rel_error"], True), f"{row['measured']:.3g}", row["id"], run, told])
    return ["", "## Worst", "", *table(["error", "measured [s]", "row", "run", "why"], rows)]
