"""advisor completion: what a shell needs to complete advisor's words."""

from __future__ import annotations

import difflib
import json

import click

from advisor.commands import HELP
from advisor.completion import SHELLS


@click.command(name="completion", context_settings=HELP)
@click.argument("shell", required=False, metavar="{bash|zsh|fish}")
@click.option("--json", "as_json", is_flag=True, help="The script inside one JSON document.")
def command(shell: str | None, as_json: bool) -> None:
    """Completion of commands, options, models, GPUs and knobs in bash, zsh or fish.

    It prints a script for the shell to read: write the line on the right where your shell starts.

    \b
    advisor completion bash   ~/.bashrc: eval "$(advisor completion bash)"
    advisor completion zsh    ~/.zshrc: eval "$(advisor completion zsh)"
    advisor completion fish   config.fish: advisor completion fish | source
    """
    from click.shell_completion import get_completion_class

    from advisor.cli import COMPLETE, advisor

    if shell not in SHELLS:
        raise ValueError(_no_shell(shell))
    kind = get_completion_class(shell)
    assert kind is not None
    # Not `source()`, which starts bash to ask for its version.
    made = kind(advisor, {}, "advisor", COMPLETE)
    script = made.source_template % made.source_vars()
    click.echo(json.dumps({"shell": shell, "script": script}) if as_json else script.strip())


def _no_shell(given: str | None) -> str:
    if given is None:
        return f"no shell named; known are {', '.join(SHELLS)}. Try advisor completion bash."
    near = difflib.get_close_matches(given.lower(), SHELLS, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(SHELLS)}."
    return f"{given!r} is not a shell that completes advisor's words. {hint}"
