"""Write the published runs that answers name and their intervals rest on.

    python tools/write_evidence.py [MEASUREMENTS.csv ...]

`write_evidence` writes hardware_db/calibrated/evidence.csv (one run a line with the errors of our predictions) and
evidence.toml beside it (how wide intervals are, and how often they hold). tools/fit_step.py calls it with errors
whose model was left out of the fit. Run by itself without a table, widths are learnt again from the errors on
file; with tables, errors are those of the constants as they stand, and held ones are guessed as HELD times those;
with --settings, errors stay as they are on file, and how their runs are described is written anew from the tables.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tomli_w

from advisor.measurements import Case, Skip, read_rows, row_case
from costmodel.evidence.coverage import GROUPS, coverage_by, learn, with_shared
from costmodel.evidence.runs import Table
from costmodel.evidence.setting import setting_of
from costmodel.predict import predict
from costmodel.simulated_pipeline import with_schedule
from hardware_db.evidence import EVIDENCE_FILE, Evidence, load_evidence, load_spread, save_evidence

# Group left out and label -> label's value -> runs, share inside, half-width
Coverage = dict[str, dict[str, tuple[int, float, float]]]
HELD = 1.3
# Runs of one source that are kept, evenly over its order: a grid of 1,440 runs of one machine says no more.
MOST = 160
LABELS = {
    "generation": lambda run: run.generation,
    "family": lambda run: run.family,
    "source": lambda run: run.source,
}
HEADER = """Written by tools/write_evidence.py; do not edit. Published runs: settings, step times and source.
error: log(predicted / measured), constants fitted to all runs; held_error: the run's model left out of the fit.
effects: settings off their default, with log of what each makes of the step, as we predict it.
near_error, near_held_error: the error that other runs near it share, that runs of other models near it share."""


def evidence_of(case: Case, error: float, held_error: float) -> Evidence:
    """A published run with the errors [log] of our predictions."""
    predicted = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
    return Evidence(
        **asdict(setting_of(case.model, case.workload, case.cluster, case.plan, case.stack)),
        id=case.id,
        source=case.row.text("source"),
        date=case.row.text("date"),
        measured_step_time_s=case.measured_step_time_s,
        error=float(error),
        held_error=float(held_error),
        parameter_spread=predicted.values["parameter_spread"],
    )


def thinned(runs: Sequence[Evidence]) -> list[Evidence]:
    """At most MOST runs of each source, evenly over its order."""
    sizes = Counter(run.source for run in runs)
    seen: Counter[str] = Counter()
    kept = []
    for run in runs:
        step = max(1.0, sizes[run.source] / MOST)
        seen[run.source] += 1
        if int(seen[run.source] / step) > int((seen[run.source] - 1) / step):
            kept.append(run)
    return kept


def described_anew(runs: Sequence[Evidence], paths: Sequence[Path]) -> list[Evidence]:
    """Runs with their settings as the tables give them, and the errors that they have."""
    rows = {row.text("id"): row for path in paths for row in read_rows(path)}
    found = []
    for run in runs:
        case = row_case(rows[run.id]) if run.id in rows else None
        if isinstance(case, Case):
            setting = setting_of(case.model, case.workload, case.cluster, case.plan, case.stack)
            run = replace(run, **asdict(setting))
        found.append(run)
    return found


def untuned_errors(path: Path) -> list[float]:
    """log(measured / predicted) of the table's runs that nobody tuned for speed, which no fit has seen."""
    found = []
    for row in read_rows(path):
        case = row_case(row)
        if isinstance(case, Skip) or row.text("superseded") == "1" or not case.row.untuned:
            continue
        closed = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
        found.append(math.log(case.measured_step_time_s / with_schedule(closed).step_time_s))
    return found


def untuned_spread(errors: Sequence[float]) -> dict[str, Any]:
    """Between which ratios of measured over predicted nine of ten further such runs lie; nothing without runs.

    The split-conformal ends, each missed by one run in twenty: of fewer than 19 runs the least and the most,
    between which a further one lies with probability (n - 1) / (n + 1). Source: G. Shafer and V. Vovk, JMLR 9 (2008).
    """
    if not errors:
        return {}
    beyond = max(int(0.05 * (len(errors) + 1)), 1)
    order = sorted(errors)
    low, high = order[beyond - 1], order[-beyond]
    return {
        "untuned": {
            # Rounded away from the runs, so that those at the ends lie between.
            "quicker": math.floor(1000 * math.exp(low)) / 1000,
            "slower": math.ceil(100 * math.exp(high)) / 100,
            "runs": len(errors),
            "unit": "1",
            "kind": "measured",
            "source": "measured over predicted of published runs not tuned for speed, tools/write_evidence.py",
            "read_on": datetime.date.today(),
        }
    }


def write_evidence(
    cases: Sequence[Case],
    in_sample_log_errors: Sequence[float],
    held_log_errors: Sequence[float],
    path: Path = EVIDENCE_FILE,
    untuned: Sequence[float] = (),
) -> Coverage:
    """Write `path` and the .toml beside it; gives back coverage by group left out and label, as printed.

    Errors are log(predicted / measured), one a case, the pipeline simulated
    (`costmodel.simulated_pipeline.with_schedule`). A held error that is not a number (its model never left out) is
    taken as HELD times the other. Of a source with more than MOST runs, as many are kept. untuned: of `untuned_errors`.
    """
    runs = thinned(
        [
            evidence_of(case, error, HELD * error if math.isnan(held) else held)
            for case, error, held in zip(cases, in_sample_log_errors, held_log_errors, strict=True)
        ]
    )
    return write_runs(runs, path, untuned_spread(untuned))


def write_runs(
    runs: Sequence[Evidence], path: Path = EVIDENCE_FILE, untuned: Mapping[str, Any] | None = None
) -> Coverage:
    """Learn from runs what they share and how wide intervals must be, and write both files.

    untuned: record of runs that nobody tuned; None keeps the one on file.
    """
    if untuned is None:
        untuned = {name: record for name, record in load_spread(path).items() if name == "untuned"}
    table = with_shared(runs)
    spread = learn(table)
    table = Table(table.runs, spread)
    found = {
        f"{group} by {label}": coverage_by(table, group, [of(run) for run in runs])
        for group in GROUPS
        for label, of in LABELS.items()
    }
    save_evidence(table.runs, path, HEADER)
    record = {
        "spread": {
            **spread,
            "unit": "1",
            "kind": "measured",
            "source": f"learnt by tools/write_evidence.py from {len(runs)} published runs",
            "read_on": datetime.date.today(),
        },
        **untuned,
        "coverage": {group: round(found[f"{group} by generation"]["all"][1], 3) for group in GROUPS},
    }
    header = "# Written by tools/write_evidence.py; do not edit. Widths of intervals; coverage, the group left out.\n"
    path.with_suffix(".toml").write_text(header + tomli_w.dumps(record))
    load_evidence.cache_clear()
    load_spread.cache_clear()
    return found


def report(found: Coverage) -> None:
    """Print how often intervals hold."""
    for title, rows in found.items():
        print(f"inside the 90 % interval, left out: {title}")
        for label, (number, inside, width) in rows.items():
            print(f"  {label:<50}{number:>5}{inside:>8.1%}  half-width {width:.2f}")


def main() -> None:
    """From the predictions as they stand."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("csv", type=Path, nargs="*")
    arguments.add_argument("--settings", action="store_true")
    given = arguments.parse_args()
    paths = given.csv
    if given.settings or not paths:
        report(write_runs(described_anew(load_evidence(), paths) if paths else load_evidence()))
        return
    cases, errors = [], []
    for path in paths:
        for row in read_rows(path):
            case = row_case(row)
            if isinstance(case, Skip) or row.text("superseded") == "1":
                continue
            if case.row.untuned:
                continue
            try:
                closed = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
            except ValueError as error:
                print(f"{case.id}: {error}")
                continue
            cases.append(case)
            errors.append(math.log(with_schedule(closed).step_time_s / case.measured_step_time_s))
    untuned = [error for path in paths for error in untuned_errors(path)]
    report(write_evidence(cases, errors, [HELD * error for error in errors], untuned=untuned))


if __name__ == "__main__":
    main()
