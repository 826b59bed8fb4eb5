"""advisor trace: a simulated or measured step to open in Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from advisor.case import files_read, read_case, setting_options
from advisor.commands import HELP, not_blank, options_given
from advisor.options import knob_options
from advisor.whole_numbers import WholeNumberWithin


@click.command(name="trace", context_settings=HELP)
@click.argument("plan", required=False, callback=not_blank)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    callback=not_blank,
    help="Trace to write; packed where it ends in .gz.",
)
@click.option(
    "--record",
    metavar="DIR",
    callback=not_blank,
    help="Record of a run: what it measured, beside its prediction.",
)
@click.option(
    "--max-spans",
    type=WholeNumberWithin(1000, 100),
    metavar="N",
    help="Draw neighbouring passes as one beyond so many spans [all].",
)
@click.option("--json", "as_json", is_flag=True, help="What was written, as one JSON document.")
@setting_options
@knob_options
@click.pass_context
def command(context: click.Context, plan: str | None, output: str, **options: Any) -> None:
    """The step of a plan in time, as a trace for Perfetto or chrome://tracing.

    A process for each pipeline stage, a thread for each stream: passes of every micro-batch, communication that is
    exposed inside them, messages between stages, data-parallel traffic, optimizer; memory as a counter. It ends at
    the predicted step time. PLAN is a plan file; without one, the plan of the options, or the one that
    `advisor explain` gave last. --record lays one measured step of every rank beside the prediction of its run.
    Exit code 1 when the plan does not hold.

    \b
    advisor trace plan.toml -o trace.json
    advisor trace --model llama3-8b --gpus 8 --gpu h100 --pp 4 -o trace.json.gz
    advisor trace --record runs/20261121-185818-tiny-gpt -o run.json
    """
    from costmodel.output_file import check_output
    from executor.trace import write_trace

    if options["record"] is not None and plan is not None:
        raise ValueError(f"PLAN {plan} and --record: a record has its own plan. Give one of them.")
    idle = [
        word for name, word in options_given(context).items() if name not in ("record", "output", "as_json")
    ]
    if options["record"] is not None and idle:
        raise ValueError(f"{', '.join(idle)} beside --record: a record has its own plan. Leave it out.")
    check_output("-o", output, "trace", files_read(plan, options))
    runs = True
    if options["record"] is not None:
        from executor.trace_measured import record_trace

        trace = record_trace(Path(options["record"]).expanduser())
    else:
        from advisor.plan_faults import plan_faults
        from advisor.rules import holds
        from advisor.rules.predicted_words import all_words
        from costmodel.simulated_pipeline import with_schedule
        from executor.trace_predicted import predicted_trace

        case = read_case(plan, options)
        with plan_faults(case):
            closed_form = case.predict()
            prediction = with_schedule(closed_form)
        words = all_words(closed_form, case.stack)
        found = case.violations(words)
        runs = holds(closed_form, found)
        trace = predicted_trace(prediction, options["max_spans"] or 0)
    write_trace(Path(output), trace)
    about = trace["otherData"]
    slices = sum(event["ph"] == "X" for event in trace["traceEvents"])
    if options["as_json"]:
        click.echo(json.dumps({"file": output, "slices": slices} | about, indent=2))
    else:
        click.echo("\n".join(_said(output, about, slices, runs)))
    context.exit(0 if runs else 1)


def _said(output: str, about: dict[str, Any], slices: int, runs: bool) -> list[str]:
    from advisor.render import seconds, wrap

    times = [f"a step of {seconds(about['step_time_s'])} predicted"] if "step_time_s" in about else []
    if "measured_step_s" in about:
        # Numbered as `advisor run` and `advisor diagnose` do, from 1.
        times.append(
            f"step {about['step'] + 1} as measured, {seconds(about['measured_step_s'])}, near the median"
        )
    told = f"{output}: {slices:,} slices of {' and of '.join(times)}"
    lines = [wrap(told + "."), "Open it at https://ui.perfetto.dev or in chrome://tracing."]
    return lines if runs else [*lines, "The plan does not hold: `advisor check` tells why, and the way out."]
