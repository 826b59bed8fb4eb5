"""The simulated step as a page draws it: spans in few letters, phases of each stage, memory of the worst rank."""

from __future__ import annotations

from typing import Any

from costmodel.prediction import Prediction
from costmodel.timeline import STREAMS, Timeline, simulate

# Spans that a browser draws at once without waiting; a longer step is drawn several passes in one.
MOST_SPANS = 6000
HIDDEN = "under compute"


def schedule(prediction: Prediction) -> dict[str, Any]:
    """The step of a prediction, stage by stage.

    spans: [stage, stream, name, start, duration, micro-batch, chunk] with places in streams and names, in
    seconds. rows: each stage's phases [s], what it computes, waits for and exposes [s], and its peak of memory
    [byte]. memory: (second, byte) of the stage with the highest peak; whole: whether each pass is a span.
    """
    line = simulate(prediction)
    drawn = line.compact(MOST_SPANS)
    names: dict[str, int] = {}
    spans = [
        [
            span.stage,
            STREAMS.index(span.stream),
            names.setdefault(span.name, len(names)),
            span.start,
            span.duration,
            span.microbatch,
            span.chunk,
        ]
        for span in drawn.spans
    ]
    peaks = [max((size for _, size in curve), default=0.0) for curve in line.memory]
    worst = peaks.index(max(peaks))
    return {
        "step_time_s": line.step_time,
        "stages": line.stages,
        "names": list(names),
        "streams": list(STREAMS),
        "stage_names": list(line.names),
        "spans": spans,
        "whole": drawn.whole,
        "rows": _rows(line, peaks),
        "worst": worst,
        "memory": [list(point) for point in drawn.memory[worst]],
        "residual_s": line.residual,
    }


def _rows(line: Timeline, peaks: list[float]) -> list[dict[str, Any]]:
    """What each stage does with the step."""
    rows = [
        {
            "stage": name,
            "warm_up_s": phases.warm_up,
            "steady_s": phases.steady,
            "flush_s": phases.flush,
            "compute_s": 0.0,
            "exposed_s": 0.0,
            "peak_bytes": peak,
        }
        for name, phases, peak in zip(line.names, line.phases, peaks, strict=True)
    ]
    for span in line.spans:
        row = rows[span.stage]
        if span.stream == "compute":
            row["compute_s"] += span.duration
        elif not span.name.endswith(HIDDEN) and not _beside(span.stream, span.microbatch):
            row["exposed_s"] += span.duration
    for row in rows:
        row["idle_s"] = max(line.step_time - row["compute_s"] - row["exposed_s"], 0.0)
    return rows


def _beside(stream: str, microbatch: int) -> bool:
    """Messages to a neighbouring stage travel beside what the stage does next."""
    return stream == "pp" and microbatch >= 0
