"""`--price`: what an hour of a GPU costs whoever asks, in place of the price on file, or where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from advisor.whole_numbers import Number

if TYPE_CHECKING:
    from hardware_db import Cluster

Function = TypeVar("Function", bound=Callable[..., Any])
EXAMPLE = 3.5
GIVEN = "--price"  # source of a price that was given


def price_option(function: Function) -> Function:
    """Decorator: --price, USD of one GPU for one hour; plan files keep it."""
    return click.option(
        "--price",
        type=Number(EXAMPLE),
        metavar="USD",
        callback=_positive,
        help="What one GPU costs you an hour, for the $ of --tokens [that on file, if there is one].",
    )(function)


def _positive(context: click.Context, parameter: click.Parameter, given: float | None) -> float | None:
    if given is not None and not 0 < given < math.inf:
        raise ValueError(
            f"--price {given:g} is not a price above 0, in USD a GPU-hour. Try --price {EXAMPLE:g}."
        )
    return given


def priced(cluster: Cluster, price: float | None) -> Cluster:
    """The cluster with that price [USD/h]; as it is for None."""
    from hardware_db.schema import Quantity

    if price is None:
        return cluster
    own = Quantity(price, "USD/h", "assumed", GIVEN)
    return replace(cluster, quantities={**cluster.quantities, "price_per_gpu_hour": own})


def price_note(cluster: Cluster) -> list[str]:
    """Where the price of --tokens comes from, in a line; nothing where it was given, or none is known."""
    quantity = cluster.quantities.get("price_per_gpu_hour")
    if quantity is None or quantity.source == GIVEN:
        return []
    return [f"${quantity.value:.2f} a GPU-hour: {quantity.source}; --price says what it costs you"]
