"""Sections of docs/accuracy.md on pairs of plans: ranking truth, and published recipes against our best plan."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from accuracy_sections import NOT_STUDIED, Report, percent, table
from recipe_gap import differing

from advisor.measurements import Case
from advisor.ranking import CLASSES
from advisor.search.candidates import resource_seconds
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule

# Upper ends of the classes of gaps.
GAPS = (
    (1.0, "below 1"),
    (1.05, "1 to 1.05"),
    (1.15, "1.05 to 1.15"),
    (1.3, "1.15 to 1.3"),
    (1e9, "above 1.3"),
)


def ranking_section(reports: Mapping[str, Report], cases: Mapping[str, Case]) -> list[str]:
    """Shares of pairs in the right order, and the worst pairs with the terms that decide them."""
    lines = [
        "",
        "## Ranking",
        "",
        "Of two published runs on the same system, is the one measured faster predicted faster? Pairs within 1.5 % of "
        "each other are left out, for re-measurements differ by as much; one plan measured twice is no pair. tied: "
        "predicted equal, where the model knows no difference between releases. tau is Kendall's: right less "
        "wrong pairs, over all.",
    ]
    rows, differences, sources = [], [], []
    for name, report in reports.items():
        order = report["summary"]["ranking"]
        for kind, meaning in CLASSES.items():
            if order["by"]["class"][kind]["n"]:
                rows.append([name, meaning, *_shares(order["by"]["class"][kind])])
        differences += [[name, key, *_shares(group)] for key, group in order["by"]["difference"].items()]
        sources += [[key, *_shares(group)] for key, group in order["by"]["source"].items()]
    counts = ["pairs", "right", "tied", "tau"]
    lines += ["", *table(["rows", "what the pair shares", *counts], rows)]
    lines += ["", "Pairs in which only the plan differs, by how far apart they were measured:", ""]
    lines += table(["rows", "measured difference", *counts], differences)
    lines += ["", "The same pairs by source:", "", *table(["source", *counts], sources)]
    first = next(iter(reports.values()))["summary"]["ranking"]
    if first["tau_of_works"] is not None:
        lines += [
            "",
            f"Mean of the works' own tau, each work weighing the same: {first['tau_of_works']:.2f}.",
        ]
    worst = [_pair_row(pair, cases) for pair in first["worst"]]
    lines += [
        "",
        "Pairs ranked most wrongly (time of the slower over the faster; terms: what the run measured slower "
        "is predicted to save, as shares of the faster's predicted step):",
        "",
    ]
    return [
        *lines,
        *table(["faster", "slower", "measured", "predicted", "knobs", "terms that decide"], worst),
    ]


def _shares(group: Mapping[str, Any]) -> list[str]:
    return [str(group["n"]), percent(group["share"]), str(group["tied"]), f"{group['tau']:+.2f}"]


def _pair_row(pair: Mapping[str, Any], cases: Mapping[str, Case]) -> list[str]:
    ratios = [f"{pair['measured_ratio']:.2f}", f"{pair['predicted_ratio']:.2f}"]
    fast, slow = (cases[pair[name]] for name in ("faster", "slower"))
    named = [f"{pair['faster']} {fast.plan.describe()}", f"{pair['slower']} {slow.plan.describe()}"]
    return [
        *named,
        *ratios,
        "; ".join(differing(fast.plan, slow.plan)) or "knobs not shown",
        "; ".join(deciding(_predicted(fast), _predicted(slow))),
    ]


def _predicted(case: Case) -> Prediction:
    return with_schedule(predict(case.model, case.workload, case.cluster, case.plan, case.stack))


def deciding(fast: Prediction, slow: Prediction, number: int = 3) -> list[str]:
    """The resources on which the run measured slower is predicted to differ most from the faster."""
    ours, theirs = resource_seconds(fast), resource_seconds(slow)
    changes = {
        name: (theirs.get(name, 0.0) - ours.get(name, 0.0)) / fast.step_time_s for name in {**ours, **theirs}
    }
    largest = sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))[:number]
    return [f"{name} {share:+.1%}" for name, share in largest if abs(share) >= 0.005]


def gap_section(
    gaps: Sequence[Mapping[str, str]], reasons: Mapping[str, Mapping[str, str]], number: int
) -> list[str]:
    """Distribution of the gaps between recipes and our best plans, and the largest studied."""
    lines = ["", "## Published recipes against our best plan", ""]
    if not gaps:
        return [*lines, "Not computed: run `python benchmarks/recipe_gap.py measurements.csv`."]
    values = [float(row["gap"]) for row in gaps]
    unfit = sum(row["recipe_fits"] == "0" for row in gaps)
    lines += [
        f"Each of {len(gaps)} works of published recipes (the newest recipe of each) was searched for the same model, "
        "workload, cluster, GPUs, precision and software, with the features that its release had "
        "(`benchmarks/recipe_gap.py`, table in `recipe-gap.csv`). The gap is the recipe's predicted time over that of "
        "our best feasible plan: what our plan would gain if the model were right about both. Below 1 the recipe has "
        "knobs that we do not search (offload, uneven layouts, optimizer settings) or memory that we think it lacks: "
        f"{unfit} recipes are said not to fit. No plan of ours was run: a gap is a claim, not a measurement.",
        "",
        *_spread("all works", values, gaps),
    ]
    best = [
        float(row["recipe_s"]) / float(row["same_layout_s"])
        for row in gaps
        if row["same_layout_s"] and float(row["same_layout_s"]) > 0
    ]
    if best:
        lines += [
            "",
            f"With the recipe's own parallel sizes the median gap is {statistics.median(best):.2f} over {len(best)} "
            "works: the rest is won by other sizes.",
        ]
    rows, seen = [], set()
    for row in gaps:
        if (row["model"], row["cluster"], row["gpus"]) in seen or len(rows) == number:
            continue
        seen.add((row["model"], row["cluster"], row["gpus"]))
        studied = reasons.get(row["id"], {})
        verdict = f"**{studied['kind']}**: {studied['reason']}" if studied else NOT_STUDIED
        run = f"{row['id']}: {row['model']} x{row['gpus']} {row['cluster']} {row['stack']}"
        error = float(row["recipe_s"]) / float(row["measured_s"]) - 1
        rows.append([row["gap"], run, percent(error, True), row["knobs"], row["terms"], verdict])
    headers = [
        "gap",
        "work",
        "error of the recipe's own prediction",
        "knobs",
        "change of the step",
        "verdict",
    ]
    return [*lines, "", "The largest, one a model and cluster:", "", *table(headers, rows)]


def _spread(title: str, values: Sequence[float], gaps: Sequence[Mapping[str, str]]) -> list[str]:
    """Counts by class of gap, of all works and of each family."""
    groups: dict[str, list[float]] = {title: list(values)}
    for row in gaps:
        groups.setdefault(row["family"], []).append(float(row["gap"]))
    rows = []
    for name, members in groups.items():
        counts = [
            sum(low <= value < high for value in members)
            for low, (high, _) in zip((0.0, *(top for top, _ in GAPS)), GAPS, strict=False)
        ]
        rows.append([name, str(len(members)), f"{statistics.median(members):.2f}", *map(str, counts)])
    return table(["works", "number", "median gap", *(label for _, label in GAPS)], rows)
