"""Command-line options of the workload beyond its length and batch: task, documents, adapters, expert loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from advisor.whole_numbers import TOKENS, Number, WholeNumber
from costmodel.model_spec import ModelSpec
from costmodel.workload import TASKS, Workload

Function = TypeVar("Function", bound=Callable[..., Any])
NAMES = ("mean_length", "length_cv", "packed", "lora_rank", "lora_targets", "moe_imbalance", "moe_adjacent")

_TOKENS = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:e[+-]?\d+)?)([kmbt]?)", re.IGNORECASE)
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def tokens_option(help_text: str) -> Callable[[Function], Function]:
    """Decorator: --tokens, the length of a training run, as a number or as people say it: 15T."""
    return click.option("--tokens", metavar="N", callback=_tokens, help=help_text)


def _tokens(context: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    found = _TOKENS.fullmatch(given.strip())
    try:
        number = float(found[1].replace(",", "").replace("_", "")) if found else float(given)
    except ValueError:
        raise ValueError(f"--tokens {given!r} is not a number of tokens. Try --tokens 1e12, or 1T.") from None
    return number * (_SUFFIXES[found[2].lower()] if found else 1.0)


def task_option(default: str | None, help_text: str) -> Callable[[Function], Function]:
    """Decorator: --task, in any case: LoRA is lora."""
    return click.option(
        "--task",
        default=default,
        show_default=default is not None,
        metavar="NAME",
        callback=lambda context, parameter, given: (
            given.lower() if given and given.lower() in TASKS else given
        ),
        help=help_text,
    )


def workload_options(function: Function) -> Function:
    """Decorator: the options, None when not given; `Workload` checks them."""
    for option in reversed(
        [
            click.option(
                "--mean-length", type=TOKENS, metavar="TOKENS", help="Mean tokens of a document [full]."
            ),
            click.option(
                "--length-cv",
                type=Number(0.5),
                metavar="X",
                help="Spread of its length over the mean: 0 for equal ones [unknown].",
            ),
            click.option(
                "--packed/--no-packed",
                default=None,
                help="Documents fill sequences together, or each is padded: to the longest of a batch where "
                "--length-cv tells it, in full with pp, ep or graphs [packed].",
            ),
            click.option(
                "--lora-rank",
                type=WholeNumber(16),
                metavar="R",
                help="Rank of the adapters of --task lora [16].",
            ),
            click.option(
                "--lora-targets",
                metavar="NAME",
                help="Layers with adapters: qkv, attention, all: experts and mixers too [all].",
            ),
            click.option(
                "--moe-imbalance",
                type=Number(1.2),
                metavar="X",
                help="Tokens of the busiest expert rank over the mean; benchmarks force 1, real loads do not [1].",
            ),
            click.option(
                "--moe-adjacent/--moe-spread",
                default=None,
                help="A token's experts stand side by side (a benchmark's fake gate), or anywhere [anywhere].",
            ),
        ]
    ):
        function = option(function)
    return function


def given_workload(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Workload` that a user named."""
    return {name: options[name] for name in NAMES if options.get(name) is not None}


def check_acting(given: Mapping[str, Any], workload: Workload, model: ModelSpec) -> None:
    """Refuse options that change nothing of this task and model: whoever names one expects that it does.

    given: the fields of `workload` that a user named. ValueError in one line.
    """
    idle: dict[str, str] = {}
    if workload.task != "lora":
        words = f"is of the adapters of --task lora, and the task is {workload.task}. Add --task lora, or leave it out."
        idle |= dict.fromkeys(("lora_rank", "lora_targets"), words)
    if model.moe is None:
        words = f"is of experts, and {model.name} has none. Leave it out."
        idle |= dict.fromkeys(("moe_imbalance", "moe_adjacent"), words)
    if not workload.mean_length:
        idle["length_cv"] = (
            "spreads lengths around --mean-length, which is not given. Add it, or leave this out."
        )
        if workload.task == "pretrain":
            idle["packed"] = (
                "pads documents of --mean-length, which is not given, and the task is pretrain. "
                "Add --mean-length, or leave it out."
            )
    for name, words in idle.items():
        # Balanced experts and one length are true of every model and task.
        usual = (getattr(Workload, name), 0.0 if name == "length_cv" else None)
        harmless = not name.startswith("lora") and getattr(workload, name) in usual
        if name in given and not harmless:
            option = "--no-packed" if name == "packed" else "--" + name.replace("_", "-")
            shown = "" if isinstance(given[name], bool) else f" {given[name]}"
            raise ValueError(f"{option}{shown} {words}")
