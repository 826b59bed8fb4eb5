"""The section of docs/accuracy.md on runs of frameworks and clusters that no fit has seen: benchmarks/unfitted."""

from __future__ import annotations

import statistics
from pathlib import Path

from accuracy_sections import percent, table

from advisor.measurements import read_rows
from advisor.validation import validate

FOLDER = Path(__file__).resolve().parent / "unfitted"
HEADERS = ("source", "cluster", "runs", "mean", "median", "bias", "in 90 % interval")


def unfitted_section() -> list[str]:
    """Errors by source and cluster of the runs in `unfitted/runs.csv`, whose clusters are the files beside it."""
    report = validate(read_rows(FOLDER / "runs.csv"))
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["source"], row["cluster"] if row["gpus"] > 1 else "one GPU"), []).append(row)
    lines = []
    for (source, cluster), rows in sorted(groups.items()):
        errors = [row["rel_error"] for row in rows]
        inside = statistics.mean(row["low"] <= row["measured"] <= row["high"] for row in rows)
        sizes = [abs(error) for error in errors]
        told = (statistics.mean(sizes), statistics.median(sizes), inside)
        mean, median, share = (percent(value) for value in told)
        lines.append(
            [source, cluster, str(len(rows)), mean, median, percent(statistics.mean(errors), True), share]
        )
    summary = report["summary"]
    refuted = sum(not row["fits"] for row in report["rows"])
    return [
        "",
        "## Runs that no fit has seen",
        "",
        "Tables in the READMEs of other frameworks' packages on PyPI (benchmarks/unfitted/runs.csv, each row with its "
        "file and line, read on 2026-11-26), and the runs of Qwen2-57B-A14B in MoE Parallel Folding, of which the "
        f"table has an MFU and no time: {summary['n']} runs, mean error {percent(summary['mape'])}, median "
        f"{percent(summary['median_ape'])}, {percent(summary['interval_coverage'])} inside the 90 % interval; "
        f"{refuted} are called impossible by memory. Most are "
        "of PyTorch's and JAX's own stacks, on clusters known from memory alone, and the sizes of modalities' models "
        "follow from its MFU: this is what to expect so far from any published run. Known causes: full shards grow "
        "faster than predicted on 512 GPUs and more (modalities), reductions between replicas over TCPX are predicted "
        "as hidden (MaxText on A3), an RTX 4090 clocks above its boost, and optimizers on the host have no column "
        "(torchtune); Qwen2's micro-batch is not printed: read as 1, the interval holds 2 (docs/fit-history.md has "
        "both). Two rows of torchtune that name an RTX A6000 are left out: with what they recompute they need 155 and "
        "211 TFLOP/s of a GPU whose peak is 155. "
        "`advisor validate benchmarks/unfitted/runs.csv` prints them.",
        "",
        *table(HEADERS, lines),
    ]
