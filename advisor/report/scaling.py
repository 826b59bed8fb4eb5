"""The same work on fewer and more GPUs: the best plan of each, by the same search, and what a token costs there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from advisor.progress import Tell
from advisor.request import Request
from advisor.search import search
from advisor.search.candidates import Candidate
from advisor.sections import training_cost
from advisor.sizes import MOST_GPUS

# GPUs over those asked for.
FACTORS = (0.25, 0.5, 1, 2, 4)
# Tokens that cost is told for when none are asked about. [1]
TOKENS = 1e12


def scaling(request: Request, best: Candidate | None, tell: Tell) -> dict[str, Any]:
    """Best plan on a handful of GPU counts around the request's, global batch unchanged (strong scaling).

    best: what the search gave for the request itself, which is not searched again; its number format is kept.
    Returns tokens, that cost is for [1], and rows: gpus, and either the plan with its numbers and cost, or the
    reason why there is none. efficiency: tokens a second and GPU over those of the request's own count [1].
    """
    tokens = request.tokens or TOKENS
    counts = [round(request.gpus * factor) for factor in FACTORS if request.gpus * factor >= 1]
    counts = sorted({count for count in counts if count <= MOST_GPUS})
    formats = (best.plan.precision,) if best else request.precisions
    rows = []
    for done, gpus in enumerate(counts):
        tell(done / len(counts), f"scaling, {gpus:,} GPUs")
        known = best is not None and gpus == best.plan.world == request.gpus
        rows.append(_told(best, gpus, tokens) if known else _row(request, gpus, tokens, formats))
    here = next((row for row in rows if row["gpus"] == request.gpus and "plan" in row), None)
    for row in rows:
        if here and "plan" in row:
            row["efficiency"] = row["tokens_per_second_per_gpu"] / here["tokens_per_second_per_gpu"]
    return {"tokens": tokens, "rows": rows}


def _row(request: Request, gpus: int, tokens: float, precisions: tuple[str, ...]) -> dict[str, Any]:
    try:
        # Fewer GPUs than asked for are another count of this table, not an answer for this one.
        objective = "throughput" if request.objective == "cost" else request.objective
        pins = {name: value for name, value in request.pins.items() if name != "dp"}
        found = search(
            replace(request, gpus=gpus, top=1, objective=objective, pins=pins, precisions=precisions)
        ).best
    except ValueError as problem:
        return {"gpus": gpus, "why_not": str(problem)}
    return _told(found, gpus, tokens)


def _told(found: Candidate | None, gpus: int, tokens: float) -> dict[str, Any]:
    if found is None:
        return {"gpus": gpus, "why_not": "no plan fits in memory"}
    known = found.prediction
    return {
        "gpus": gpus,
        "plan": known.plan.describe(),
        "step_time_s": known.step_time_s,
        "low_s": known.interval_low,
        "high_s": known.interval_high,
        "tokens_per_second_per_gpu": known.tokens_per_second_per_gpu,
        "mfu": known.mfu,
        "peak_memory_bytes": known.peak_memory_bytes,
        "cost": training_cost(known, tokens),
    }
