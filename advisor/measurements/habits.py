"""What the source of a published run leaves unsaid of it, and of which software release it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor.measurements.release import named_release, release_in, row_date
from advisor.measurements.rows import Row
from advisor.measurements.systems import row_cluster
from costmodel.model_registry import is_known, load_model
from hardware_db import Cluster

HABITS = Path(__file__).with_name("habits.toml")
RECIPES = Path(__file__).with_name("recipes.toml")
# The entry whose recipes those are.
RECIPES_OF = "nemo:"
# Words of tasks in other tables; the first that stands in a text counts.
TASK_WORDS = {
    **dict.fromkeys(("lora", "dora", "peft"), "lora"),
    **dict.fromkeys(("sft", "fine-?tun", "full.ft"), "sft"),
    **dict.fromkeys(("pre-?train", "^train(ing)?$"), "pretrain"),
}


# The column that says what a habit is for; a recipe of which a row states all is not told as assumed.
COLUMNS = {
    "moe_dispatcher": "moe_dispatcher",
    "expert_graphs": "cuda_graph",
    "hybrid_graphs": "cuda_graph",
    "moe_overlap": "moe_a2a_overlap",
    "delay_wgrad": "moe_a2a_overlap",
    "recompute": "recompute_granularity",
    "recompute_modules": "recompute_granularity",
    "capacity_factor": "moe_token_drop",
    "offloads_layers": "act_offload_layers",
    "fp8_parameters": "fp8_param_gather",
    "dispatcher_sms": "other_flags",
    "kernels": "other_flags",
    "plain_kernels": "other_flags",
    "nan_checks": "other_flags",
    "maxima_inside": "other_flags",
    "cudnn_norms": "other_flags",
    "loss_of": "other_flags",
}
# What tells which rows an entry is for, and is its own.
NAMING = ("match", "also", "until", "undated", "container", "anyone", "unprinted", "before")
# Which step of an optimisation history a row's notes say it is.
STEP = re.compile(r"\bstep (\d+) of \d+ of a cumulative\b")
# What a recipe says of mixtures of experts and of hybrids alone, and of formats of 8 and 4 bits alone.
OF_EXPERTS = ("moe_dispatcher", "expert_graphs", "hybrid_graphs", "moe_overlap", "capacity_factor")
OF_FORMATS = ("fp8_parameters", "cudnn_norms", "maxima_inside")
PAPER = re.compile(r"\d{4}\.\d{5}")
BROAD = re.compile(r"^(bf|fp|float|bfloat)(16|32)$")
# Of a recipe, what tells which runs it is for.
CONDITIONS = (
    *("releases", "task", "models", "generations", "domain_from", "performance"),
    *("sources", "functions", "precisions", "fsdp", "why"),
)


@lru_cache(maxsize=1)
def _habits() -> list[dict[str, Any]]:
    """The entries in their order, each over the one that it is like."""
    with HABITS.open("rb") as file:
        entries = {entry["match"]: entry for entry in tomllib.load(file)["source"]}
    with RECIPES.open("rb") as file:
        entries[RECIPES_OF]["recipe"] = tomllib.load(file)["recipe"]

    def whole(entry: dict[str, Any]) -> dict[str, Any]:
        above = whole(entries[entry["like"]]) if "like" in entry else {}
        return {key: value for key, value in above.items() if key not in NAMING} | entry

    return [whole(entry) for entry in entries.values()]


def habit_of(row: Row) -> dict[str, Any]:
    """The habits of the row's source, and over them those of its step in a history and of its recipe.

    Those of software are only what is usual where another than its known publishers tells of a run.
    """
    habit = next(habit for habit in _habits() if _is_of(row, habit))
    if not row.text("source").startswith(tuple(habit.get("publishers", ("",)))):
        habit = habit | {"anyone": True}
    if step := STEP.search(row.text("notes")):
        for part in habit.get("before", ()):
            habit = habit | (part if int(step[1]) < part["step"] else {})
    release = row_release(row, habit)
    for recipe in habit.get("recipe", ()):
        wanted = habit.get("performance", True) or not recipe.get("performance", False)
        if wanted and _follows(row, recipe, release):
            why = habit["why"] + (f"; {recipe['why']}" if _is_open(row, recipe) else "")
            habit = habit | recipe | {"performance": habit.get("performance", True), "why": why}
    return habit


def _is_open(row: Row, recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe says anything of this run that no column of the row does."""
    silent = [key for key in recipe if key not in CONDITIONS and not row.text(COLUMNS.get(key, ""))]
    if any(key in recipe for key in OF_EXPERTS) and not _has_experts(row):
        return False
    if set(silent) <= {*OF_FORMATS} and BROAD.search(row.text("precision")):
        return False
    return bool(silent)


def _has_experts(row: Row) -> bool:
    """Whether a row's model is one that recipes of experts and of hybrids are for; one not known may be."""
    try:
        model = load_model(row.text("model"))
    except ValueError:
        return True
    return model.moe is not None or model.mamba is not None


def _is_of(row: Row, habit: Mapping[str, Any]) -> bool:
    """Whether a row names the habit's source or software, in letters of either case, and is not later than it.

    A row without a date is taken for an early one only where the entry says so.
    """
    text = f"{row.text('source')} | {row.text('container')}"
    names = (str(habit["match"]), *habit.get("also", ()))
    named = any(re.search(_as_word(name), text, re.IGNORECASE) for name in names)
    held = re.search(_as_word(habit.get("container", "")), row.text("container"), re.IGNORECASE)
    early = row_date(row) <= habit.get("until", "99.12") and (row_date(row) or habit.get("undated"))
    return named and held is not None and ("until" not in habit or bool(early))


def _as_word(name: str) -> str:
    """A pattern of a name as a word of its own; of a paper's number also with its version behind it."""
    version = r"(?:v\d+)?" if PAPER.fullmatch(name) else ""
    return rf"\b{re.escape(name)}" + (rf"{version}\b" if name[-1:].isalnum() else "") if name else ""


def _follows(row: Row, recipe: Mapping[str, Any], release: str) -> bool:
    """Whether a row of a release runs a recipe: its source, function, releases, task, models, precision and domains."""
    if not row.text("source").startswith(tuple(recipe.get("sources", ("",)))):
        return False
    if row.text("precision") not in recipe.get("precisions", (row.text("precision"),)):
        return False
    if recipe.get("fsdp", False) and not row.count("fsdp", 0):
        return False
    if not any(re.search(name, row.text("recipe_key")) for name in recipe.get("functions", ("",))):
        return False
    first, last = recipe["releases"]
    if not first <= release <= last or recipe.get("task", row_task(row)) != row_task(row):
        return False
    if not _model_name(row.text("model")).startswith(tuple(recipe.get("models", ("",)))):
        return False
    known = {"generations", "domain_from"} & set(recipe)
    cluster = _cluster(row.text("system")) if known else None
    if cluster is None:
        return not known
    generations = recipe.get("generations", (cluster.gpu.generation,))
    return cluster.gpu.generation in generations and cluster.domain_size >= recipe.get("domain_from", 1)


@lru_cache(maxsize=256)
def _model_name(written: str) -> str:
    """Our name of a row's model, or what is written where it is none of ours."""
    try:
        return load_model(written).name if is_known(written) else written
    except ValueError:
        return written


@lru_cache(maxsize=256)
def _cluster(system: str) -> Cluster | None:
    try:
        return row_cluster(system)[0]
    except ValueError:
        return None


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
