"""Plans that a publisher ships as recipes, without times: whether they fit.

bridge_recipes.csv is written by tools/read_bridge_recipes.py; a run of such a plan must fit on its GPU.
"""

from __future__ import annotations

import csv
from pathlib import Path

from advisor.measurements import Case, row_case
from advisor.measurements.memory import refuted
from advisor.measurements.rows import Row
from costmodel.predict import predict

RECIPES = Path(__file__).with_name("bridge_recipes.csv")


def recipe_rows() -> list[Row]:
    """Rows of the table, as runs of NeMo 26.08; a time is asked for, and any will do."""
    common = {"step_time_s": "1", "container": "nemo:26.08"}
    with RECIPES.open(newline="", encoding="utf-8") as file:
        return [Row(values | common) for values in csv.DictReader(file)]


def shipped_cases() -> tuple[list[Case], int]:
    """Recipes as plans, and how many contradict themselves: sizes, or layers and stages, that do not divide."""
    rows = recipe_rows()
    cases = [case for case in map(row_case, rows) if isinstance(case, Case)]
    whole = [
        case for case in cases if not any(each.endswith("chunks: balanced") for each in case.assumptions)
    ]
    return whole, len(rows) - len(whole)


def over_memory(cases: list[Case]) -> dict[str, tuple[float, bool]]:
    """By recipe, the share by which its peak is over the GPU's memory [1], and whether that refutes it."""
    found = {}
    for case in cases:
        prediction = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
        share = prediction.peak_memory_bytes / prediction.device_bytes - 1
        found[case.id] = (share, refuted(prediction))
    return found


def recipe_lines() -> list[str]:
    """What the section Memory says of them."""
    cases, contradict = shipped_cases()
    found = over_memory(cases).values()
    over = [share for share, _ in found if share > 0]
    return [
        f"Of {len(cases)} plans that are shipped as recipes, without times ({cases[0].row.text('source')}), "
        f"{len(over)} are predicted over their GPU's memory, by up to {max(over):.0%}, and "
        f"{sum(no for _, no in found)} so far over that we call them impossible. {contradict} more contradict "
        "themselves: sizes, or layers and stages, that do not divide.",
    ]
