"""What the source of a published run leaves unsaid of it, and of which software release it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor.measurement_rows import Row

HABITS = Path(__file__).with_name("measurement_habits.toml")
# "26.02" in nemo:26.02.01 or in pytorch:26.04-py3.
CONTAINER_RELEASE = re.compile(r"(?<![\d.])2\d\.(0[1-9]|1[0-2])(?!\d)")
# "21" in Megatron-LM 2021, and the month taken for a year that stands alone.
CONTAINER_YEAR = re.compile(r"\b20(2\d)\b")
MIDYEAR = "06"
# Tasks of other frameworks.
TASK_NAMES = {"": "pretrain", "peft": "lora"}


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
    """Whether a row names the habit's source or software, in letters of either case, and is not later than it."""
    match = str(habit["match"])
    words = re.escape(match) + (r"\b" if match[-1:].isalnum() else "")
    named = not match or re.search(
        rf"\b{words}", f"{row.text('source')} | {row.text('container')}", re.IGNORECASE
    )
    return bool(named) and row_date(row) <= habit.get("until", "99.12")


def _follows(row: Row, recipe: Mapping[str, Any], release: str) -> bool:
    """Whether a row of a release runs a recipe: its releases, task and models."""
    first, last = recipe["releases"]
    task = row_task(row)
    named = row.text("model").startswith(tuple(recipe.get("models", ("",))))
    return first <= release <= last and recipe.get("task", task) == task and named


def row_task(row: Row) -> str:
    """The row's task; pretraining where it names none."""
    task = row.text("task").strip().lower()
    return TASK_NAMES.get(task, task)


def row_release(row: Row, habit: Mapping[str, Any]) -> str:
    """Software release "yy.mm": of the container, else the source's, else the date's; "" when none says it.

    Recipes of a repository's head have at least the release that it became.
    """
    container = CONTAINER_RELEASE.search(row.text("container"))
    release = container[0] if container else str(habit.get("release", row_date(row)))
    return max(release, habit["head"]) if _of_head(row) and "head" in habit else release


def row_date(row: Row) -> str:
    """When the row was measured, "yy.mm": its date, else the year that its container names; "" when none says it."""
    year, _, rest = row.text("date").partition("-")
    if len(year) == 4 and year.isdigit():
        return f"{year[2:]}.{rest[:2] or MIDYEAR}"
    named = CONTAINER_YEAR.search(row.text("container"))
    return f"{named[1]}.{MIDYEAR}" if named else ""


def _of_head(row: Row) -> bool:
    """Whether the row ran a recipe of its repository's head, not of a release."""
    return row.text("recipe_key").startswith("HEAD:")
