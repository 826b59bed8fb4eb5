"""Accuracy on published runs: `python benchmarks/accuracy.py MEASUREMENTS.csv [MORE.csv ...]` writes docs/accuracy.md.

Errors in sample and left out of the fit, ranking truth, published recipes against our best plan (from
docs/recipe-gap.csv, see benchmarks/recipe_gap.py), memory, the worst rows with what is known of each, and a plot
(docs/accuracy.svg). Needs the `bench` extra. Reasons stand in worst_reasons.toml and gap_reasons.toml beside this file.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import accuracy_sections as sections  # noqa: E402
from accuracy_blind import blind_section  # noqa: E402
from accuracy_gpu import gpu_sections  # noqa: E402
from accuracy_pairs import gap_section, ranking_section  # noqa: E402
from accuracy_plot import write_plot  # noqa: E402
from accuracy_regressions import regression_section  # noqa: E402
from accuracy_unfitted import unfitted_section  # noqa: E402
from memory_accuracy import memory_section  # noqa: E402
from shipped_recipes import recipe_lines  # noqa: E402

from advisor.measurements import Case, read_rows, row_case  # noqa: E402
from advisor.validation import validate  # noqa: E402
from costmodel.step_constants import fitted  # noqa: E402

DOCS = HERE.parent / "docs"
WORST = 10


def reasons(name: str) -> dict[str, Any]:
    """Row id -> what was found when the row was studied."""
    with (HERE / name).open("rb") as file:
        return tomllib.load(file)


def gap_rows(path: Path) -> list[dict[str, str]]:
    """The table that benchmarks/recipe_gap.py wrote, [] where it was not run."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def page(paths: list[Path]) -> tuple[list[str], dict[str, Any]]:
    """The page's lines, and the report of the first table."""
    tables = {path.name: read_rows(path) for path in paths}
    reports = {name: validate(rows) for name, rows in tables.items()}
    report = next(iter(reports.values()))
    cases = {
        case.id: case for rows in tables.values() for row in rows if isinstance(case := row_case(row), Case)
    }
    gaps = gap_rows(DOCS / "recipe-gap.csv")
    lines = [
        *sections.summary_section(reports, fitted()["fit"], gaps),
        *sections.holdout_section(report, fitted()["fit"]),
        *sections.group_sections(report),
        *sections.worst_section(report, reasons("worst_reasons.toml"), WORST),
        *ranking_section(reports, cases),
        *regression_section(report, cases),
        *unfitted_section(),
        *blind_section(next(iter(tables.values())), report),
        *gap_section(gaps, reasons("gap_reasons.toml"), WORST),
        "",
        *memory_section(report, recipe_lines()),
        *gpu_sections(),
    ]
    return lines, report


def main(paths: list[Path]) -> None:
    """Write the page and its plot."""
    lines, report = page(paths)
    write_plot(report, DOCS / "accuracy.svg")
    (DOCS / "accuracy.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:12]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="+", help="measurements.csv, others beside it")
    main(parser.parse_args().tables)
