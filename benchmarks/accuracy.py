"""Accuracy on published runs: `python benchmarks/accuracy.py MEASUREMENTS.csv [MORE.csv ...]` writes docs/accuracy.md.

In-sample errors by source, GPU and precision, beside the errors of runs whose model or system was left out of
the fit (from hardware_db/calibrated/step.toml), memory against published peaks, and the worst rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from memory_accuracy import memory_section

from advisor.measurements import read_rows
from advisor.validation import validate
from costmodel.step_constants import fitted

ROOT = Path(__file__).resolve().parent.parent


def table(headers: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]]


def main(path: Path, others: list[Path]) -> None:
    """Validate and write the page; other tables get a line each."""
    report = validate(read_rows(path))
    summary, fit = report["summary"], fitted()["fit"]
    lines = [
        "# Accuracy on published runs",
        "",
        f"Written by `python benchmarks/accuracy.py {path.name}`: {summary['n']} published runs predicted, "
        f"{summary['skipped']} rows skipped (layout, batch, sequence or time not stated, unknown models).",
        "",
        f"Step time, in sample: mean error {summary['mape']:.1%}, median {summary['median_ape']:.1%}, nine of "
        f"ten within {summary['p90_ape']:.1%}. Inside the 90 % interval: {summary['interval_coverage']:.1%}.",
        *(
            f"With the row's {kind} left out of the fit: mean {fit[f'mape_leave_one_{kind}_out']:.1%} (closed form, "
            "without the schedule's simulation)."
            for kind in ("model", "system")
            if f"mape_leave_one_{kind}_out" in fit
        ),
    ]
    for other in others:
        more = validate(read_rows(other))["summary"]
        lines += [
            "",
            f"`{other.name}`: {more['n']} runs, mean error {more['mape']:.1%}, median {more['median_ape']:.1%}, "
            f"{more['interval_coverage']:.1%} inside the interval.",
        ]
    for name in ("family", "task", "gpu", "precision", "source"):
        rows = [
            [
                key,
                str(group["n"]),
                f"{group['mape']:.1%}",
                f"{group['median_ape']:.1%}",
                f"{group['bias']:+.1%}",
            ]
            for key, group in summary["by"][name].items()
        ]
        lines += ["", f"## By {name}", "", *table([name, "runs", "mean", "median", "bias"], rows)]
    worst = sorted(report["rows"], key=lambda row: -abs(row["rel_error"]))[:15]
    rows = [
        [f"{row['rel_error']:+.0%}", row["id"], f"{row['model']} x{row['gpus']} {row['plan']}"]
        for row in worst
    ]
    lines += ["", "## Worst", "", *table(["error", "row", "run"], rows)]
    lines += ["", *memory_section(report)]
    (ROOT / "docs" / "accuracy.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:8]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
