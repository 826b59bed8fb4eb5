"""Fit the step constants of each GPU generation and software stack from published training runs.

    python tools/fit_step.py MEASUREMENTS.csv [GRID.csv ...]

Kernel tables say what a kernel reaches alone; inside a training step it shares power, memory and
links. A few physical factors per GPU generation and software family take that up. They are fitted here
on log(predicted / measured) with a robust loss and a prior (value and width stand in PRIORS), so that a
constant the rows do not determine stays where physics puts it. Nothing is keyed by model or row.

The first table is of many sources; every further one is a grid of one source and counts GRID_SHARE a row.
Written: hardware_db/calibrated/step.toml (constants, uncertainty, rows, residuals, errors of runs left out)
and hardware_db/calibrated/evidence.csv with its .toml (published runs near an answer, widths of intervals).
"""

from __future__ import annotations

import argparse
import collections
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from fit_cases import StackedCases, load_cases, stack_cases
from fit_priors import unseen_releases, usual
from fit_solver import Fit, fit, left_out
from write_evidence import report, untuned_errors, write_evidence

from advisor.measurements import Case
from costmodel.predict import predict
from costmodel.simulated_pipeline import with_schedule
from costmodel.step_constants import PRIORS, STEP_FILE, fitted
from costmodel.uncertainty import load_covariance, save_covariance

# A row of a grid of one machine, over one of a table of many sources.
GRID_SHARE = 0.2

COVARIANCE = """Written by tools/fit_step.py; do not edit. Covariance of the logarithms of the fitted constants,
lower triangle: a constant a line, with those of the lines above it and its own last."""

# What is left out together.
GROUPS: dict[str, Callable[[Case], str]] = {
    # vTrain's and MPT's sizes are made of one recipe; models differ by more than depth.
    "model": lambda case: (
        case.model.name.split("-l")[0] if case.model.name.startswith("gpt-h") else case.model.name
    ),
    "system": lambda case: case.cluster.name,
    "release": lambda case: case.stack,
    # A tenth of the rows, drawn by their names: what a further row of the same tables would see.
    "tenth": lambda case: str(sum(map(ord, case.id)) % 10),
}


def statistics(errors: np.ndarray) -> dict[str, float]:
    """Mean and median of |predicted / measured - 1|."""
    sizes = np.abs(np.expm1(errors))
    return {"mape": float(f"{sizes.mean():.4g}"), "median": float(f"{np.median(sizes):.4g}")}


def load_tables(paths: list[Path]) -> tuple[list[list[Case]], StackedCases]:
    """Cases of each table, and all of them stacked, those of grids with their share."""
    tables = [load_cases(path) for path in paths]
    assert tables[0], "no row of the first table can be expressed"
    shares = [GRID_SHARE if index else 1.0 for index, table in enumerate(tables) for _ in table]
    return tables, stack_cases([case for table in tables for case in table], shares)


def main() -> None:
    """Fit, leave groups out, write, report."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("csv", type=Path, nargs="+")
    paths = arguments.parse_args().csv
    tables, stack = load_tables(paths)
    cases = stack.cases
    whole = fit(stack)
    own = slice(0, len(tables[0]))  # errors are told of the first table
    summary: dict[str, Any] = {
        "rows": len(cases),
        "tables": [path.name for path in paths],
        "read_on": datetime.date.today(),
        "constants": len(whole.parameters),
        "free_constants": round(whole.freedom),
        **{f"{kind}_in_sample": number for kind, number in statistics(whole.residuals[own]).items()},
    }
    held: dict[str, np.ndarray] = {}
    for kind, group in GROUPS.items():
        held[kind] = left_out(stack, whole, [group(case) for case in cases])
        for name, number in statistics(held[kind][own]).items():
            summary[f"{name}_leave_one_{kind}_out"] = number
    write(STEP_FILE, whole, stack, summary)
    save_covariance(whole.parameters, whole.covariance, COVARIANCE)
    load_covariance.cache_clear()
    fitted.cache_clear()
    shift = np.array([_schedule(case) for case in tables[0]])
    held_errors = held["model"][own] + shift
    report(
        write_evidence(tables[0], whole.residuals[own] + shift, held_errors, untuned=untuned_errors(paths[0]))
    )
    for name, number in summary.items():  # told when all files are written, so that none is taken before
        print(f"{name}: {number}")


def _schedule(case: Case) -> float:
    """log of the step with its schedule simulated over the closed form, which the fit uses."""
    closed = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
    return float(np.log(with_schedule(closed).step_time_s / closed.step_time_s))


def write(path: Path, whole: Fit, stack: StackedCases, summary: dict[str, Any]) -> None:
    """Write the constants with their uncertainty, the rows that determine them and the residuals.

    A constant that no row moves off its prior is left out: the prior says it.
    """
    record: dict[str, Any] = {"fit": summary}
    sizes = np.abs(np.expm1(whole.residuals))
    for index, (parameter, value, error) in enumerate(
        zip(whole.parameters, whole.values, whole.errors, strict=True)
    ):
        name, key = parameter.split("/")
        mask = stack.mask(parameter)
        moved = mask & (np.abs(whole.jacobian[:, index]) > 1e-4)
        if not moved.any():
            continue
        systems = collections.Counter(
            case.cluster.name for case, on in zip(stack.cases, moved, strict=True) if on
        )
        record.setdefault(name, {})[key] = {
            "value": float(f"{value:.4g}"),
            "unit": PRIORS[name].unit,
            "kind": "measured",
            "source": f"fitted by tools/fit_step.py from {int(moved.sum())} published runs, most on "
            f"{systems.most_common(1)[0][0]}",
            "read_on": summary["read_on"],
            "log_error": float(f"{min(error, 9.99):.2g}"),
            "residual": float(f"{sizes[moved].mean():.2g}"),
            "num_points": int(moved.sum()),
        }
    expected = usual(whole.parameters, whole.point) | unseen_releases(whole.parameters, whole.point)
    for parameter, value in expected.items():
        name, key = parameter.split("/")
        record.setdefault(name, {})[key] = {
            "value": float(f"{value:.4g}"),
            "unit": PRIORS[name].unit,
            "kind": "derived",
            "source": "tools/fit_priors.py: expected without runs of its own, given the fitted ones",
            "read_on": summary["read_on"],
        }
    header = (
        "# Written by tools/fit_step.py; do not edit. Factors of a training step over the kernel tables.\n"
    )
    path.write_text(header + tomli_w.dumps(record))


if __name__ == "__main__":
    main()
