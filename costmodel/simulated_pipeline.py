"""The event simulator applied to a prediction: what uneven stages change against the closed form."""

from __future__ import annotations

from dataclasses import replace

from costmodel.passes import Evaluated, pipeline_arguments
from costmodel.prediction import CORRECTION, Prediction, TermValue
from costmodel.simulate import least_makespan, pipeline_makespan

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
    makespan = pipeline_makespan(**pipeline_arguments(prediction))
    return (makespan - closed_pipeline(prediction)) * stragglers(prediction)


def least_correction(prediction: Evaluated) -> float:
    """What `schedule_correction` is not below, without a replay. [s]"""
    arguments = pipeline_arguments(prediction)
    for name in ("overlap_p2p", "group"):
        arguments.pop(name)
    return (least_makespan(**arguments) - closed_pipeline(prediction)) * stragglers(prediction)


def closed_pipeline(prediction: Evaluated) -> float:
    """The pipeline of a step by the closed form. [s]"""
    values = prediction.values
    microbatches = prediction.plan.num_microbatches(prediction.workload.global_batch)
    slowest = values.get("slowest_with_encoder", values["slowest_stage_time"])
    return microbatches * slowest + values["pipeline_bubble"] + values["pipeline_send_recv"]


def stragglers(prediction: Evaluated) -> float:
    """What waiting for stragglers multiplies a step by. [1]"""
    return prediction.values["step_time"] / prediction.values["synchronous_time"]
