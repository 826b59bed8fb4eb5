"""advisor compare: two plans, or a plan and a run, term by term."""

from __future__ import annotations

import json

import click


@click.command(name="compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, /, first: str, second: str, as_json: bool) -> None:
    """Two plans side by side: which is quicker, by how much, how sure that is, and every term that differs.

    A and B are plan files (`advisor explain --save`), or folders of runs (`advisor run` tells them): then measured
    stands beside predicted. Plans of other models, machines or sizes are compared by what a token takes.

    \b
    advisor compare plan.toml other.toml
    """
    from advisor.comparison import Comparison
    from advisor.comparison_sides import read_side
    from advisor.comparison_text import comparison_lines

    found = Comparison(read_side(first), read_side(second))
    if as_json:
        from advisor.comparison_text import answer

        record = found.to_dict()
        record["verdict"] = {"text": answer(found), **record["verdict"]}
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo("\n".join(comparison_lines(found)))
    context.exit(0 if found.a.holds and found.b.holds else 1)
