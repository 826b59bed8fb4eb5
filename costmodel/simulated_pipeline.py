"""The event simulator applied to a prediction: what uneven stages change against the closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from costmodel.passes import Evaluated, pipeline_arguments
from costmodel.prediction import CORRECTION, Prediction, TermValue
from costmodel.simulate import least_makespan, pipeline_makespan
from costmodel.step import jitter_share

CORRECTION_TITLE = "pipeline schedule, simulated less closed form"


def with_schedule(prediction: Prediction) -> Prediction:
    """The prediction with its closed-form pipeline replaced by the simulated one.

    The difference is one more term, `schedule_correction`, so that parts still sum to the step. It grows
    with stragglers as the rest of the step does. One stage has nothing to correct.
    """
    if not has_pipeline(prediction):
        return prediction
    correction = schedule_correction(prediction)
    term = TermValue(
        CORRECTION,
        CORRECTION_TITLE,
        "s",
        correction,
        "costmodel.simulate.pipeline_makespan",
    )
    step = prediction.step_time_s + correction
    ratio = step / prediction.step_time_s
    time = replace(prediction.time, value=step, parts=(*prediction.time.parts, term))
    return replace(
        prediction,
        step_time_s=step,
        tokens_per_second_per_gpu=prediction.tokens_per_second_per_gpu / ratio,
        model_tflops_per_gpu=prediction.model_tflops_per_gpu / ratio,
        mfu=prediction.mfu / ratio,
        interval_low=prediction.interval_low * ratio,
        interval_high=prediction.interval_high * ratio,
        time=time,
        values=prediction.values | {CORRECTION: correction},
    )


def has_pipeline(prediction: Evaluated) -> bool:
    """Whether the plan has stages that wait for each other."""
    return prediction.plan.pp > 1 or prediction.plan.encoder_pp > 0


def schedule_correction(prediction: Evaluated) -> float:
    """The simulated pipeline less the closed form, grown by stragglers. [s]"""
    arguments = pipeline_arguments(prediction)
    makespan = pipeline_makespan(**arguments)
    alike = makespan
    if prediction.values["stage_slack"] > 0:
        alike = pipeline_makespan(**without_slack(prediction, arguments))
    return replayed_step(prediction, makespan, alike) - prediction.values["step_time"]


def least_correction(prediction: Evaluated) -> float:
    """What `schedule_correction` is not below, without a replay. [s]"""
    arguments = pipeline_arguments(prediction)
    for name in ("overlap_p2p", "group"):
        arguments.pop(name)
    alike = least_makespan(**without_slack(prediction, arguments))
    return replayed_step(prediction, least_makespan(**arguments), alike) - prediction.values["step_time"]


def replayed_step(prediction: Evaluated, makespan: float, alike: float) -> float:
    """The step with a replayed pipeline in place of the closed one. [s]

    makespan: of the pipeline as it is; alike: of that `without_slack` [s]. As `costmodel.step.with_stragglers`, the
    longer of the first with the jitter of the slowest stage's ranks and the second with that of all ranks. So the time
    in which others can be late is what they wait in the replay: of uneven chunks less than the closed form's.
    """
    values = prediction.values
    share: float = jitter_share(values["straggler"], values["own_gc"], values["unbound"])
    outside = values["synchronous_time"] - closed_pipeline(prediction)
    one_stage = 1 + share * math.log2(values["world"] / values["pp"])
    every_stage = 1 + share * math.log2(values["world"])
    return max(one_stage * (outside + makespan), every_stage * (outside + alike))


def without_slack(prediction: Evaluated, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the pipeline whose ends take as long as the stages that wait for them.

    What an end has beyond the others (`stage_slack`) is taken off its chunk with the embedding or the logits. Middle
    stages stay: of unlike layers one may be slower than the closed form knows.
    """
    forward, backward = list(arguments["forward"]), list(arguments["backward"])
    whole = [sum(ahead) + sum(behind) for ahead, behind in zip(forward, backward, strict=True)]
    slowest, last = slowest_stage(prediction), len(whole) - 1
    inner = whole[prediction.plan.encoder_pp + 1 : last]
    most = max([slowest - prediction.values["stage_slack"], *inner])
    for stage, seconds in enumerate(whole):
        chunk = len(forward[stage]) - 1 if stage == last else 0
        own = forward[stage][chunk] + backward[stage][chunk]
        if seconds > most and own > 0:
            kept = max(0, 1 - (seconds - most) / own)
            for table in (forward, backward):
                table[stage] = [
                    kept * time if place == chunk else time for place, time in enumerate(table[stage])
                ]
    return {**arguments, "forward": forward, "backward": backward}


def closed_pipeline(prediction: Evaluated) -> float:
    """The pipeline of a step by the closed form. [s]"""
    values = prediction.values
    microbatches = prediction.plan.num_microbatches(prediction.workload.global_batch)
    return microbatches * slowest_stage(prediction) + values["pipeline_bubble"] + values["pipeline_send_recv"]


def replayed_wait(prediction: Evaluated) -> float:
    """What the replayed pipeline takes beyond the closed one, before stragglers. [s]"""
    return pipeline_makespan(**pipeline_arguments(prediction)) - closed_pipeline(prediction)


def slowest_stage(prediction: Evaluated) -> float:
    """The slowest stage's time for one micro-batch by the closed form. [s]"""
    values = prediction.values
    return values.get("slowest_with_encoder", values["slowest_stage_time"])
