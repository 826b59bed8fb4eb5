"""What the source of a published run leaves unsaid of it, and of which software release it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor.measurement_release import named_release, release_in, row_date
from advisor.measurement_rows import Row

HABITS = Path(__file__).with_name("measurement_habits.toml")
# Words of tasks in other tables; the first that stands in a text counts.
TASK_WORDS = {"lora": "lora", "peft": "lora", "sft": "sft", "fine-?tun": "sft", "pre-?train": "pretrain"}


@lru_cache(maxsize=1)
def _habits() -> list[dict[str, Any]]:
    """The entries in their order, each over the one that it is like."""
    with HABITS.open("rb") as file:
        entries = {entry["match"]: entry for entry in tomllib.load(file)["source"]}

    def whole(entry: dict[str, Any]) -> dict[str, Any]:
        return (whole(entries[entry["like"]]) if "like" in entry else {}) | entry

    return [whole(entry) for entry in entries.values()]


def habit_of(row: Row) -> dict[str, Any]:
    """The habits of the row's source, and over them those of its recipe."""
    habit = next(habit for habit in _habits() if _is_of(row, habit))
    release = row_release(row, habit)
    for recipe in habit.get("recipe", ()):
        if _follows(row, recipe, release):
            habit = habit | recipe | {"why": f"{habit['why']}; {recipe['why']}"}
    return habit


def _is_of(row: Row, habit: Mapping[str, Any]) -> bool:
    """Whether a row names the habit's source or software, in letters of either case, and is not later than it.

    A row without a date is not taken for an early one.
    """
    text = f"{row.text('source')} | {row.text('container')}"
    names = (str(habit["match"]), *habit.get("also", ()))
    named = any(re.search(_as_word(name), text, re.IGNORECASE) for name in names)
    held = re.search(_as_word(habit.get("container", "")), row.text("container"), re.IGNORECASE)
    return named and held is not None and ("until" not in habit or "" < row_date(row) <= habit["until"])


def _as_word(name: str) -> str:
    return rf"\b{re.escape(name)}" + (r"\b" if name[-1:].isalnum() else "") if name else ""


def _follows(row: Row, recipe: Mapping[str, Any], release: str) -> bool:
    """Whether a row of a release runs a recipe: its releases, task and models."""
    first, last = recipe["releases"]
    task = row_task(row)
    named = row.text("model").startswith(tuple(recipe.get("models", ("",))))
    return first <= release <= last and recipe.get("task", task) == task and named


def row_task(row: Row) -> str:
    """The row's task; pretraining where it names none."""
    task = row.text("task").strip().lower()
    return next((name for word, name in TASK_WORDS.items() if re.search(word, task)), task or "pretrain")


def row_release(row: Row, habit: Mapping[str, Any]) -> str:
    """Software release "yy.mm", "" when nothing says it: the container's, else what we know of the source.

    Else the one in the source's name, the date's, or the usual one of software that many publish runs of. Recipes of a
    repository's head have at least the release that it became.
    """
    told = release_in(row.text("source")) or row_date(row) or habit.get("usual_release", "")
    release = named_release(row) or str(habit.get("release", told))
    return max(release, habit["head"]) if _of_head(row) and "head" in habit else release


def _of_head(row: Row) -> bool:
    """Whether the row ran a recipe of its repository's head, not of a release."""
    return row.text("recipe_key").startswith("HEAD:")
