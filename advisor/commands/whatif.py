"""advisor whatif: what every knob would change on one plan."""

from __future__ import annotations

import json
from typing import Any

import click

from advisor.case import read_case, setting_options
from advisor.commands import HELP, not_blank
from advisor.options import knob_options


@click.command(name="whatif", context_settings=HELP)
@click.argument("plan", required=False, callback=not_blank)
@click.option(
    "--knob", "names", multiple=True, metavar="NAME", help="Only this knob, under any name; repeatable."
)
@click.option("--all", "everything", is_flag=True, help="Also the changes that rules forbid, and why.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@setting_options
@knob_options
@click.pass_context
def command(context: click.Context, /, plan: str | None, **options: Any) -> None:
    """What every knob would change on one plan: step time, memory, and the term that moves.

    One change at a time: switches flipped, sizes halved and doubled on the same GPUs, other choices. PLAN is a
    plan file; without one, the plan of the options, or the one that `advisor explain` gave last.

    \b
    advisor whatif plan.toml --knob tp --knob recompute
    advisor whatif --model 8b --gpus 8 --gpu h100 --tp 2 --sequence-parallel
    """
    from advisor.progress import Progress
    from advisor.whatif import chosen_knobs, what_if
    from advisor.whatif.text import what_if_lines

    knobs = chosen_knobs(options["names"])
    case = read_case(plan, options)
    with Progress(wanted=not options["as_json"]) as progress:
        result = what_if(case, knobs, progress)
    if options["as_json"]:
        record = result.to_dict()
        record["base"]["assumptions"] = [*case.notes, *record["base"]["assumptions"]]
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo("\n".join(what_if_lines(result, options["everything"])))
    context.exit(0 if result.base.fits and not result.errors else 1)
