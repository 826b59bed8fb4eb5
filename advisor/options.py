"""Command-line options made from the knob catalogue, and plans made from the options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import click

from advisor.sizes import Changes, SizesError, check_gpus
from costmodel.knobs import KNOBS, SETTINGS, Knob, checked_settings
from costmodel.plan import Plan

Function = TypeVar("Function", bound=Callable[..., Any])

# Parameters that are no names of knobs: the pairs of --set, and settings, which may not clash with other options.
_PAIRS = "set_pairs"
_PREFIX = "setting__"
# Sizes of one data-parallel replica.
SIZES = ("tp", "pp", "cp", "encoder_tp", "encoder_pp")
_METAVARS = {"int": "INTEGER", "float": "NUMBER", "text": "TEXT", "choice": "NAME", "list": "NAME,..."}


def flag(name: str) -> str:
    """Option of a knob: --micro-batch for micro_batch."""
    return "--" + name.replace("_", "-")


def as_pins(text: str) -> str:
    """A rule's way out as `advisor explain` takes it: `--vpp 2` as `--pin vpp=2`, `a larger --vpp` as `a larger vpp`.

    Its own options stay.
    """

    def pin(found: re.Match[str]) -> str:
        name, value = found[2].replace("-", "_"), (found[3] or "").strip()
        knob = KNOBS.get(name) or SETTINGS.get(name)
        if knob is None or name == "precision":
            return found[0]
        if knob.kind == "bool":
            return f"--pin {name}={'off' if found[1] else 'on'}{found[3] or ''}"
        try:
            knob.parse(value)
        except ValueError:  # a smaller --tp with --cp: the knob itself, as no option of explain has its name
            return f"{name}{found[3] or ''}"
        return f"--pin {name}={value}"

    def refused(found: re.Match[str]) -> str:
        knob = KNOBS.get(found[2].replace("-", "_"))
        if knob is None or knob.kind != "bool":
            return found[0]
        return f"{'T' if found[1] == 'D' else 't'}ry --no-{found[2]}"

    # What the search chose was not given: it is refused, not dropped.
    text = re.sub(r"\b([Dd])rop --([a-z][a-z0-9-]*)", refused, text)
    text = text.replace("--set ", "--pin ")
    return re.sub(r"--(no-)?([a-z][a-z0-9-]*)( [a-z0-9][\w.,+-]*\b)?", pin, text)


class PinsKnobs(click.Command):
    """A command that searches the knobs: the option of a knob, as other commands have it, is told as its pin."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; ValueError with the pin where an option is that of a knob."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            option = error.option_name
            place = next((at for at, word in enumerate(given) if word.partition("=")[0] == option), None)
            said = "" if place is None else " ".join(given[place : place + 2]).replace("=", " ", 1)
            pinned = as_pins(said)
            if option == "--set":
                pinned = (
                    f"--pin {given[place + 1]}"
                    if place is not None and len(given) > place + 1
                    else "--pin NAME=VALUE"
                )
            elif not pinned.startswith("--pin "):
                raise
            way = " ".join(pinned.split()[:2])
            raise ValueError(
                f"{ctx.info_name} searches the knobs, and {option} is no option of it. "
                f"Try {way}, and the rest is searched around it, or `advisor predict` for a plan of your own."
            ) from None


def knob_options(function: Function) -> Function:
    """Decorator: one option per knob, None when not given. Values are checked by the catalogue.

    Settings are options too, left out of the help, where they would hide the knobs; --set takes any name.
    """
    function = click.option(
        "--set",
        _PAIRS,
        multiple=True,
        metavar="NAME=VALUE",
        help="A knob or setting under any name, ours or a framework's; repeatable. `advisor knobs` has them.",
    )(function)
    for setting in reversed(SETTINGS.values()):
        function = _option(setting, _PREFIX + setting.name, hidden=True)(function)
    for knob in reversed(KNOBS.values()):
        function = _option(knob, knob.name)(function)
    return function


def _option(knob: Knob, parameter: str, hidden: bool = False) -> Callable[[Function], Function]:
    text = f"{knob.meaning} [{_shown(knob)}]"
    if knob.kind == "bool":
        switch = f"{knob.option}/--no-{knob.option[2:]}"
        return click.option(switch, parameter, default=None, help=text, hidden=hidden)

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        if value is not None and knob.name == "precision":
            return _precision(value, context.params)
        return None if value is None else knob.parse(value)

    kind = _METAVARS[knob.kind]
    return click.option(
        knob.option, parameter, default=None, metavar=kind, callback=parse, help=text, hidden=hidden
    )


def _precision(text: str, given: Mapping[str, Any]) -> Any:
    """A recipe by any name; an error about the GPU where it is given: --gpu and --cluster are read first."""
    try:
        return KNOBS["precision"].parse(text)
    except ValueError:
        gpu, cluster = given.get("gpu"), given.get("cluster")
        if gpu is None and cluster is None:
            raise
    from advisor.precisions import parse_precision
    from hardware_db import resolve

    return parse_precision(text, resolve(gpu, cluster)[0])


def _shown(knob: Knob) -> str:
    if knob.kind in ("choice", "list"):
        return f"{', '.join(knob.choices)}; default {value_text(knob.default)}"
    return f"default {value_text(knob.default)}"


def value_text(value: Any) -> str:
    """A knob's value as people write it: on, off, none, 4, mlp+layernorm."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{name}={value_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "+".join(value) or "none"
    return str(value) or "none"


def given_knobs(options: dict[str, Any]) -> dict[str, Any]:
    """The knobs a user named, by name, and under "settings" a dict of the settings, when there are any.

    Raises ValueError when --set contradicts an option.
    """
    knobs = {name: options[name] for name in KNOBS if options.get(name) is not None}
    settings = {name: options[_PREFIX + name] for name in SETTINGS if options.get(_PREFIX + name) is not None}
    for pair in options.get(_PAIRS) or ():
        from costmodel.knobs.names import parse_pair

        knob, value = parse_pair(pair)
        values = knobs if knob.home == "knob" else settings
        if values.get(knob.name, value) != value:
            said = value_text(values[knob.name])
            raise ValueError(f"--set {pair} contradicts {knob.name} = {said}, given too. Leave one out.")
        values[knob.name] = value
    return knobs | ({"settings": settings} if settings else {})


def resized(options: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Options with other sizes or another number of GPUs, also where --set gives them."""
    from costmodel.knobs.names import parse_pair

    pairs = tuple(pair for pair in options.get(_PAIRS) or () if parse_pair(pair)[0].name not in changes)
    return options | changes | {_PAIRS: pairs}


def split_pairs(text: str) -> list[str]:
    """The NAME=VALUE texts of one argument: "tp=4,recompute_modules=mlp,layernorm" holds two.

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

    Raises SizesError when gpus is not a multiple of tp x pp x cp, ValueError when it is not what the knobs use.
    """
    plan = replace(base or Plan(), **_consistent(knobs, base))
    if gpus is None:
        return plan
    check_gpus(gpus)
    others = plan.replica
    sizes = f"tp={plan.tp}, pp={plan.pp}, cp={plan.cp}"
    product = "tp x pp x cp"
    if plan.encoder_pp:
        product = "cp x (tp x pp + encoder_tp x encoder_pp)"
        sizes += f", encoder_tp={plan.encoder_tp or plan.tp}, encoder_pp={plan.encoder_pp}"
    if "dp" in knobs and plan.world != gpus:
        raise ValueError(
            f"--gpus {gpus} is not tp x pp x cp x dp = {plan.world} ({sizes}, dp={plan.dp}). "
            "Leave out --dp, or --gpus."
        )
    if gpus % others:
        raise SizesError(
            f"--gpus {gpus} does not fit {sizes}: {gpus} is not a multiple of {product} = {others}.",
            gpus,
            {name: getattr(plan, name) for name in SIZES},
            lambda changes: replace(plan, **changes).replica,
        )
    return replace(plan, dp=gpus // others)


def _consistent(knobs: dict[str, Any], base: Plan | None) -> dict[str, Any]:
    """Settings join those of `base`; FSDP and its ZeRO stage follow each other unless both are named."""
    values = dict(knobs)
    before = base or Plan()
    if "settings" in values:  # one more setting, not these alone
        values["settings"] = checked_settings(dict(before.settings) | values["settings"])
    if "fsdp" in values and "zero_stage" not in values and values["fsdp"] != before.fsdp:
        values["zero_stage"] = 3 if values["fsdp"] else 1
    return values
