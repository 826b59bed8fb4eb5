"""advisor diagnose: what costs a run its time, from its log, its record or a trace."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from advisor.case import setting_options
from advisor.commands import HELP, not_blank


@click.command(name="diagnose", context_settings=HELP | {"allow_extra_args": True})
@click.argument("source", metavar="LOG|RUN|TRACE", callback=not_blank)
@click.option(
    "--plan", metavar="PLAN", callback=not_blank, help="The plan that ran, where the log does not show it."
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="FILE",
    callback=not_blank,
    help="A trace of torch.profiler (.json, .json.gz) or an export of nsys (.sqlite); repeatable.",
)
@setting_options
@click.option("--all", "everything", is_flag=True, help="Also every symptom that cannot be judged here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, /, source: str, as_json: bool, everything: bool, **options: Any) -> None:
    """What costs a run its time: symptoms with evidence, cause, knob, and the most that a cure can bring.

    Reads logs of Megatron-LM, Megatron-Bridge and NeMo, records of `advisor run`, and traces. A log that shows its
    arguments needs only --gpu to be compared with its prediction. Exit code 1 when something is broken, not slow.

    \b
    advisor diagnose train.log --gpu h100
    advisor diagnose train.log --plan plan.toml --trace rank0.json.gz
    """
    if context.args:
        raise ValueError(_one_too_many(source, context.args[0]))
    from advisor.diagnose_text import diagnosis_lines
    from advisor.diagnosis import diagnosed

    found = diagnosed(source, options.pop("traces"), options.pop("plan"), options)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        click.echo("\n".join(diagnosis_lines(found, everything)))
    faults = any(each.rule.severity == "fault" for each in found.diagnosis.findings)
    context.exit(1 if faults else 0)


def _one_too_many(source: str, more: str) -> str:
    """What to write where a second file stands behind the first: its name tells what it is."""
    first, second = shlex.quote(source), shlex.quote(more)
    told = f"one log, run or trace is diagnosed, and {second} stands behind {first}."
    if more.endswith(".toml"):
        return f"{told} A plan stands behind --plan: `advisor diagnose {first} --plan {second}`."
    if more.endswith((".json", ".json.gz", ".sqlite")):
        return f"{told} A trace of it stands behind --trace: `advisor diagnose {first} --trace {second}`."
    return f"{told} `advisor compare {first} {second}` sets two runs side by side."
