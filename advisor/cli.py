"""The command line: finds the command, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import signal
import sys
from typing import Any

import click

from advisor.commands import HELP

# name -> first line of its help. Kept here so that `advisor --help` imports no command.
COMMANDS: dict[str, str] = {
    "explain": "The best plan for a model on a cluster, and why.",
    "predict": "Step time, throughput and memory of one plan, term by term.",
    "run": "Execute a plan with Megatron-Core and put predicted beside measured.",
    "doctor": "Whether this machine is ready for a run: devices, versions, network, environment.",
    "calibrate": "Measure this machine, or learn from runs, into a profile for every command.",
    "dryrun": "What real Megatron-Core computes, sends and keeps under a plan, beside the model's amounts.",
    "export": "A plan as Megatron-Bridge, NeMo 2 or Megatron-LM runs it.",
    "compare": "Two plans, or a plan and a run or its log, side by side and term by term.",
    "diagnose": "What costs a run its time, from its log, its record or a trace.",
    "whatif": "What every knob would change on one plan: time, memory, and the term that moves.",
    "report": "One page of a plan to open in a browser: breakdowns, timeline, what-if, evidence.",
    "trace": "The step of a plan, or of a run beside it, to open in Perfetto.",
    "validate": "Predicted against measured for a table of published runs.",
    "check": "Everything that keeps a plan from running, and the way out.",
    "knobs": "The knobs of a plan: meaning, range, framework names, when they help and hurt.",
    "models": "The models known, with sizes and sources.",
    "hardware": "The GPUs, links and clusters known, with sources.",
    "completion": "Completion of commands, models, GPUs and knobs in bash, zsh or fish.",
}


# Set by a shell that asks for completions.
COMPLETE = "_ADVISOR_COMPLETE"


def examples_last(command: click.Command) -> click.Command:
    """Move the examples of a command's help below its options, where a terminal shows them first."""
    text, mark, examples = inspect.cleandoc(command.help or "").partition("\b\nadvisor ")
    if mark:
        command.help, command.epilog = text.rstrip(), "Examples:\n\n\b\nadvisor " + examples
    return command


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = examples_last(importlib.import_module(f"advisor.commands.{name}").command)
        if COMPLETE in os.environ:
            from advisor.completion import complete_values

            complete_values(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Names of commands, without importing them."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str, click.Command, list[str]]:
        if args and args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"{args[0]!r} is not a command of advisor.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        assert name is not None
        assert command is not None
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader that went away (`| head`) took what it wanted: exit 0, quietly."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings=HELP,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(package_name="advisor")
@click.pass_context
def advisor(ctx: click.Context) -> None:
    """Decide how to train a language model on a GPU cluster, and see why.

    \b
    advisor explain --model 70b --gpus 64 --gpu b200   the plan, and why
    advisor run --model tiny-gpt --gpus 2 --gpu local  train with it here
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def main() -> None:
    """Entry point. Exit codes: 0 good, 1 a plan that does not hold, 2 bad input, 130 interrupted, 143 terminated."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called (`>&-`): nobody reads it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        code = advisor.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        _say(_with_way_out(error))
        code = 2
    except (click.Abort, KeyboardInterrupt) as error:
        _say("interrupted; nothing was left half-written.", prefix="")
        # A run tells which signal ended it; click wraps it.
        code = 128 + getattr(error.__cause__ or error, "number", signal.SIGINT)
    except ValueError as error:
        _say(str(error))
        code = getattr(error, "exit_code", 2)  # 1 of `advisor.plan_faults.PlanError`
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        way = (
            "Free room there, or name a place on another disk."
            if full
            else "Check the path and its permissions."
        )
        _say(f"{where}{error.strerror or error}. {way}")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


# What to write for an option that `explain` needs.
EXAMPLES = {
    "model": "Try --model 70b.",
    "gpus": "Try --gpus 8; with --tokens and --days any number does, as the answer tells how many the days take.",
}


def _with_way_out(error: click.ClickException) -> str:
    """What click says of options and arguments, with where to read what the command takes."""
    said = error.format_message().rstrip()
    if isinstance(error, click.BadOptionUsage) and said.endswith("requires an argument."):
        return f"{said} Write it behind the option, or leave the option out."
    if not isinstance(error, click.UsageError) or "Did you mean" in said or error.ctx is None:
        return said
    missing = error.param.name if isinstance(error, click.MissingParameter) and error.param else ""
    example = f" {EXAMPLES[missing]}" if missing in EXAMPLES and error.ctx.info_name == "explain" else ""
    return f"{said.rstrip('.')}.{example} `{error.ctx.command_path} --help` tells what it takes."


def _say(message: str, prefix: str = "Error: ") -> None:
    click.echo(prefix + " ".join(message.split("\n")), err=True)
