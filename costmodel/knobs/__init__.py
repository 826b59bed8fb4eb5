"""The one catalogue of knobs: a record per knob in `catalogue.toml`, from which options, files and docs are made."""

from __future__ import annotations

import contextlib
import difflib
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

LONGEST_TEXT = 4096
CATALOGUE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True)
class Knob:
    """One knob of a plan.

    kind is int, float, bool, choice, text or list; low and high bound a number; choices a choice or the
    items of a list. `changes` names the terms that the knob moves. The framework names are empty where none exists.
    """

    name: str
    kind: str
    default: Any
    meaning: str
    changes: str
    helps: str = ""
    hurts: str = ""
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    megatron_lm: str = ""
    megatron_bridge: str = ""
    nemo: str = ""
    source: str = ""

    def error(self, value: Any) -> str | None:
        """One line when `value` is out of the knob's range, else None."""
        option = "--" + self.name.replace("_", "-")
        if self.kind == "int":
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                rule = f"is not a whole number from {self.low} to {self.high}"
                return f"{option} {value!r} {rule}. Default: {self.default}."
        elif self.kind == "float":
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not self.low <= value <= self.high
            ):
                return f"{option} {value!r} is not a number from {self.low} to {self.high}. Default: {self.default}."
        elif self.kind == "text":
            if not isinstance(value, str) or len(value) > LONGEST_TEXT:
                return f"{option} {value!r:.60} is not a text of at most {LONGEST_TEXT} characters."
        elif self.kind == "bool":
            if not isinstance(value, bool):
                return f"{option} {value!r} is not true or false. Default: {str(self.default).lower()}."
        else:
            for item in value if self.kind == "list" and isinstance(value, list | tuple) else [value]:
                if item not in self.choices:
                    near = difflib.get_close_matches(str(item), self.choices, n=1, cutoff=0.4)
                    hint = f" Did you mean {near[0]}?" if near else ""
                    return f"{option} {item!r} is not one of {', '.join(self.choices)}.{hint}"
        return None


@lru_cache(maxsize=1)
def load_knobs() -> dict[str, Knob]:
    """Every knob by name, in the order of the catalogue."""
    with CATALOGUE.open("rb") as file:
        records = tomllib.load(file)
    return {
        name: Knob(name=name, **{**record, "choices": tuple(record.get("choices", ()))})
        for name, record in records.items()
    }


KNOBS = load_knobs()


def knob_error(name: str, value: Any) -> str | None:
    """One line when `value` is not a value of knob `name`, else None."""
    return KNOBS[name].error(value)


def parse_knob(name: str, text: str) -> Any:
    """The value that `text` means for knob `name`, as in `--pin tp=4`. ValueError in one line."""
    key = name.strip().replace("-", "_")
    if key not in KNOBS:
        near = difflib.get_close_matches(key, KNOBS, n=3, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Knobs: {', '.join(KNOBS)}."
        raise ValueError(f"{name!r} is not a knob. {hint}")
    knob = KNOBS[key]
    value: Any = text.strip()
    if knob.kind == "int":
        with contextlib.suppress(ValueError):
            value = int(value)
    elif knob.kind == "float":
        with contextlib.suppress(ValueError):
            value = float(value)
    elif knob.kind == "bool":
        value = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}.get(
            value.lower(), value
        )
    elif knob.kind == "list":
        value = [item for item in value.replace("+", ",").split(",") if item and item != "none"]
    problem = knob.error(value)
    if problem:
        raise ValueError(problem)
    return tuple(value) if knob.kind == "list" else value
