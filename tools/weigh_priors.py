"""What runs left out of the fit say of its priors: their errors with each width and kinship smaller and larger.

    python tools/weigh_priors.py MEASUREMENTS.csv [GRID.csv ...]

A prior is chosen by physics. How sure of it to be, and how much one generation, format or release tells of another,
shows in runs that the fit did not see. Formulas are taken as linear around the fit (within 0.05 points of
`tools/fit_step.py`). Three minutes; prints a table and changes nothing: a width goes to `costmodel/step_constants.py`
and a correlation to `tools/fit_priors.py`, with a reason, when most kinds of runs left out gain and none loses.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from fit_cases import StackedCases
from fit_priors import KINSHIP, Kinship, believed
from fit_solver import Fit, fit, left_out, nearby
from fit_step import GROUPS, load_tables, statistics
from tabulate import tabulate

# Each width times these. Correlations go up and down by STEP_OF, the time of a release by a half.
WIDER = (0.5, 2.0)
STEP_OF = 0.2


def variants(names: list[str]) -> Iterator[tuple[str, Kinship, dict[str, float]]]:
    """As they are, then each width and each kinship changed by itself. names: the constants' names, without keys."""
    yield "as they are", KINSHIP, {}
    for name in names:
        for times in WIDER:
            yield f"{name}, width x {times:g}", KINSHIP, {name: times}
    for field in fields(Kinship):
        value = getattr(KINSHIP, field.name)
        correlates = value <= 1
        for other in (value - STEP_OF, value + STEP_OF) if correlates else (value / 1.5, value * 1.5):
            if not correlates or 0 < other < 1:
                yield f"{field.name} {other:.3g}", replace(KINSHIP, **{field.name: other}), {}


def errors(
    stack: StackedCases, whole: Fit, own: int, kinship: Kinship, widths: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Mean and median error of the first `own` cases: in the fit, and with each kind of group left out of it. [1]"""
    known = believed(whole.parameters, kinship, widths)
    none = np.zeros(len(stack.cases), dtype=bool)
    found = {"fit": statistics(nearby(stack, whole, none, known)[:own])}
    for kind, group in GROUPS.items():
        missed = left_out(stack, whole, [group(case) for case in stack.cases], known)
        found[kind] = statistics(missed[:own])
    return found


def main() -> None:
    """Fit once, then tell what each variant of the priors would miss."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("csv", type=Path, nargs="+")
    tables, stack = load_tables(arguments.parse_args().csv)
    whole = fit(stack)
    rows: list[list[str]] = []
    names = sorted({parameter.partition("/")[0] for parameter in whole.parameters})
    for title, kinship, widths in variants(names):
        found = errors(stack, whole, len(tables[0]), kinship, widths)
        rows.append(
            [title]
            + [f"{100 * each['mape']:.2f} {100 * each['median']:.2f}" for each in found.values()]
            + [f"{100 * sum(sum(found[kind].values()) for kind in GROUPS):.2f}"]
        )
    print("Error in the fit and with a group left out: mean and median, %; sum of all that are left out.")
    print(tabulate(rows, headers=["prior", "fit", *GROUPS, "sum"], disable_numparse=True))


if __name__ == "__main__":
    main()
