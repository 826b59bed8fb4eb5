"""The step time that a row of a table states, whichever of its columns tells it."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, replace

from advisor.measurements.rows import Row

# A step time and a rate of tokens that differ by less are printed with few digits.
SAME_STEP = 0.05
# A batch that other columns imply is a whole number but for their digits.
WHOLE = 1e-3
# Columns that tell a step time, as they are looked for.
TIMES = (
    "step_time_s",
    "step_time_ms",
    "tokens_per_sec_per_gpu",
    "tokens_per_sec",
    "samples_per_sec",
    "model_tflops_per_gpu",
)
# The end of a note on two columns that tell different step times.
COMPARED = " is compared"
# What model FLOPs of a second tell no time without.
FLOPS_OF_A_TOKEN = "formula_gflops_per_token"


@dataclass(frozen=True)
class StepTime:
    """A row's step time [s], and what is to be known of it: the column it comes from, or another that differs."""

    seconds: float
    words: str = ""


def with_batch(row: Row) -> tuple[Row, str]:
    """The row with the global batch that its other columns imply, and that in words; "" where it is said or none is.

    Sequences of a step are its rate times its time, or micro-batches times their size and replicas. A sequence length
    is not taken so: the one published row to which that would apply counts FLOPs of a sequence four times as long.
    """
    if row.text("gbs").strip():
        return row, ""
    gpus, seconds = (
        row.count("gpus", 0),
        row.number("step_time_s") or 1e-3 * (row.number("step_time_ms") or 0),
    )
    rate = row.number("tokens_per_sec") or gpus * (row.number("tokens_per_sec_per_gpu") or 0)
    ways = {
        "mbs x ga x dp": math.prod(row.number(name) or 0 for name in ("mbs", "ga", "dp")),
        "samples_per_sec x step time": (row.number("samples_per_sec") or 0) * seconds,
        "tokens/s x step time / seq_len": rate * seconds / (row.number("seq_len") or math.inf),
    }
    for how, amount in ways.items():
        whole = round(amount)
        if whole and abs(amount / whole - 1) < WHOLE:
            return replace(row, values={**row.values, "gbs": str(whole)}), f"gbs not stated: {whole}, {how}"
    return row, ""


def step_time(row: Row, gpus: int, batch: int, seq_len: int) -> StepTime | str:
    """The row's step time by the first of `TIMES` that holds a number; in one line why there is none."""
    told = {column: seconds for column in TIMES if (seconds := _by(column, row, gpus, batch, seq_len))}
    if not told:
        return _no_time(row)
    (column, seconds), *others = told.items()
    words = "" if column in ("step_time_s", "tokens_per_sec_per_gpu") else f"step time from {column}"
    for other, by_other in others:
        # Model FLOPs are counted in many ways, and never contradict a time.
        if other != "model_tflops_per_gpu" and abs(by_other / seconds - 1) >= SAME_STEP:
            words = f"{column} says {seconds:.4g} s and {other} {by_other:.4g} s: "
            words += ("the step time" if column == "step_time_s" else "the first") + COMPARED
            break
    return StepTime(seconds, words)


def two_times(note: str) -> str:
    """Of a row's note what it says of two columns that tell different step times, "" where none do."""
    return next((words for words in note.split("; ") if words.endswith(COMPARED)), "")


def _by(column: str, row: Row, gpus: int, batch: int, seq_len: int) -> float | None:
    """The step time that a column tells, None where it tells none. [s]"""
    value = row.number(column)
    if value is None:
        return None
    if column.startswith("step_time"):
        return value * (1e-3 if column.endswith("_ms") else 1.0)
    if column == "samples_per_sec":
        return batch / value
    tokens = batch * seq_len
    if column == "model_tflops_per_gpu":
        flops = row.number(FLOPS_OF_A_TOKEN)
        return flops and tokens * flops * 1e9 / (value * 1e12 * gpus)
    return tokens / (value * (gpus if column.endswith("_gpu") else 1))


def _no_time(row: Row) -> str:
    """Why a row has nothing to compare with: its columns of times, or one that is likely meant as such."""
    said = (
        f"neither step time nor tokens/s are stated: {', '.join(TIMES[:-2])} and {TIMES[-2]} hold no number"
    )
    if row.number(TIMES[-1]):
        return f"{said}, and {TIMES[-1]} tells a time only beside {FLOPS_OF_A_TOKEN}"
    near = [
        (column, name)
        for column in row.values
        if column not in TIMES and row.number(column)
        for name in difflib.get_close_matches(column.strip().lower(), _of_its_unit(column), n=1, cutoff=0.7)
    ]
    return f"{said}. Is column {near[0][0]!r} meant as {near[0][1]}?" if near else said


def _of_its_unit(column: str) -> list[str]:
    """Columns of times that a column may mean: of milliseconds for one that ends in them, else the others."""
    in_ms = re.search(r"(ms|msec|millis|milliseconds)\W*$", column.lower()) is not None
    return [name for name in TIMES if name.endswith("_ms") == in_ms]
