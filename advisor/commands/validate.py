"""advisor validate: predicted against measured for a table of published runs."""

from __future__ import annotations

import json
from typing import Any

import click

from advisor.commands import HELP, not_blank
from advisor.whole_numbers import WholeNumberWithin

# Columns of `advisor.validation.GROUPS`, here too since help imports nothing heavy; a test compares the two.
GROUPS = ("family", "gpu", "precision", "task", "stack", "source", "model")
# Rows shown of those that state two step times.
TWO_TIMES_SHOWN = 3


@click.command(name="validate", context_settings=HELP)
@click.argument("csv_file", metavar="FILE.csv", callback=not_blank)
@click.option("--model", default=None, metavar="NAME", help="Only rows of this model.")
@click.option("--include-superseded", is_flag=True, help="Also rows that their publisher replaced later.")
@click.option("--by", default="source", show_default=True, help=f"Group: {', '.join(GROUPS)}.")
@click.option(
    "--worst",
    type=WholeNumberWithin(10, 0, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Worst rows shown.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(
    csv_file: str, model: str | None, include_superseded: bool, by: str, worst: int, as_json: bool
) -> None:
    """Predicted against measured for a table of published runs.

    FILE.csv has a row a run with model, system, gpus, precision, gbs, seq_len, the layout (tp, pp, cp, vp, mbs, fsdp)
    and step_time_s or a rate such as tokens_per_sec_per_gpu; where both are there, gbs may be left out. Rows that
    cannot be expressed, or are faster than their GPU computes, are listed with the reason. Copies of a row count once,
    rows of the same id with other values each, and both are told.
    Ends with 2 where none could be predicted.

    \b
    advisor validate measurements.csv
    advisor validate measurements.csv --by gpu --worst 3
    """
    from advisor.measurements import read_rows
    from advisor.progress import Progress
    from advisor.validation import validate

    if by not in GROUPS:
        raise ValueError(f"--by {by!r} is not one of {', '.join(GROUPS)}.")
    rows = [row for row in read_rows(csv_file) if model is None or row.text("model") == model]
    if not rows:
        raise ValueError(
            f"{csv_file} has no row" + (f" of model {model!r}." if model else ". Add one below the header.")
        )
    with Progress(wanted=not as_json) as progress:
        report = validate(rows, include_superseded, progress)
    click.echo(json.dumps(report, indent=2) if as_json else page(report, by, worst))
    if not report["summary"]["n"]:
        raise ValueError(
            f"{csv_file}: no row could be predicted. The reason of each row stands in the output."
        )


def page(report: dict[str, Any], by: str, worst: int) -> str:
    """The report as text, answer first."""
    from advisor.measurements.limits import slow_hint
    from advisor.measurements.times import two_times
    from advisor.render import heading, percent, table, wrap
    from advisor.validation import memory_verdict, skip_reasons

    summary = report["summary"]
    if not summary["n"]:
        lines = ["no row could be predicted"]
    else:
        lines = [
            f"{_counted(summary['n'], 'run')} predicted: mean error {percent(summary['mape'])}, "
            f"median {percent(summary['median_ape'])}, "
            f"9 of 10 within {percent(summary['p90_ape'])}",
            f"measured inside the 90 % interval: {percent(summary['interval_coverage'])}",
            wrap(memory_verdict(report["rows"])),
            *_ranking_line(summary["ranking"]),
            heading(f"By {by}"),
        ]
        rows = [
            [
                key or "not stated",
                str(group["n"]),
                percent(group["mape"]),
                percent(group["median_ape"]),
                percent(group["bias"], signed=True),
            ]
            for key, group in summary["by"][by].items()
        ]
        lines += table([by, "runs", "mean", "median", "bias"], rows, "lrrrr")
        order = sorted(report["rows"], key=lambda row: -abs(row["rel_error"]))[:worst]
        if order:
            lines.append(heading("Worst"))
            shown = [
                [
                    percent(row["rel_error"], 0, signed=True),
                    f"{row['measured']:.3g} s",
                    row["id"],
                    f"{row['model']} x{row['gpus']} {row['plan']}",
                ]
                for row in order
            ]
            lines += table(["error", "measured", "row", "run"], shown, "rrll")
        hints = [(row["id"], slow_hint(row["predicted"], row["measured"])) for row in report["rows"]]
        hints = [(name, hint) for name, hint in hints if hint]
        if hints:
            more = f" And {len(hints) - 1} more such." if len(hints) > 1 else ""
            lines.append(wrap(f"{hints[0][0]}: {hints[0][1]}.{more}", "  "))
        differing = [(row["id"], words) for row in report["rows"] if (words := two_times(row["note"]))]
        lines += [wrap(f"{name}: {words}.", "  ") for name, words in differing[:TWO_TIMES_SHOWN]]
        if more := len(differing) - TWO_TIMES_SHOWN:
            lines += [f"  And {more} more such; --json has all."] if more > 0 else []
        lines += _silence_lines(report["rows"])
    if report["repeated_ids"]:
        from advisor.measurements.repeats import Repeat, repeats_line

        found = [Repeat(each["id"], each["lines"], each["counted"]) for each in report["repeated_ids"]]
        lines.append(heading("Ids"))
        lines.append(wrap(repeats_line(found), "  "))
    if report["skipped"]:
        lines.append(heading(f"Skipped: {_counted(len(report['skipped']), 'row')}"))
        for reason, ids in skip_reasons(report["skipped"])[:12]:
            more = f" and {len(ids) - 4} more" if len(ids) > 4 else ""
            lines.append(wrap(f"{len(ids)} x {reason} [{', '.join(ids[:4])}{more}]", "  ", "    "))
    return "\n".join(lines)


def _silence_lines(rows: list[dict[str, Any]]) -> list[str]:
    """What rows of unknown recipes leave unsaid, and their step times read otherwise."""
    from advisor.measurements.readings import silences
    from advisor.render import heading, table, wrap

    found = [
        [each.column, str(each.rows), each.taken, each.other, _change(each.least, each.most)]
        for each in silences(rows)
    ]
    if not found:
        return []
    words = (
        "No row and no known recipe says these: intervals hold the readings too. Fill a column, and they go."
    )
    headers = ["column", "rows", "taken", "or", "step time then"]
    return [heading("Columns left empty"), *table(headers, found, "lrrrr"), wrap(words, "  ")]


def _change(least: float, most: float) -> str:
    """Ratios of step times as what the step takes more or less."""
    from advisor.render import percent

    ends = [percent(ratio - 1, 0, signed=True) for ratio in (least, most)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _ranking_line(order: dict[str, Any]) -> list[str]:
    """Share of pairs of the same work that are in the right order; nothing where no pair is comparable."""
    from advisor.render import percent, wrap

    if not order["n"]:
        return []
    return [
        wrap(
            f"of {order['n']} pairs of the same work, the faster is predicted faster in "
            f"{percent(order['share'])} (pairs within {percent(order['noise'])} left out)"
        )
    ]
