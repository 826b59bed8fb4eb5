"""Measurements that cannot be meant: faster than the GPU can compute, or a thousandfold from what is predicted."""

from __future__ import annotations

from costmodel.prediction import Prediction

# A step time that is so many times the prediction, or so many times less, is likely in another unit. [1]
THOUSANDFOLD = (500.0, 2000.0)


def impossible(prediction: Prediction, measured: float) -> str:
    """Why no run takes a step in `measured` seconds: more model FLOP/s than the GPU's dense peak. "" where one may."""
    quicker = prediction.step_time_s / measured
    if prediction.mfu * quicker <= 1:
        return ""
    rate, peak = prediction.model_tflops_per_gpu * quicker, prediction.model_tflops_per_gpu / prediction.mfu
    gpu, precision = prediction.cluster.gpu, prediction.plan.precision
    unit = " A step time in seconds belongs in step_time_s." if _thousandfold(quicker) else ""
    return (
        f"a step of {measured:.3g} s is {rate:,.0f} TFLOP/s of the model on each GPU, and {gpu.title} has {peak:,.0f} "
        f"dense with {precision}: check the time or rate, its unit, and whether it is of one GPU.{unit}"
    )


def slow_hint(predicted: float, measured: float) -> str:
    """What a step time that is about a thousand times the prediction may be, "" for others. [s]"""
    slower = measured / predicted
    if not _thousandfold(slower):
        return ""
    return f"{measured:,.6g} s is {slower:,.0f} times the prediction: is it in milliseconds? step_time_ms takes those"


def _thousandfold(ratio: float) -> bool:
    return THOUSANDFOLD[0] <= ratio <= THOUSANDFOLD[1]
