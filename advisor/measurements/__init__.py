"""Tables of published training runs, row by row as plans.

Columns as in `measurements.csv`: what a row states is taken, what its source leaves unsaid comes from
`measurements/habits.toml` and is named in the case's assumptions. A row that cannot be expressed is
skipped with a reason.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.measurements.memory import largest_micro_batch, made_to_fit, refuted, unsaid_sizes
from advisor.measurements.other_flags import with_flags
from advisor.measurements.plans import (
    bound_to_cores,
    habit_of,
    row_model,
    row_plan,
    row_release,
    row_workload,
    shards_unsaid,
)
from advisor.measurements.release import unknown_release, with_patch
from advisor.measurements.rows import Row, column_name, row_id
from advisor.measurements.systems import row_cluster
from advisor.measurements.times import step_time, with_batch
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.stack import load_stack
from costmodel.workload import Workload
from hardware_db import Cluster

NEEDED = ("model", "system", "gpus", "precision", "gbs", "seq_len")
# Frameworks whose one memory figure is what the allocator reserves. Source: torchtitan, components/metrics.py.
PRINTS_RESERVED = ("torchtitan",)
# What else tables are separated by, and its name.
SEPARATORS = {";": ";", "\t": "tabs", "|": "|"}
LARGEST_FILE = 256 * 2**20  # bytes


@dataclass(frozen=True)
class Case:
    """A row as a plan on a cluster, with what was measured.

    measured_memory_bytes: peak allocated, measured_reserved_bytes: peak reserved by the allocator; None if unknown.
    """

    id: str
    row: Row
    model: ModelSpec
    workload: Workload
    plan: Plan
    cluster: Cluster
    stack: str
    measured_step_time_s: float
    measured_memory_bytes: float | None
    measured_reserved_bytes: float | None
    note: str = ""
    assumptions: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Skip:
    """A row that cannot be expressed, and why."""

    id: str
    reason: str


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a CSV. ValueError in one line when it is not such a table."""
    path = Path(path)
    try:
        if path.is_dir() or path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{path} is not a CSV file of measurements. Name a file with a header line.")
        csv.field_size_limit(2**20)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or [])
            if not header:
                raise ValueError(
                    f"{path} is empty. Name a CSV file with a header line, columns {', '.join(NEEDED)}."
                )
            named = [column_name(name) for name in header]
            missing = [name for name in NEEDED if name not in named]
            if missing:
                raise ValueError(_lacking(path, missing, header))
            # A column under its own name comes before one that only means it.
            reader.fieldnames = [
                mine if mine == its or (mine not in header and named.index(mine) == place) else its
                for place, (its, mine) in enumerate(zip(header, named, strict=True))
            ]
            rows = [_row(row, len(header), reader.line_num) for row in reader]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}.") from None
    return [_beside(path.parent, row) for row in rows]


def _beside(folder: Path, row: Row) -> Row:
    """The row; where its system is a file that lies beside the table and not where we are, with the path to it."""
    system = row.text("system").strip()
    if not system.endswith(".toml") or Path(system).exists() or not (folder / system).is_file():
        return row
    return replace(row, values={**row.values, "system": str(folder / system)})


def _lacking(path: Path, missing: Sequence[str], header: Sequence[str]) -> str:
    """One line for a header without the columns needed: the separator where that is why."""
    for sign, name in SEPARATORS.items():
        words = {word.strip(' "') for word in ",".join(header).split(sign)}
        if len(words & set(NEEDED)) > len(NEEDED) - len(missing):  # more of them than commas tell apart
            return f"{path} is separated by {name}: save it with commas."
    return f"{path} lacks the columns {', '.join(missing)}. Columns needed: {', '.join(NEEDED)}."


def _row(cells: Mapping[str | None, str | list[str] | None], columns: int, line: int) -> Row:
    """A row as text by column, with how many cells it has beyond the header's."""
    values = {name: cell for name, cell in cells.items() if name is not None and isinstance(cell, str)}
    surplus = cells.get(None) or []
    return Row(values, f"{columns + len(surplus)} cells, {columns} columns" if surplus else "", line)


def stack_of(row: Row) -> str:
    """Software stack as family-release, the release from the container, the source or the date where they name one."""
    habit = habit_of(row)
    release = with_patch(row, row_release(row, habit))
    return load_stack(f"{habit['family']}-{release}" if release else habit["family"]).name


def row_case(row: Row) -> Case | Skip:
    """The row as a case, or why not.

    Where memory refutes what was read, with the sizes that the row leaves unsaid as a run that was made had them. Its
    experts are spread already where, whole on every GPU, they would need recompute that it does not say, or not fit.
    """
    with suppress(ValueError):  # which `_read` tells
        row = with_flags(row)
    found = _read(row)
    if isinstance(found, Skip):
        return found
    read = _predicted(found)
    for columns in unsaid_sizes(row, found.model, found.cluster, found.plan):
        if not refuted(read) and set(columns) != {"ep"}:
            continue
        again = _read(replace(row, values={**row.values, **columns}))
        if isinstance(again, Skip) or refuted(there := _predicted(again)):
            continue
        kept_out = refuted(read) or (_over(read) and not _over(there))
        if kept_out or _recompute(found) != _recompute(again):
            filled = ", ".join(f"{column} {value}" for column, value in columns.items())
            words = (
                f"not stated, and without it the run would {'not fit' if kept_out else 'recompute'}: {filled}"
            )
            return replace(again, row=row, assumptions=(*again.assumptions, words))
    return found


def _predicted(case: Case) -> Prediction:
    return predict(case.model, case.workload, case.cluster, case.plan, case.stack, judged=False)


def _over(prediction: Prediction) -> bool:
    """Whether memory is told over the whole device."""
    return prediction.peak_memory_bytes > prediction.device_bytes


def _recompute(case: Case) -> tuple[str, tuple[str, ...], int]:
    """What the case's plan recomputes."""
    return case.plan.recompute, case.plan.recompute_modules, case.plan.recompute_num_layers


def _read(row: Row) -> Case | Skip:
    """The row as a case by what it and its source say, or why not."""
    name = row_id(row)
    if fault := row.fault():
        return Skip(name, fault)
    try:
        model, how_model = row_model(row)
        cluster, how_cluster = row_cluster(row.text("system"), habit_of(row).get("runs_on", ""))
    except ValueError as error:
        return Skip(name, str(error))
    row, batch_words = with_batch(row)
    gpus, batch, seq_len = (row.count(column, 0) for column in ("gpus", "gbs", "seq_len"))
    if unsaid := [column for column in ("gpus", "gbs", "seq_len") if not row.text(column).strip()]:
        return Skip(
            name, f"{', '.join(unsaid)} not stated: GPUs, global batch and sequence length are needed"
        )
    # One GPU has one layout, and so have as many replicas as GPUs.
    sizes = row.text("tp") or row.text("pp") or row.text("fsdp") or gpus in (1, row.count("dp", 0))
    if not (sizes or shards_unsaid(row, habit_of(row))):
        return Skip(name, "the parallel layout is not stated")
    step = step_time(row, gpus, batch, seq_len)
    if isinstance(step, str):
        return Skip(name, step)
    try:
        plan, assumptions = row_plan(row, model, gpus)
        bound, loosely = bound_to_cores(row, cluster)
        plan = replace(plan, cpu_binding=bound)
        plan.num_microbatches(batch)
        workload = row_workload(row, model, seq_len, batch)
        stack = stack_of(row)
        plan, unsaid = made_to_fit(row, model, workload, cluster, plan, stack)
        plan, micro_batch = largest_micro_batch(row, model, workload, cluster, plan, stack)
    except (ValueError, TypeError) as error:  # a type that nobody thought of costs its row, not the table
        return Skip(name, str(error))
    allocated, reserved = _measured_memory(row)
    return Case(
        id=name,
        row=row,
        model=model,
        workload=workload,
        plan=plan,
        cluster=cluster,
        stack=stack,
        measured_step_time_s=step.seconds,
        measured_memory_bytes=allocated,
        measured_reserved_bytes=reserved,
        assumptions=tuple(
            filter(
                None,
                (
                    *assumptions,
                    how_model,
                    model.left_out and f"not counted of the model: {model.left_out}",
                    how_cluster,
                    loosely,
                    batch_words,
                    unknown_release(stack),
                    *unsaid,
                    *micro_batch,
                    step.words,
                ),
            )
        ),
    )


def _measured_memory(row: Row) -> tuple[float | None, float | None]:
    """Peak allocated and peak reserved of a row, None where not printed. [byte]"""
    peak, reserved = (
        1e9 * gb if (gb := row.number(name)) else None for name in ("peak_memory_gb", "peak_reserved_gb")
    )
    if any(name in row.text("source") for name in PRINTS_RESERVED):
        return None, reserved or peak
    return peak, reserved
