"""advisor report: one page about a plan, to look at and to share."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import click

from advisor.case import files_read, read_case, setting_options
from advisor.commands import HELP, not_blank
from advisor.options import knob_options
from advisor.prices import price_option, priced
from advisor.workload_options import tokens_option


@click.command(name="report", context_settings=HELP)
@click.argument("plan", required=False, callback=not_blank)
@click.option(
    "-o", "--output", required=True, metavar="FILE", callback=not_blank, help="The page, such as plan.html."
)
@tokens_option("Tokens to train on, such as 15T, for GPU-hours, $ and kWh [1T].")
@price_option
@click.option(
    "--record",
    "records",
    multiple=True,
    metavar="DIR",
    callback=not_blank,
    help="A run's record, or a log, to show beside the prediction; repeatable [those kept of this plan].",
)
@setting_options
@knob_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(
    context: click.Context,
    /,
    plan: str | None,
    output: str,
    tokens: float | None,
    price: float | None,
    records: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """One page of a plan to open in a browser: breakdowns, timeline, what-if, evidence.

    The page holds everything that it shows, opens from disk and asks the network for nothing. Every number drills
    down to its formula and its source; sliders recompute the plan in the page. PLAN is a plan file; without one,
    the plan of the options, or the one that `advisor explain` gave last. Exit code 1 when the plan does not hold.

    \b
    advisor report plan.toml -o plan.html
    advisor report --model llama3-8b --gpus 8 --gpu h100 --tp 2 -o plan.html
    """
    from advisor.progress import Progress
    from advisor.report.page import write_report
    from advisor.report.subject import subject_of_case, without_page
    from advisor.sections import gpus_told
    from costmodel.output_file import check_output
    from costmodel.plan_file import last_plan_path

    check_output("-o", output, "page", (*files_read(plan, options), *records))
    case = read_case(plan, options)
    case = replace(case, cluster=priced(case.cluster, price))
    if plan is None and options["model"] is None:
        plan = str(last_plan_path())
    page = ("-o", "--output", "--tokens", "--price", "--record")
    asked = [] if plan else ["predict", *without_page(sys.argv[2:], page)]
    with Progress(wanted=not as_json) as progress:
        subject = subject_of_case(case, plan, tokens, records, progress, asked)
        written = write_report(output, subject)
    size = written.stat().st_size
    if as_json:
        told = subject.prediction.to_dict() | gpus_told(subject.prediction, subject.gpus)
        record = {"file": str(written), "bytes": size, "prediction": told}
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo(f"Wrote {written} ({size / 1e6:.1f} MB). Open it in a browser.")
        if not subject.holds:
            click.echo("The plan does not hold: `advisor check` tells why, and the way out.")
    context.exit(0 if subject.holds else 1)
