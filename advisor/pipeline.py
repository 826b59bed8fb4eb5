"""The event simulator applied to a prediction: what uneven stages change against the closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.layout import layout_of
from costmodel.predict import Prediction, TermValue
from costmodel.simulate import Timeline, pipeline_makespan, simulate_pipeline
from costmodel.symbols import BLOCKS

CORRECTION = "schedule_correction"


def chunk_times(prediction: Prediction) -> tuple[list[list[float]], list[list[float]]]:
    """Forward and backward time of one micro-batch, by stage and chunk. [s]

    An encoder's stages come before the decoder's. Each chunk has its own blocks; the embedding is in the first
    chunk, MTP heads, logits and loss in the last.
    Launch gaps and vocabulary split between the passes as the blocks of the pace-setting stage do.
    """
    values = prediction.values
    layout = layout_of(prediction.plan, prediction.model, prediction.workload.seq_len)
    whole = [
        [sum(number * values[f"{block}_time"] for block, number in chunk.blocks) for chunk in stage]
        for stage in layout.chunks
    ]
    whole[0][0] += values["first_stage_time"] - sum(whole[0])
    if len(whole) > 1:
        whole[-1][-1] += values["last_stage_time"] - sum(whole[-1])
    encoder = values.get("encoder_time", 0.0)
    if encoder and prediction.plan.encoder_pp == 0:
        whole[0][0] += encoder
    elif encoder:
        # Stages of the encoder come first; only their first chunk has work.
        one = [encoder / prediction.plan.encoder_pp] + [0.0] * (prediction.plan.vpp - 1)
        whole = [list(one) for _ in range(prediction.plan.encoder_pp)] + whole
    blocks = [block for block in BLOCKS if f"{block}_time" in values]
    forward_part, backward_part = (
        sum(values[f"{block}_pace"] * values[f"{block}_{kind}_time"] for block in blocks)
        for kind in ("forward", "backward")
    )
    share = forward_part / (forward_part + backward_part)
    forward = [[share * max(time, 0.0) for time in stage] for stage in whole]
    backward = [[(1 - share) * max(time, 0.0) for time in stage] for stage in whole]
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
    if prediction.plan.pp == 1 and not prediction.plan.encoder_pp:
        return prediction
    values = prediction.values
    microbatches = prediction.plan.num_microbatches(prediction.workload.global_batch)
    leaves = {leaf.name: leaf.value for leaf in prediction.time.leaves()}
    slowest = values.get("slowest_with_encoder", values["slowest_stage_time"])
    closed = microbatches * slowest + leaves["pipeline_bubble"] + leaves["pipeline_send_recv"]
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
