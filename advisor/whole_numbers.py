"""Options that are numbers: whole ones, of tokens also as people say them, and any, with one line for what is none."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import click

# Context lengths are named by powers of two: 128K is 131,072 tokens.
TOKENS_A_K = 1024
_NUMBER = re.compile(r"(\d[\d_]*|\d{1,3}(?:,\d{3})+)(\.\d+)?(e\+?\d{1,2})?\s*([km]?)", re.IGNORECASE)


class WholeNumber(click.ParamType):
    """A count. a_k: what a k behind it stands for, 0 where that is not clear; example: told for what is no number.

    of: what is counted, where people also count it in something else, of which a million is meant.
    """

    name = "integer"

    def __init__(self, example: int, a_k: int = 0, of: str = "") -> None:
        self.example = example
        self.a_k = a_k
        self.of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. ValueError in one line: what was given, the rule, the way out."""
        number, near = _read(value, self.a_k)
        if number is not None:
            return number
        rule = "a whole number" + (f", of which a K is {self.a_k:,}" if self.a_k else "")
        if self.of and str(value).strip().lower().endswith("m"):
            rule, near = f"{rule} of {self.of}", []
        raise ValueError(_refusal(param, value, rule, near or [self.example]))


class WholeNumberWithin(click.IntRange):
    """A count between bounds, which the help tells. example: told for what is no number."""

    def __init__(self, example: int, least: int, most: int | None = None) -> None:
        super().__init__(least, most)
        self.example, self.least, self.largest = example, least, math.inf if most is None else most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. ValueError in one line with the nearest that is allowed."""
        number, near = _read(value)
        if number is not None and self.least <= number <= self.largest:
            return number
        meant = [number] if number is not None else near
        ways = [self.least if each < self.least else int(min(each, self.largest)) for each in meant]
        rule = f"a whole number {_bounds(self.least, self.largest)}"
        raise ValueError(_refusal(param, value, rule, ways or [self.example]))


class Number(click.ParamType):
    """Any number. example: told for what is none."""

    name = "float"

    def __init__(self, example: float) -> None:
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. ValueError in one line: what was given, the rule, the way out."""
        try:
            return float(value)
        except ValueError:
            raise ValueError(_refusal(param, value, "a number", [self.example])) from None


class NumberWithin(click.FloatRange):
    """A number between bounds, which the help tells. example: told for what is none."""

    def __init__(self, example: float, least: float, most: float) -> None:
        super().__init__(least, most)
        self.example, self.least, self.largest = example, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. ValueError in one line with the nearest that is allowed."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if self.least <= number <= self.largest:
            return number
        way = self.example if math.isnan(number) else min(max(number, self.least), self.largest)
        raise ValueError(_refusal(param, value, f"a number {_bounds(self.least, self.largest)}", [way]))


def _read(value: Any, a_k: int = 0) -> tuple[int | None, list[int]]:
    """The whole number that was given; or None, and those near what was meant."""
    if isinstance(value, int):
        return value, []
    try:
        return int(value), []
    except ValueError:
        pass
    found = _NUMBER.fullmatch(value.strip())
    meant = [_meant(found, each) for each in ((a_k,) if a_k else (1000, 1024))] if found else []
    if meant and meant[0].is_integer() and meant[0] == meant[-1]:
        return int(meant[0]), []
    return None, list(dict.fromkeys(max(1, round(number)) for number in meant if math.isfinite(number)))


def _bounds(least: float, most: float) -> str:
    return f"from {least}" + (f" to {most}" if math.isfinite(most) else "")


def _refusal(param: click.Parameter | None, value: Any, rule: str, ways: Sequence[float]) -> str:
    option = param.opts[0] if param else "the option"
    told = ", or ".join(f"{way:g}" if isinstance(way, float) else str(way) for way in ways)
    return f"{option} {value!r} is not {rule}. Try {option} {told}."


def _meant(found: re.Match[str], a_k: int) -> float:
    digits = found[1].replace(",", "").replace("_", "")
    return float(digits + (found[2] or "") + (found[3] or "")) * a_k ** " km".index(found[4].lower() or " ")


COUNT = WholeNumber(8)
SEQUENCES = WholeNumber(128, of="sequences: tokens over --seq-len")
TOKENS = WholeNumber(8192, TOKENS_A_K)
