"""advisor compare: two plans, a plan and a run or its log, or a log with the plan that it shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.case import setting_options
from advisor.commands import HELP, not_blank

if TYPE_CHECKING:
    from advisor.gap import Gap


@click.command(name="compare", context_settings=HELP)
@click.argument("first", metavar="A", callback=not_blank)
@click.argument("second", metavar="[B]", required=False, callback=not_blank)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="FILE",
    callback=not_blank,
    help="With a log: a trace of torch.profiler or an export of nsys (.sqlite); repeatable.",
)
@setting_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(
    context: click.Context,
    /,
    first: str,
    second: str | None,
    traces: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Two plans side by side, or a plan beside what was measured: by how much, how sure, and every term that differs.

    A and B are plan files (`advisor explain --save`), folders of runs (`advisor run` tells them), logs of Megatron-LM,
    Megatron-Bridge and NeMo, or traces. Plans of other models, machines or sizes are compared by what a token takes.
    A log that shows its arguments needs no plan, only --gpu; of two logs without plans the measured steps are compared.
    The other options describe the setting of a log.

    \b
    advisor compare plan.toml other.toml
    advisor compare plan.toml train.log
    advisor compare train.log --gpu h100
    """
    from advisor.comparison.kinds import kind_of

    kinds = [kind_of(path) for path in (first, second) if path is not None]
    if second is None or sorted(kinds) in (["log", "plan"], ["plan", "trace"]):
        _gap(_measured(first, second, kinds, traces, options), as_json)
        return
    if "trace" in kinds:
        raise ValueError(
            "a trace is compared with a plan: `advisor compare PLAN TRACE`. Two traces are no comparison."
        )
    from advisor.comparison import Comparison
    from advisor.comparison.sides import read_side
    from advisor.comparison.text import answer, comparison_lines

    if traces or ("log" not in kinds and any(value is not None for value in options.values())):
        raise ValueError(
            "--trace and the options of a setting go with a log. Leave them out for plans and runs."
        )
    from advisor.measured import NoPlanError

    try:
        found = Comparison(read_side(first, options), read_side(second, options))
    except NoPlanError:
        if kinds != ["log", "log"]:
            raise
        from advisor.comparison.logs import Logs

        logs = Logs(first, second, options)
        click.echo(json.dumps(logs.to_dict(), indent=2) if as_json else "\n".join(logs.lines()))
        return
    if as_json:
        record = found.to_dict()
        record["verdict"] = {"text": answer(found), **record["verdict"]}
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo("\n".join(comparison_lines(found)))
    context.exit(0 if found.a.holds and found.b.holds else 1)


def _measured(
    first: str, second: str | None, kinds: list[str], traces: tuple[str, ...], options: dict[str, Any]
) -> Gap:
    """A measurement with the plan beside it, or with its own."""
    from advisor.gap import Gap
    from advisor.measured import read_measured

    if second is None and kinds == ["plan"]:
        if not Path(first).expanduser().exists():
            raise ValueError(f"{first} does not exist. Check the path of the plan, log, run or trace.")
        raise ValueError(
            f"{first} is a plan: name what to compare it with. Try `advisor compare {shlex.quote(first)} OTHER`."
        )
    plan = None if second is None else first if kinds[0] == "plan" else second
    source = second if second is not None and kinds[0] == "plan" else first
    return Gap(read_measured(source, traces, plan, options, need_plan=True))


def _gap(found: Gap, as_json: bool) -> None:
    from advisor.gap_text import answer, gap_lines

    if as_json:
        click.echo(json.dumps({"text": answer(found), **found.to_dict()}, indent=2))
    else:
        click.echo("\n".join(gap_lines(found)))
