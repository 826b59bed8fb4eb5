"""One record of the catalogue: what a knob or a setting means, which values it takes, what others call it."""

from __future__ import annotations

import contextlib
import difflib
import re
from dataclasses import dataclass, field
from typing import Any

LONGEST_TEXT = 4096
_SWITCH = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


@dataclass(frozen=True)
class Knob:
    """One knob of a plan, or one setting that a plan carries.

    kind is int, float, bool, choice, text or list; low and high bound a number; choices a choice or the
    items of a list. home is knob (a field of Plan), setting, workload or model: where its value stands.
    `changes` names the terms that it moves, `effect` says by how much somewhere. nemo, megatron_bridge,
    megatron_lm, mcore (Megatron-Core's field), torchtitan (0.3.0, config/configs.py) and env (environment variable)
    hold names separated by commas, remarks in brackets. aliases are further names; related ones find the record but
    count otherwise; names of `inverse` are true when it is false. `words` are the frameworks' words for values of ours.
    `cites` are the rows of the published list of tuning knobs that it covers.
    """

    name: str
    kind: str
    default: Any
    meaning: str
    changes: str
    home: str = "knob"
    topic: str = ""
    helps: str = ""
    hurts: str = ""
    effect: str = ""
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    nemo: str = ""
    megatron_bridge: str = ""
    megatron_lm: str = ""
    mcore: str = ""
    torchtitan: str = ""
    env: str = ""
    aliases: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    inverse: tuple[str, ...] = ()
    words: dict[str, Any] = field(default_factory=dict, hash=False)
    cites: tuple[str, ...] = ()
    source: str = ""

    @property
    def option(self) -> str:
        """The option on the command line: --micro-batch for micro_batch."""
        return "--" + self.name.replace("_", "-")

    def error(self, value: Any) -> str | None:
        """One line when `value` is out of the knob's range, else None."""
        if self.kind == "int":
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                rule = f"is not a whole number from {self.low} to {self.high}"
                return f"{self.option} {value!r} {rule}. Default: {self.default}."
        elif self.kind == "float":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not self.low <= value <= self.high:
                rule = f"is not a number from {self.low} to {self.high}"
                return f"{self.option} {value!r} {rule}. Default: {self.default}."
        elif self.kind == "text":
            if not isinstance(value, str) or len(value) > LONGEST_TEXT:
                return f"{self.option} {value!r:.60} is not a text of at most {LONGEST_TEXT} characters."
        elif self.kind == "bool":
            if not isinstance(value, bool):
                default = str(self.default).lower()
                return f"{self.option} {value!r} is not true or false. Default: {default}."
        else:
            return self._choice_error(value)
        return None

    def near(self, item: Any) -> list[str]:
        """The choices that begin with a word that is none, else the nearest, if one is."""
        # fp8 is nearer to mxfp8 than to the three recipes that begin with it.
        begun = [choice for choice in self.choices if item and choice.startswith(str(item).lower())]
        return begun or difflib.get_close_matches(str(item), self.choices, n=1, cutoff=0.4)

    def _choice_error(self, value: Any) -> str | None:
        for item in value if self.kind == "list" and isinstance(value, list | tuple) else [value]:
            if item not in self.choices:
                near = self.near(item)
                hint = f" Did you mean {', '.join(near)}?" if near else ""
                known = ", ".join(choice or "''" for choice in self.choices)
                return f"{self.option} {item!r} is not one of {known}.{hint}"
        return None

    def parse(self, text: str) -> Any:
        """The value that `text` means, in our words or a framework's. ValueError in one line."""
        value: Any = text.strip()
        if self.kind in ("int", "float"):
            with contextlib.suppress(ValueError):
                value = int(value) if self.kind == "int" else float(value)
        elif self.kind == "bool":
            value = _SWITCH.get(value.lower(), value)
        elif self.kind == "list":
            items = (item.strip("'\"") for item in re.split(r"[\s,+]+", value.strip("[]")))
            value = [item for item in items if item and item != "none"]
        if isinstance(value, str) and value not in self.choices:
            value = self.words.get(value, self.words.get(value.lower(), value))
        problem = self.error(value)
        if problem:
            raise ValueError(problem)
        return tuple(value) if self.kind == "list" else value
