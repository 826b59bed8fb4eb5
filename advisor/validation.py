"""Predicted against measured for many published runs."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from advisor.measurements import Case, Row, Skip, row_case
from advisor.measurements.limits import impossible, slow_hint
from advisor.measurements.memory import refuted
from advisor.measurements.readings import Unsaid, unsaid
from advisor.measurements.repeats import copies, repeats
from advisor.measurements.rows import row_id
from advisor.progress import Tell
from advisor.ranking import Timed, ranking
from costmodel.evidence import Interval, untuned_interval
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule

# Columns of the summary `by`: name -> label of a case.
GROUPS: dict[str, Callable[[Case], str]] = {
    "family": lambda case: case.model.family,
    "gpu": lambda case: case.cluster.gpu.name,
    "precision": lambda case: case.plan.precision,
    "task": lambda case: case.workload.task,
    "stack": lambda case: case.stack,
    "source": lambda case: case.row.text("source"),
    "model": lambda case: case.model.name,
}


def validate(
    rows: Iterable[Row],
    include_superseded: bool = False,
    progress: Tell | None = None,
) -> dict[str, Any]:
    """The report of `advisor validate --json`: rows, summary and skipped; rel_error is predicted / measured - 1."""
    chosen = [row for row in rows if include_superseded or not row.flag("superseded", False)]
    done, skipped = judged(chosen, True, progress)
    return {
        "rows": [result for _, result in done],
        "summary": summarise(done, len(skipped)),
        "skipped": skipped,
        "repeated_ids": [each.to_dict() for each in repeats(chosen)],
    }


def judged(
    rows: Iterable[Row],
    include_superseded: bool = False,
    progress: Tell | None = None,
) -> tuple[list[tuple[Case, dict[str, Any]]], list[dict[str, str]]]:
    """Each run with its prediction beside the measurement, and the rows that cannot be expressed, with the reason.

    Rows with superseded = 1 are left out unless asked for; copies of a row count once.
    """
    chosen = [row for row in rows if include_superseded or not row.flag("superseded", False)]
    done: list[tuple[Case, dict[str, Any]]] = []
    skipped: list[dict[str, str]] = []
    again = copies(chosen)
    for index, row in enumerate(chosen):
        if progress:
            progress(index / len(chosen), "predicting published runs")
        if index in again:
            same = "the same id and the same values" if row.text("id").strip() else "the same values"
            reason = f"a copy of line {again[index].line}, which counts: {same}"
            skipped.append({"id": row_id(row), "reason": reason})
            continue
        case = row_case(row)
        if isinstance(case, Skip):
            skipped.append({"id": case.id, "reason": case.reason})
            continue
        found: dict[str, Any] | str
        try:
            found = _result(case)
        except ValueError as error:
            found = str(error)
        if isinstance(found, str):
            skipped.append({"id": case.id, "reason": found})
        else:
            done.append((case, found))
    return done, skipped


def _result(case: Case) -> dict[str, Any] | str:
    """The row of the report, or why its measurement cannot be meant; ValueError where it cannot be predicted."""
    closed_form = predict(
        case.model, case.workload, case.cluster, case.plan, case.stack, published_id=case.id
    )
    prediction = with_schedule(closed_form)
    measured, predicted = case.measured_step_time_s, prediction.step_time_s
    if reason := impossible(prediction, measured):
        return reason
    open_to = unsaid(case, closed_form)
    low, high = _interval(prediction, case.row.untuned, open_to)
    return {
        "id": case.id,
        "measured": measured,
        "predicted": predicted,
        "low": low,
        "high": high,
        "rel_error": predicted / measured - 1,
        "fits": not refuted(prediction),
        "peak_memory_gib": prediction.peak_memory_bytes / 2**30,
        "device_gib": prediction.device_bytes / 2**30,
        "allocated_gib": prediction.allocated_bytes / 2**30,
        "reserved_gib": prediction.reserved_bytes / 2**30,
        "measured_memory_gib": _gib(case.measured_memory_bytes),
        "measured_reserved_gib": _gib(case.measured_reserved_bytes),
        "source": case.row.text("source"),
        "plan": case.plan.describe(),
        "model": case.model.name,
        "family": case.model.family,
        "stack": case.stack,
        "gpus": case.plan.world,
        "cluster": case.cluster.name,
        "note": "; ".join(filter(None, (slow_hint(predicted, measured), *case.assumptions))),
        "unsaid": [each.to_dict() for each in open_to],
    }


def _interval(prediction: Prediction, untuned: bool, open_to: Sequence[Unsaid]) -> tuple[float, float]:
    """Where the measurement should lie; wider where the row says that nobody tuned its run. [s]

    open_to: what the row leaves unsaid; each end lies as far out as with the reading that moves it most.
    """
    time = prediction.step_time_s
    tuned = Interval(
        *(math.log(end / time) for end in (prediction.interval_low, prediction.interval_high)), ""
    )
    found = untuned_interval(tuned) if untuned else tuned
    ratios = [1.0, *(each.ratio for each in open_to)]
    return time * math.exp(found.low) * min(ratios), time * math.exp(found.high) * max(ratios)


def _gib(amount: float | None) -> float | None:
    return amount / 2**30 if amount else None


def memory_verdict(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows memory calls impossible, and how many are over their GPU's by less than the count may err."""
    impossible = sum(not row["fits"] for row in rows)
    over = [row["peak_memory_gib"] / row["device_gib"] - 1 for row in rows if row["fits"]]
    over = [share for share in over if share > 0]
    told = f"called impossible by memory: {impossible or 'none'}"
    if over:
        most = f"{100 * max(over):.0f} %"
        told += f"; predicted over their GPU's by less than the count may err: {len(over)}, by up to {most}"
    return told


def summarise(done: Sequence[tuple[Case, dict[str, Any]]], skipped: int) -> dict[str, Any]:
    """Errors over all rows and by group; shares and errors are fractions."""
    results = [result for _, result in done]
    by: dict[str, dict[str, Any]] = {}
    for name, label in GROUPS.items():
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for case, result in done:
            groups[label(case)].append(result)
        by[name] = {key: errors(group) for key, group in sorted(groups.items())}
    order = ranking([timed(case, result) for case, result in done])
    return {"n": len(results), "skipped": skipped, **errors(results), "ranking": order, "by": by}


def timed(case: Case, result: dict[str, Any]) -> Timed:
    """A row as `advisor.ranking` compares it."""
    workload, plan = case.workload, case.plan
    gpu_seconds = plan.world / (workload.global_batch * workload.seq_len)
    source = case.row.text("source")
    return Timed(
        id=case.id,
        source=source,
        subject=(case.model, replace(workload, global_batch=1), case.cluster.name),
        size=(plan.world, workload.global_batch),
        precision=plan.precision,
        software=(source, case.stack),
        plan=plan,
        measured=result["measured"] * gpu_seconds,
        predicted=result["predicted"] * gpu_seconds,
    )


def errors(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """n, mape, median, 90th percentile, largest error, mean signed error, coverage of the interval."""
    if not results:
        nothing = dict.fromkeys(
            ("mape", "median_ape", "p90_ape", "max_ape", "bias", "interval_coverage", "fits")
        )
        return {"n": 0, **nothing}
    sizes = sorted(abs(result["rel_error"]) for result in results)
    inside = [result["low"] <= result["measured"] <= result["high"] for result in results]
    return {
        "n": len(results),
        "mape": statistics.fmean(sizes),
        "median_ape": statistics.median(sizes),
        "p90_ape": sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        "max_ape": sizes[-1],
        "bias": statistics.fmean(result["rel_error"] for result in results),
        "interval_coverage": sum(inside) / len(inside),
        "fits": sum(bool(result["fits"]) for result in results) / len(results),
    }


def skip_reasons(skipped: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Reasons and the rows that they are of, most rows first; of reasons that differ in a name only the first is
    told in full, then the other names.
    """

    def general(reason: str) -> str:
        without_names = re.sub(r"'[^']*'", "'...'", reason.split(" Did you mean")[0])
        return re.sub(r"^\S+ has", "a model has", without_names)

    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for entry in skipped:
        groups[general(entry["reason"])].append(entry)
    found = [
        (_alike([entry["reason"] for entry in each]), [entry["id"] for entry in each])
        for each in groups.values()
    ]
    return sorted(found, key=lambda each: -len(each[1]))


def _alike(reasons: Sequence[str]) -> str:
    """The first of reasons that differ in a name only, with the names of the others and what they may mean."""
    first, *others = dict.fromkeys(reasons)
    if not others:
        return first
    more = f" and {len(others) - 4} more" if len(others) > 4 else ""
    return f"{first} Likewise {', '.join(_name(reason) for reason in others[:4])}{more}."


def _name(reason: str) -> str:
    """What a reason is about: the first name in quotes, or its first word."""
    quoted, meant = re.search(r"'[^']*'", reason), re.search(r" Did you mean ([^?]+)\?", reason)
    return (quoted.group() if quoted else reason.split()[0]) + (f" ({meant[1]}?)" if meant else "")
