"""Command-line options made from the knob catalogue, and plans made from the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from costmodel.knobs import KNOBS, Knob, parse_knob
from costmodel.plan import Plan

Function = TypeVar("Function", bound=Callable[..., Any])

_METAVARS = {"int": "INTEGER", "float": "NUMBER", "text": "TEXT", "choice": "NAME", "list": "NAME,..."}


def flag(name: str) -> str:
    """Option of a knob: --micro-batch for micro_batch."""
    return "--" + name.replace("_", "-")


def knob_options(function: Function) -> Function:
    """Decorator: one option per knob, None when not given. Values are checked by the catalogue."""
    for knob in reversed(KNOBS.values()):
        function = _option(knob)(function)
    return function


def _option(knob: Knob) -> Callable[[Function], Function]:
    text = f"{knob.meaning} [{_shown(knob)}]"
    if knob.kind == "bool":
        return click.option(
            f"{flag(knob.name)}/--no-{flag(knob.name)[2:]}", knob.name, default=None, help=text
        )

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        return None if value is None else parse_knob(knob.name, value)

    return click.option(
        flag(knob.name), knob.name, default=None, metavar=_METAVARS[knob.kind], callback=parse, help=text
    )


def _shown(knob: Knob) -> str:
    if knob.kind in ("choice", "list"):
        return f"{', '.join(knob.choices)}; default {value_text(knob.default)}"
    return f"default {value_text(knob.default)}"


def value_text(value: Any) -> str:
    """A knob's value as people write it: on, off, none, 4, mlp+layernorm."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return "+".join(value) or "none"
    return str(value)


def given_knobs(options: dict[str, Any]) -> dict[str, Any]:
    """The knobs a user named, by name."""
    return {name: options[name] for name in KNOBS if options.get(name) is not None}


def split_pairs(text: str) -> list[str]:
    """The KNOB=VALUE texts of one argument: "tp=4,recompute_modules=mlp,layernorm" holds two.

    A piece without '=' continues the value before it.
    """
    pairs: list[str] = []
    for piece in text.split(","):
        if "=" in piece or not pairs:
            pairs.append(piece)
        else:
            pairs[-1] += "," + piece
    return pairs


def plan_from_options(knobs: dict[str, Any], gpus: int | None, base: Plan | None = None) -> Plan:
    """A plan of the named knobs over `base` (or the defaults); dp follows from gpus unless it is named.

    Raises ValueError when gpus is not a multiple of tp x pp x cp, or is not what the knobs use.
    """
    plan = replace(base or Plan(), **_consistent(knobs, base))
    if gpus is None:
        return plan
    if gpus < 1:
        raise ValueError(f"--gpus {gpus} is not a whole number from 1. Try --gpus 8.")
    others = plan.tp * plan.pp * plan.cp
    sizes = f"tp={plan.tp}, pp={plan.pp}, cp={plan.cp}"
    if "dp" in knobs and plan.world != gpus:
        raise ValueError(
            f"--gpus {gpus} is not tp x pp x cp x dp = {plan.world} ({sizes}, dp={plan.dp}). "
            "Leave out --dp, or --gpus."
        )
    if gpus % others:
        nearest = max(1, round(gpus / others)) * others
        raise ValueError(
            f"--gpus {gpus} does not fit {sizes}: {gpus} is not a multiple of tp x pp x cp = {others}. "
            f"Try --gpus {nearest}, or smaller sizes."
        )
    return replace(plan, dp=gpus // others)


def _consistent(knobs: dict[str, Any], base: Plan | None) -> dict[str, Any]:
    """FSDP and its ZeRO stage follow each other unless both are named."""
    values = dict(knobs)
    before = base or Plan()
    if "fsdp" in values and "zero_stage" not in values and values["fsdp"] != before.fsdp:
        values["zero_stage"] = 3 if values["fsdp"] else 1
    return values
