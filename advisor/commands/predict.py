"""advisor predict: one plan's time and memory, term by term."""

from __future__ import annotations

import json
from typing import Any

import click

from advisor.case import files_read, read_case, setting_options
from advisor.commands import HELP, not_blank, not_blank_term
from advisor.options import knob_options


@click.command(name="predict", context_settings=HELP)
@click.argument("plan", required=False, callback=not_blank)
@setting_options
@knob_options
@click.option("--formulas", is_flag=True, help="Every formula, with the numbers of this plan put in.")
@click.option(
    "--term",
    metavar="NAME",
    callback=not_blank_term,
    help="One term only: its formula with numbers, and its sources.",
)
@click.option("--save", metavar="FILE", callback=not_blank, help="Write the plan as a plan file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, plan: str | None, **options: Any) -> None:
    """Step time, throughput and memory of one plan, term by term.

    PLAN is a plan file (`advisor explain --save`). Without one, name the model and the machine, and any knob
    that is not at its default. With both, options win over the file.

    \b
    advisor predict plan.toml
    advisor predict --model 70b --gpus 64 --gpu b200 --tp 4 --pp 4 --vpp 5 \\
      --sequence-parallel
    """
    from advisor.cures import first_cure, to_fit
    from advisor.plan_faults import plan_faults
    from advisor.predict_text import prediction_lines
    from advisor.rules import holds
    from advisor.rules.predicted_words import all_words
    from advisor.sections import gpus_told
    from costmodel.output_file import check_output
    from costmodel.plan_file import provenance, save_plan_file
    from costmodel.simulated_pipeline import with_schedule

    if options["save"]:
        check_output("--save", options["save"], "plan file", files_read(plan, options))
    case = read_case(plan, options)
    with plan_faults(case):
        prediction = with_schedule(case.predict())
    words = all_words(prediction, case.stack)
    found = case.violations(words, prediction)
    if options["save"]:
        from dataclasses import replace

        save_plan_file(options["save"], replace(case.plan_file, prediction=provenance(prediction)))
    if options["term"]:
        from advisor.predict_text import term_lines

        click.echo("\n".join(term_lines(prediction, options["term"])))
    elif options["as_json"]:
        record = prediction.to_dict() | gpus_told(prediction, case.gpus)
        record["assumptions"] = [*case.notes, *record["assumptions"]]
        record["violations"] = [violation.to_dict() for violation in found]
        if options["formulas"]:
            from advisor.predict_text import formula_records

            record["formulas"] = formula_records(prediction)
        click.echo(json.dumps(record, indent=2))
    else:
        way_out = "" if prediction.fits else to_fit(case, first_cure(case))
        lines = prediction_lines(prediction, found, list(case.notes), options["formulas"], way_out, case.gpus)
        click.echo("\n".join(lines))
        if options["save"]:
            click.echo(f"\nSaved as {options['save']}.")
    context.exit(0 if holds(prediction, found) else 1)
