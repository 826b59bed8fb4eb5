"""A job file of torchtitan: its keys with the types that they have, and the release that has them all."""

from __future__ import annotations

import ast
import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Modules that add keys of their own.
CUSTOM = ("job.custom_config_module", "experimental.custom_args_module")
FILES = "files"  # in place of a release, those that job files configure
TOLD = 4  # keys that one line tells
# What a type is called, and how a value of it is written.
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text in quotes",
    "list[str]": "a list of texts",
    "list[list[str]]": "a list of lists of texts",
}


@dataclass(frozen=True)
class Job:
    """Keys of a job file that are said, by dotted name, over the defaults of torchtitan.

    release: the newest that has all of them. notes: what was not read, a line each.
    """

    said: Mapping[str, Any]
    release: str
    notes: tuple[str, ...] = ()

    def __getitem__(self, key: str) -> Any:
        return self.said.get(key, tables("keys")["keys"][key].get("default"))

    def first(self, *keys: str) -> Any:
        """Of keys that releases call differently the one that is said, else the default of the last."""
        return next((self.said[key] for key in keys if key in self.said), self[keys[-1]])

    def has(self, key: str) -> bool:
        """Whether the release has the key."""
        return self.release in releases_of(key)


@lru_cache(maxsize=8)
def tables(name: str) -> dict[str, Any]:
    """A table of this folder, by its file's stem."""
    with (HERE / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def releases_of(key: str) -> tuple[str, ...]:
    """Releases that have a key, oldest first."""
    known, record = tables("keys")["releases"], tables("keys")["keys"][key]
    return tuple(
        known[known.index(record.get("since", known[0])) : known.index(record.get("until", known[-1])) + 1]
    )


def read_job(text: str) -> Job:
    """The keys of a job file, or of the JSON that torchtitan saves of one.

    ValueError in one line for what is neither, no key of torchtitan's or of another type."""
    saved = text.lstrip().startswith("{")
    try:
        mapping = json.loads(text) if saved else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        what = "no JSON, as torchtitan saves of a job" if saved else "no TOML, as job files of torchtitan are"
        raise ValueError(f"this is {what}: {reason:.120}. Correct it there.") from None
    said: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in _leaves(mapping, ""):
        if key in known_keys(FILES):
            check(key, value)
            said[key] = value
        else:
            unknown.append(key)
    notes = []
    if unknown:
        module = next((said[key] for key in CUSTOM if said.get(key)), None)
        if module is None:
            check_known(unknown)
        notes.append(f"Not read, as keys of {module}: {_listed(unknown)}.")
    if not said:
        raise ValueError(
            "this names no key of torchtitan's, so it is no job file of it. "
            "One has tables such as [model], [training] and [parallelism]."
        )
    release, mixed = release_of(said)
    return Job(said, release, (*notes, *mixed))


def _leaves(mapping: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Every key with its dotted name; a table that holds no key of ours stands for itself."""
    known = known_keys(FILES)
    for name, value in mapping.items():
        key = above + name
        if value is None:  # of JSON: not said
            continue
        if isinstance(value, dict) and any(each.startswith(f"{key}.") for each in known):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - TOLD} more" if len(keys) > TOLD else ""
    return ", ".join(" ".join(key.split())[:80] for key in keys[:TOLD]) + more


def known_keys(release: str) -> list[str]:
    """Keys of a release, or of any that files configure."""
    wanted = set(tables("keys")["files"]) if release == FILES else {release}
    return [key for key in tables("keys")["keys"] if wanted & set(releases_of(key))]


def check_known(keys: list[str], release: str = FILES) -> None:
    """ValueError in one line for keys that a release has not, or none that files configure, with what may be meant."""
    known = known_keys(release)
    if not (keys := [key for key in keys if key not in known]):
        return
    first, *_, last = tables("keys")["files"]
    folders = list(dict.fromkeys(each.rpartition(".")[0] for each in known))
    if (key := keys[0]) in folders:
        raise ValueError(f"{key} is a table of keys, not a value. Write it as [{key}], its keys below.")
    meant = []
    for key in keys[:TOLD]:
        leaf = key.rpartition(".")[2]
        elsewhere = [each for each in known if leaf != key and each.rpartition(".")[2] == leaf]
        meant += elsewhere[:1] or difflib.get_close_matches(key, [*folders, *known], n=1, cutoff=0.7)
    hint = (
        f"Did you mean {', '.join(dict.fromkeys(meant))}?" if meant else "Take it out, or correct its name."
    )
    what = "is no key" if len(keys) == 1 else "are no keys"
    whose = f"{first} to {last}, which refuses the file, or ignores it" if release == FILES else release
    raise ValueError(f"{_listed(keys)} {what} of torchtitan {whose}. {hint}")


def kinds_of(key: str) -> list[str]:
    """Types that a key may have, as Python writes them."""
    kind = tables("keys")["keys"][key]["type"]
    return [each for each in re.split(r" \| (?![^\[]*\])", kind) if each != "None"]


def check(key: str, value: Any) -> None:
    """ValueError in one line where a value is of another type than its key."""
    kinds = kinds_of(key)
    if any(is_of(each, value) for each in kinds):
        return
    choices = [each for kind in kinds if kind.startswith("Literal") for each in _choices(kind)]
    words = f"one of {', '.join(choices)}" if choices else WORDS[kinds[0]]
    table, _, name = key.rpartition(".")
    shown = "a table" if isinstance(value, dict) else f"{value!r:.60}"
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]}?" if near else f" Correct {name} under [{table}]."
    raise ValueError(f"{key} is {words}, not {shown}.{hint}")


def _choices(kind: str) -> tuple[str, ...]:
    found = ast.literal_eval(kind.removeprefix("Literal"))
    return tuple(found)


def is_of(kind: str, value: Any) -> bool:
    """Whether a value is of a type that a key may have, as Python writes it."""
    if kind.startswith("Literal"):
        return value in _choices(kind)
    if kind.startswith("list["):
        return isinstance(value, list) and all(is_of(kind[5:-1], each) for each in value)
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    return isinstance(value, {"int": int, "float": int | float, "str": str}[kind])


def release_of(said: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The newest release that has all keys; where none has, the newest, and a note on what that lacks.

    A converter is there in the releases that have its table of keys.
    """
    known = tables("keys")["files"]
    needed = {key: key for key in said}
    for name in said.get("model.converters", ()):
        own = next((key for key in tables("keys")["keys"] if key.startswith(f"{name}.")), None)
        needed |= {f"model.converters {name}": own} if own else {}
    for release in reversed(known):
        if all(release in releases_of(key) for key in needed.values()):
            return release, []
    last = known[-1]
    old = [shown for shown, key in needed.items() if last not in releases_of(key)]
    return last, [
        f"No release has all of its keys: torchtitan {last} refuses {_listed(old)}, which is read all the same."
    ]
