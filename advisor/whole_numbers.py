"""Options that count something: whole numbers, of tokens also as people say them, with one line for anything else."""

from __future__ import annotations

import math
import re
from typing import Any

import click

# Context lengths are named by powers of two: 128K is 131,072 tokens.
TOKENS_A_K = 1024
_NUMBER = re.compile(r"(\d[\d_]*|\d{1,3}(?:,\d{3})+)(\.\d+)?(e\+?\d{1,2})?\s*([km]?)", re.IGNORECASE)


class WholeNumber(click.ParamType):
    """A count. a_k: what a k behind it stands for, 0 where that is not clear; example: told for what is no number."""

    name = "integer"

    def __init__(self, example: int, a_k: int = 0) -> None:
        self.example = example
        self.a_k = a_k

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. ValueError in one line: what was given, the rule, the way out."""
        if isinstance(value, int):
            return value
        try:
            return int(value)
        except ValueError:
            pass
        found = _NUMBER.fullmatch(value.strip())
        meant = [_meant(found, a_k) for a_k in ((self.a_k,) if self.a_k else (1000, 1024))] if found else []
        if meant and meant[0].is_integer() and meant[0] == meant[-1]:
            return int(meant[0])
        option = param.opts[0] if param else "the option"
        rule = "a whole number" + (f", of which a K is {self.a_k:,}" if self.a_k else "")
        near = dict.fromkeys(max(1, round(number)) for number in meant if math.isfinite(number))
        numbers = ", or ".join(map(str, near)) or self.example
        raise ValueError(f"{option} {value!r} is not {rule}. Try {option} {numbers}.")


def _meant(found: re.Match[str], a_k: int) -> float:
    digits = found[1].replace(",", "").replace("_", "")
    return float(digits + (found[2] or "") + (found[3] or "")) * a_k ** " km".index(found[4].lower() or " ")


COUNT = WholeNumber(8)
SEQUENCES = WholeNumber(128)
TOKENS = WholeNumber(8192, TOKENS_A_K)
