"""Command-line options of the workload beyond its length and batch: documents, adapters, expert loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])
NAMES = ("mean_length", "length_cv", "packed", "lora_rank", "lora_targets", "moe_imbalance", "moe_adjacent")


def workload_options(function: Function) -> Function:
    """Decorator: the options, None when not given; `Workload` checks them."""
    for option in reversed(
        [
            click.option(
                "--mean-length", type=int, metavar="TOKENS", help="Mean tokens of a document [full]."
            ),
            click.option(
                "--length-cv", type=float, metavar="X", help="Spread of its length over the mean [0]."
            ),
            click.option(
                "--packed/--no-packed",
                default=None,
                help="Documents fill sequences together, or each is padded: to the longest of a batch where "
                "--length-cv tells it, in full with pp, ep or graphs [packed].",
            ),
            click.option(
                "--lora-rank", type=int, metavar="R", help="Rank of the adapters of --task lora [16]."
            ),
            click.option(
                "--lora-targets",
                metavar="NAME",
                help="Layers with adapters: qkv, attention, all: experts and mixers too [all].",
            ),
            click.option(
                "--moe-imbalance",
                type=float,
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
