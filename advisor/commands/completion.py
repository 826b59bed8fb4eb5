"""advisor completion: what a shell needs to complete advisor's words."""

from __future__ import annotations

import json

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="The script inside one JSON document.")
def command(shell: str, as_json: bool) -> None:
    """Completion of commands, options, models, GPUs and knobs in bash, zsh or fish.

    It prints a script for the shell to read: write the line on the right where your shell starts.

    \b
    advisor completion bash   ~/.bashrc: eval "$(advisor completion bash)"
    advisor completion zsh    ~/.zshrc: eval "$(advisor completion zsh)"
    advisor completion fish   config.fish: advisor completion fish | source
    """
    from click.shell_completion import get_completion_class

    from advisor.cli import COMPLETE, advisor

    kind = get_completion_class(shell)
    assert kind is not None
    # Not `source()`, which starts bash to ask for its version.
    made = kind(advisor, {}, "advisor", COMPLETE)
    script = made.source_template % made.source_vars()
    click.echo(json.dumps({"shell": shell, "script": script}) if as_json else script.strip())
