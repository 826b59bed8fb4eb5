"""A predicted step as it runs in time: every pass on every pipeline stage, what is exposed, memory.

The order of passes is the one of `costmodel.simulate`, durations are the terms of the prediction, and the last span
ends where the prediction says that the step ends. What the step time counts once for all stages follows the
pipeline (or, a parameter gather, comes before it). What it counts for each micro-batch of the pace-setting stage
(waiting for the host, FSDP, offload) lies inside that stage's passes alone, as the formula has it; a host that halts
does so on every stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.layout import Chunk
from costmodel.passes import (
    Part,
    chunk_times,
    exposed_parts,
    forward_share,
    pipeline_arguments,
    stage_chunks,
)
from costmodel.prediction import CORRECTION, PIPELINE, Prediction, TermValue
from costmodel.simulate import StagePasses, simulate_pipeline, warm_up_passes
from costmodel.simulated_pipeline import replayed_wait
from costmodel.timeline.memory import Curve, memory_curve, thinned
from costmodel.timeline.spans import BACKWARD, FORWARD, SENT, STREAMS, Drawing, Pass, Phases, Span

__all__ = ["BACKWARD", "FORWARD", "SENT", "STREAMS", "Phases", "Span", "Timeline", "simulate"]

HIDDEN_GRADIENTS, HIDDEN_GATHER = "gradient reduction, under compute", "parameter gather, under compute"
HIDDEN_FSDP = "FSDP gathers and reductions, under compute"
RESIDUAL = "waiting that the formula counts and the schedule does not"
# Terms that passes and their order stand for, and terms of each micro-batch on the pace-setting stage.
IN_PASSES = ("forward", "backward", "launch_gaps", "slower_layers", "vocabulary")
EACH_MICROBATCH = {
    "host_bound": "host",
    "pipeline_starts": "host",
    "maxima": "dp",
    "fsdp_exposed": "dp",
    "offload": "host",
}
# The others follow the pipeline in this order, and whatever is not named here after them.
AFTER = {
    "deferred_wgrad": "compute",
    "length_variance": "dp",
    "straggler_time": "host",
    "gradient_scaling": "compute",
    "nan_checks": "compute",
    "dp_gradients": "dp",
    "shared_embedding": "pp",
    "optimizer_muon": "compute",
    "optimizer_step": "compute",
    "optimizer_host": "host",
    "dp_gather": "dp",
    "step_fixed": "host",
}
IN_PIPELINE = tuple(name for name in PIPELINE if name not in (*EACH_MICROBATCH, *AFTER))
GATHER = "dp_gather"
# Groups that share parameters. A difference below CLOSE of the step is rounding.
OWNERS, CLOSE = ("dp", "edp"), 1e-10
Leaves = Mapping[str, TermValue]


@dataclass(frozen=True)
class Timeline:
    """A step in time.

    step_time: the prediction's, where the last span ends [s]. stages: of the pipeline, an encoder's own first [1].
    names: of the stages. phases: of each stage. residual: what the step time counts and no simulated event explains,
    drawn as the span `RESIDUAL` [s]. shrink: 1, or what the pipeline's durations were multiplied by because the step
    time leaves it less room than its schedule takes [1].
    together: passes drawn as one, those of warm-up and flush and those between.
    """

    drawing: Drawing
    step_time: float
    stages: int
    names: tuple[str, ...]
    phases: tuple[Phases, ...]
    residual: float
    shrink: float
    prediction: Prediction
    most_points: int = 0
    together: tuple[int, int] = (1, 1)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """All spans, stage by stage in order of time, and then those that happen once a step."""
        return self.drawing.spans(*self.together)

    @cached_property
    def memory(self) -> tuple[Curve, ...]:
        """(second, bytes) of each stage's rank, a value until the next point; empty for an encoder's own stages."""
        encoders = self.stages - self.prediction.plan.pp
        curves = tuple(
            memory_curve(self.prediction, stage, passes)
            for stage, passes in enumerate(self.drawing.passes[encoders:])
        )
        if self.most_points:
            curves = tuple(thinned(curve, self.most_points) for curve in curves)
        return ((),) * encoders + curves

    def totals(self) -> tuple[dict[tuple[str, str], float], ...]:
        """Seconds of every (stream, name) on each stage: sums of the spans, at no cost of drawing them."""
        return self.drawing.totals()

    @property
    def whole(self) -> bool:
        """Whether every pass is a span of its own."""
        return self.together == (1, 1)

    def compact(self, max_spans: int) -> Timeline:
        """The same step in about `max_spans` spans at most, neighbouring passes of a stage drawn as one.

        Warm-up and flush stay pass by pass where there is room. Memory keeps its peaks.
        """
        points = max(max_spans // self.stages, 16)
        return replace(self, together=self.drawing.fit(max_spans), most_points=points)


def simulate(prediction: Prediction) -> Timeline:
    """The step of a prediction in time.

    Examples
    --------
    >>> from costmodel.model_registry import load_model
    >>> from costmodel.plan import Plan
    >>> from costmodel.predict import predict
    >>> from costmodel.workload import Workload
    >>> from hardware_db import resolve
    >>> cluster = resolve("h100", None)[0]
    >>> step = predict(load_model("llama3-8b"), Workload(8192, 8), cluster, Plan(tp=4, dp=2))
    >>> line = simulate(step)
    >>> line.stages, abs(max(span.end for span in line.spans) / line.step_time - 1) < 1e-9
    (1, True)
    """
    leaves = {leaf.name: leaf for leaf in prediction.time.leaves()}
    table = _passes(prediction, leaves)
    arguments = pipeline_arguments(prediction)
    stages, vpp, count = len(arguments["forward"]), prediction.plan.vpp, arguments["num_microbatches"]
    tables = {
        kind: [
            [table[stage, chunk, kind == FORWARD].seconds for chunk in range(vpp)] for stage in range(stages)
        ]
        for kind in (FORWARD, BACKWARD)
    }
    line = simulate_pipeline(**arguments | tables)
    outside = _outside(prediction, leaves)
    first = {
        name: seconds for name, seconds in outside.items() if name == GATHER and _gathers_first(prediction)
    }
    room = prediction.step_time_s - sum(outside.values())
    shrink = min(1.0, room / line.makespan)
    shrink = shrink if shrink < 1 - CLOSE else 1.0
    residual = room - shrink * line.makespan
    residual = residual if residual > CLOSE * prediction.step_time_s else 0.0
    before = sum(first.values())
    passes = tuple(_moved(line.passes(stage), before, shrink) for stage in range(stages))
    one = count // arguments["flushes"]
    warm_ups = tuple(warm_up_passes(stage, stages, vpp, one, arguments["group"]) for stage in range(stages))
    ended = before + shrink * line.makespan
    once = _once(prediction, leaves, stages, outside, first, ended, residual)
    drawing = Drawing(
        passes,
        {key: _shrunk(made, shrink) for key, made in table.items()},
        warm_ups,
        shrink * arguments["send_time"],
        once,
    )
    return Timeline(
        drawing,
        prediction.step_time_s,
        stages,
        _names(prediction, stages),
        tuple(map(_phases, drawing.passes, warm_ups)),
        residual,
        shrink,
        prediction,
    )


def _passes(prediction: Prediction, leaves: Leaves) -> dict[tuple[int, int, bool], Pass]:
    """What every pass of a stage's chunk consists of."""
    forward, backward = chunk_times(prediction)
    chunks = stage_chunks(prediction)
    busy = [sum(forward[stage]) + sum(backward[stage]) for stage in range(len(chunks))]
    slowest = busy.index(max(busy))
    found = {}
    for direction, times in ((FORWARD, forward), (BACKWARD, backward)):
        added = _added(prediction, leaves, direction)
        for stage, row in enumerate(chunks):
            for chunk, parts_of in enumerate(row):
                seconds = times[stage][chunk]
                parts = exposed_parts(prediction, parts_of, direction)
                # A pass is a share of its chunk's time: one with little compute may have less room than its messages.
                squeeze = min(1.0, seconds / (sum(part.seconds for part in parts) or 1.0))
                parts = [replace(part, seconds=squeeze * part.seconds) for part in parts]
                compute = max(seconds - sum(part.seconds for part in parts), 0.0)
                if stage == slowest:
                    parts += added
                elif direction == FORWARD:
                    parts += _halting(prediction, leaves, parts_of)
                beside = _beside(prediction, leaves, parts_of, direction, compute)
                found[stage, chunk, direction == FORWARD] = Pass(compute, tuple(parts), beside)
    return found


def _added(prediction: Prediction, leaves: Leaves, direction: str) -> list[Part]:
    """What the step time counts for each micro-batch beside its passes, as parts of a pass of the slowest stage.

    Waiting for the host is known by direction; FSDP and offload are one sum, which the passes share by their time.
    """
    values, plan = prediction.values, prediction.plan
    count = plan.num_microbatches(prediction.workload.global_batch)
    share = _share(prediction, direction)
    found = []
    for name, stream in EACH_MICROBATCH.items():
        if name not in leaves:
            continue
        seconds = share * leaves[name].value / count
        if name == "host_bound":
            seconds = values[f"host_wait_{direction}"]
        found.append(Part(stream, leaves[name].title, seconds / plan.vpp))
    return [part for part in found if part.seconds > 0]


def _halting(prediction: Prediction, leaves: Leaves, chunk: Chunk) -> list[Part]:
    """Waiting for the host in a forward pass of a stage that does not set the pace, by its expert blocks or layers."""
    halt = prediction.values.get("host_halt", 0.0)
    if not halt:
        return []
    experts = prediction.values.get("experts_pace", 0.0)
    part = chunk.count("experts") / experts if experts else chunk.layers / prediction.values["layers_pace"]
    share = min(part, 1 / prediction.plan.vpp)
    return [Part(EACH_MICROBATCH["host_bound"], leaves["host_bound"].title, share * halt)] if share else []


def _share(prediction: Prediction, direction: str) -> float:
    share = forward_share(prediction)
    return share if direction == FORWARD else 1 - share


def _beside(
    prediction: Prediction, leaves: Leaves, chunk: Chunk, direction: str, compute: float
) -> tuple[Part, ...]:
    """FSDP's traffic that compute hides, in one pass of a chunk."""
    values = prediction.values
    if not prediction.plan.fsdp or not chunk.layers:
        return ()
    kinds = [("fsdp_gather", values["params_sharded"])]
    kinds += [("fsdp_scatter", 1.0)] if direction == BACKWARD else []
    travel = sum(weight * values.get(f"{owner}_{kind}", 0.0) for kind, weight in kinds for owner in OWNERS)
    count = prediction.plan.num_microbatches(prediction.workload.global_batch)
    shown = _share(prediction, direction) * leaves["fsdp_exposed"].value / count / prediction.plan.vpp
    hidden = min(max(chunk.layers * travel - shown, 0.0), compute)
    return (Part("dp", HIDDEN_FSDP, hidden),) if hidden else ()


def _outside(prediction: Prediction, leaves: Leaves) -> dict[str, float]:
    """Seconds of every term that happens once a step, outside the pipeline, in order."""
    inside = {leaf.name for part in prediction.time.parts if part.name in IN_PASSES for leaf in part.leaves()}
    inside |= {*IN_PIPELINE, *EACH_MICROBATCH}
    seconds = {name: leaf.value for name, leaf in leaves.items() if name not in inside}
    # The correction of the schedule grows with stragglers as the rest does: its share of them is theirs.
    if CORRECTION in leaves:
        seconds["straggler_time"] += leaves[CORRECTION].value - replayed_wait(prediction)
    order = [*AFTER, *(name for name in seconds if name not in AFTER)]
    return {name: seconds[name] for name in order if seconds.get(name)}


def _gathers_first(prediction: Prediction) -> bool:
    """Whether parameters are gathered under the first forward pass, and not after the optimizer."""
    return prediction.plan.overlap_param_gather and not prediction.plan.fsdp


def _once(
    prediction: Prediction,
    leaves: Leaves,
    stages: int,
    outside: Mapping[str, float],
    first: Mapping[str, float],
    ended: float,
    residual: float,
) -> tuple[Span, ...]:
    """Spans outside the passes, the same on every stage: each waits for the rank that the term is of."""
    gradients, gather = _hidden(prediction, leaves, ended - sum(first.values()))
    rows: list[tuple[str, str, float, float]] = []
    before = sum(first.values())
    rows += [("dp", leaves[name].title, 0.0, seconds) for name, seconds in first.items()]
    rows.append(("dp", HIDDEN_GATHER, before, gather))
    rows.append(("dp", HIDDEN_GRADIENTS, ended - gradients, gradients))
    rows.append(("pp", RESIDUAL, ended, residual))
    clock = ended + residual
    for name, seconds in outside.items():
        if name not in first:
            rows.append((AFTER.get(name, "host"), leaves[name].title, clock, seconds))
            clock += seconds
    return tuple(
        Span(stage, stream, name, start, seconds)
        for stage in range(stages)
        for stream, name, start, seconds in rows
        if seconds > 0
    )


def _hidden(prediction: Prediction, leaves: Leaves, longest: float) -> tuple[float, float]:
    """Seconds of gradient reduction and of parameter gather that compute hides, once a step."""
    values, plan = prediction.values, prediction.plan
    if plan.fsdp:
        return 0.0, 0.0

    def hidden(kind: str, term: str) -> float:
        whole = sum(values.get(f"{owner}_{kind}", 0.0) for owner in OWNERS)
        return min(max(whole - leaves[term].value, 0.0), longest / 2)

    sharded = bool(values["optimizer_sharded"])
    gradients = hidden("reduce_scatter" if sharded else "all_reduce", "dp_gradients")
    gather = hidden("all_gather", GATHER) if sharded else 0.0
    return gradients * plan.overlap_grad_reduce, gather * _gathers_first(prediction)


def _shrunk(made: Pass, scale: float) -> Pass:
    if scale == 1.0:
        return made
    parts, beside = (
        tuple(replace(part, seconds=scale * part.seconds) for part in group)
        for group in (made.parts, made.beside)
    )
    return Pass(scale * made.compute, parts, beside)


def _moved(passes: StagePasses, before: float, scale: float) -> StagePasses:
    return replace(passes, start=before + scale * passes.start, end=before + scale * passes.end)


def _phases(passes: StagePasses, warm_up: int) -> Phases:
    total = len(passes.start)
    started = float(passes.start[warm_up])
    steady = float(passes.end[total - warm_up - 1]) if total > 2 * warm_up else started
    return Phases(started, steady, float(passes.end[-1]))


def _names(prediction: Prediction, stages: int) -> tuple[str, ...]:
    encoders = stages - prediction.plan.pp
    return (
        *(f"encoder stage {index}" for index in range(encoders)),
        *(f"stage {index}" for index in range(prediction.plan.pp)),
    )
