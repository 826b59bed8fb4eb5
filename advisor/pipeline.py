"""The event simulator applied to a prediction: what uneven stages change against the closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.predict import Prediction, TermValue
from costmodel.simulate import Timeline, pipeline_makespan, simulate_pipeline

CORRECTION = "schedule_correction"


def chunk_times(prediction: Prediction) -> tuple[list[list[float]], list[list[float]]]:
    """Forward and backward time of one micro-batch, by stage and chunk. [s]

    Layers are even but for those that embedding and loss stand in for; the embedding is in the first
    chunk, logits and loss in the last. Launch gaps and vocabulary split between the passes as the layers do.
    """
    values, plan = prediction.values, prediction.plan
    pp, vpp = plan.pp, plan.vpp
    layers = [[values["middle_stage_layers"] / vpp] * vpp for _ in range(pp)]
    if pp > 1:
        layers[0][0] -= plan.account_embedding
        layers[-1][-1] -= plan.account_loss
    whole = [[count * values["layer_time"] for count in stage] for stage in layers]
    whole[0][0] += values["first_stage_time"] - sum(whole[0])
    whole[-1][-1] += values["last_stage_time"] - sum(whole[-1])
    share = values["layer_forward_time"] / (values["layer_forward_time"] + values["layer_backward_time"])
    forward = [[share * time for time in stage] for stage in whole]
    backward = [[(1 - share) * time for time in stage] for stage in whole]
    return forward, backward


def timeline(prediction: Prediction) -> Timeline:
    """The step's pipeline, event by event, without data-parallel and optimizer time."""
    return simulate_pipeline(**_arguments(prediction))


def _arguments(prediction: Prediction) -> dict[str, Any]:
    forward, backward = chunk_times(prediction)
    return {
        "forward": forward,
        "backward": backward,
        "num_microbatches": prediction.plan.num_microbatches(prediction.workload.global_batch),
        "send_time": prediction.values["pp_send_recv"] if prediction.plan.pp > 1 else 0.0,
        "overlap_p2p": prediction.plan.overlap_p2p,
    }


def with_schedule(prediction: Prediction) -> Prediction:
    """The prediction with its closed-form pipeline replaced by the simulated one.

    The difference is one more term, `schedule_correction`, so that parts still sum to the step. It grows
    with stragglers as the rest of the step does. One stage has nothing to correct.
    """
    if prediction.plan.pp == 1:
        return prediction
    values = prediction.values
    microbatches = prediction.plan.num_microbatches(prediction.workload.global_batch)
    leaves = {leaf.name: leaf.value for leaf in prediction.time.leaves()}
    closed = (
        microbatches * values["slowest_stage_time"] + leaves["pipeline_bubble"] + leaves["pipeline_send_recv"]
    )
    stragglers = values["step_time"] / values["synchronous_time"]
    correction = (pipeline_makespan(**_arguments(prediction)) - closed) * stragglers
    term = TermValue(
        CORRECTION,
        "pipeline schedule, simulated less closed form",
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
        values=values | {CORRECTION: correction},
    )
