"""The one catalogue of knobs, a record each in the topic files beside this one; options, files and docs follow it.

KNOBS are the fields of `Plan`. SETTINGS are carried by a plan without changing what is predicted, and say why.
INPUTS are knobs of the tuning guides whose value stands with the workload or the model.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.knobs.record import Knob

__all__ = [
    "CATALOGUE",
    "INPUTS",
    "KNOBS",
    "SETTINGS",
    "TOPICS",
    "Knob",
    "checked_settings",
    "knob_error",
    "load_knobs",
    "parse_knob",
]

FOLDER = Path(__file__).parent
# The files in reading order: knobs, then what stands with the workload, then settings.
FILES = (
    "parallel",
    "pipeline",
    "data_parallel",
    "optimizer",
    "precision",
    "experts",
    "memory",
    "overlap",
    "kernels",
    "host",
    "inputs",
    "settings_parallel",
    "settings_overlap",
    "settings_data_parallel",
    "settings_experts",
    "settings_memory",
    "settings_kernels",
    "settings_network",
    "settings_host",
    "settings_data",
    "settings_profiling",
)
_LISTS = ("choices", "aliases", "related", "inverse", "cites")


@lru_cache(maxsize=1)
def load_topics() -> dict[str, dict[str, Knob]]:
    """Every record by name, under the title of its topic."""
    topics: dict[str, dict[str, Knob]] = {}
    for stem in FILES:
        with (FOLDER / f"{stem}.toml").open("rb") as file:
            records = tomllib.load(file)
        title = records.pop("title")
        home = "setting" if stem.startswith("settings_") else "knob"
        topics[title] = {
            name: _record(name, {"home": home, "topic": title} | record) for name, record in records.items()
        }
    return topics


def _record(name: str, values: dict[str, Any]) -> Knob:
    return Knob(name=name, **values | {key: tuple(values[key]) for key in _LISTS if key in values})


TOPICS = load_topics()
CATALOGUE = {name: knob for records in TOPICS.values() for name, knob in records.items()}
KNOBS = {name: knob for name, knob in CATALOGUE.items() if knob.home == "knob"}
SETTINGS = {name: knob for name, knob in CATALOGUE.items() if knob.home == "setting"}
INPUTS = {name: knob for name, knob in CATALOGUE.items() if knob.home in ("workload", "model")}


def load_knobs() -> dict[str, Knob]:
    """Every knob of a plan by name, in the order of the catalogue."""
    return KNOBS


def knob_error(name: str, value: Any) -> str | None:
    """One line when `value` is not a value of knob `name`, else None."""
    return KNOBS[name].error(value)


def parse_knob(name: str, text: str) -> Any:
    """The value that `text` means for knob `name`, as in `--pin tp=4`. ValueError in one line."""
    key = name.strip().replace("-", "_")
    if key not in KNOBS:
        near = difflib.get_close_matches(key, [*KNOBS, *SETTINGS], n=3, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Knobs: {', '.join(KNOBS)}."
        raise ValueError(f"{name!r} is not a knob. {hint}")
    return KNOBS[key].parse(text)


def checked_settings(
    given: Mapping[str, Any] | tuple[tuple[str, Any], ...],
) -> tuple[tuple[str, Any], ...]:
    """Settings as sorted pairs that can be hashed. ValueError in one line for an unknown name or value."""
    pairs = dict(given)
    for name, value in pairs.items():
        if name not in SETTINGS:
            raise ValueError(f"{name!r} is not a setting. {_where(name)}")
        problem = SETTINGS[name].error(value)
        if problem:
            raise ValueError(problem)
    return tuple((name, _frozen(pairs[name])) for name in sorted(pairs))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _where(name: Any) -> str:
    if name in KNOBS:
        return f"It is a knob: {KNOBS[name].option}."
    if name in INPUTS:
        return f"It stands with the {INPUTS[name].home}."
    near = difflib.get_close_matches(str(name).lower(), SETTINGS, n=1, cutoff=0.4)
    return f"Did you mean {near[0]}?" if near else "`advisor knobs` lists them."
