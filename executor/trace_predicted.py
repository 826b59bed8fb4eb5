"""A predicted step as a trace: a process for each pipeline stage, a thread for each stream."""

from __future__ import annotations

from typing import Any

from costmodel.prediction import Prediction
from costmodel.timeline import BACKWARD, FORWARD, SENT, Phases, Span, Timeline, simulate
from costmodel.timeline.memory import thinned
from executor.trace import Trace

STEP, STAGES = 1, 2  # numbers of the processes: the step itself, and the first stage
# Arrows are left out of longer steps, and memory keeps so many points of a stage.
MOST_ARROWS, MOST_POINTS = 20_000, 2_000
GIB = 2**30


def predicted_trace(prediction: Prediction, max_spans: int = 0) -> dict[str, Any]:
    """The step of a prediction as the object of a trace file. max_spans: draw several passes as one beyond it."""
    line = simulate(prediction)
    drawn = line.compact(max_spans) if max_spans else line
    trace = Trace()
    trace.process(STEP, "predicted step", prediction.plan.describe())
    trace.slice(STEP, "phase", "step", 0.0, line.step_time, "predicted", {"seconds": line.step_time})
    for stage in range(line.stages):
        trace.process(STAGES + stage, f"predicted {line.names[stage]}", ranks_of(prediction, line, stage))
        _phases(trace, STAGES + stage, line.phases[stage])
    tracks = _slices(trace, drawn)
    if drawn.whole and len(tracks) <= MOST_ARROWS:
        _arrows(trace, drawn, tracks)
    for stage, curve in enumerate(line.memory):
        for second, size in thinned(curve, MOST_POINTS):
            trace.counter(STAGES + stage, "memory", second, {"GiB": round(size / GIB, 4)})
    about = {
        "kind": "predicted",
        "model": prediction.model.name,
        "cluster": prediction.cluster.name,
        "gpus": prediction.plan.world,
        "step_time_s": prediction.step_time_s,
        "interval_s": [prediction.interval_low, prediction.interval_high],
        "peak_memory_gib": prediction.peak_memory_bytes / GIB,
        "bound_by": prediction.bound_by,
        "workload": prediction.workload.to_dict(),
        "plan": prediction.plan.to_dict(),
        "passes_drawn_as_one": list(drawn.together),
        "waiting_beside_the_schedule_s": line.residual,
    }
    return trace.to_dict(about)


def ranks_of(prediction: Prediction, line: Timeline, stage: int) -> str:
    """The ranks that a stage stands for: pipeline stages are the outermost of the order tp-cp-ep-dp-pp."""
    plan = prediction.plan
    if line.stages > plan.pp:
        return f"{plan.world // plan.replica} replicas"
    each = plan.tp * plan.cp * plan.dp
    first, last = stage * each, (stage + 1) * each - 1
    return f"rank {first}" if each == 1 else f"ranks {first}-{last}"


def _phases(trace: Trace, pid: int, phases: Phases) -> None:
    before = 0.0
    for name, end in zip(("warm-up", "steady state", "flush"), phases, strict=True):
        if end > before:
            trace.slice(pid, "phase", name, before, end - before, "phase")
        before = end


def _slices(trace: Trace, line: Timeline) -> dict[Span, int]:
    """Every span as a slice; returns the tracks of passes and messages."""
    tracks = {}
    for span in sorted(line.spans, key=lambda span: (span.start, span.end)):
        about = {} if span.microbatch < 0 else {"micro-batch": span.microbatch, "chunk": span.chunk}
        track = trace.slice(
            STAGES + span.stage, span.stream, span.name, span.start, span.duration, "predicted", about
        )
        if span.stream in ("compute", "pp") and span.microbatch >= 0:
            tracks[span] = track
    return tracks


def _arrows(trace: Trace, line: Timeline, tracks: dict[Span, int]) -> None:
    """From each message to the pass of the neighbour that it feeds."""
    passes = {
        (span.name, span.stage, span.chunk, span.microbatch): span
        for span in tracks
        if span.stream == "compute"
    }
    messages = [span for span in tracks if span.stream == "pp"]
    for number, span in enumerate(messages, start=1):
        forward = span.name == SENT[True]
        step = 1 if forward else -1
        stage, chunk = span.stage + step, span.chunk
        if not 0 <= stage < line.stages:  # around to the next or the last chunk
            stage, chunk = stage % line.stages, chunk + step
        fed = passes[FORWARD if forward else BACKWARD, stage, chunk, span.microbatch]
        start = (STAGES + span.stage, tracks[span], span.start)
        trace.arrow(number, span.name, start, (STAGES + stage, tracks[fed], fed.start))
