"""Memory of each stage over a simulated step: what stays, and activations of the micro-batches in flight.

The formulas of `costmodel.memory` give the peak of the first, the second, the fullest and the last stage; between
peaks the same formulas are evaluated with the micro-batches that are in flight at the moment. Other stages are the
second one with their own layers and their own number in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from costmodel.layout import Chunk
from costmodel.memory import activation_bytes
from costmodel.passes import stage_chunks
from costmodel.prediction import Prediction
from costmodel.schedule import last_chunk_in_flight
from costmodel.simulate import StagePasses

Curve = tuple[tuple[float, float], ...]
# Taken with the first pass and given back with the last one.
COMPUTING = ("workspace",)


def formula_stage(prediction: Prediction, stage: int) -> str:
    """Which stage of the memory formulas stands for a decoder stage: one of `costmodel.memory.MEMORY_STAGES`."""
    last, values = prediction.plan.pp - 1, prediction.values
    if stage == 0:
        return "first"
    if stage < last:
        return "fullest" if stage == values["fullest_stage"] != 1 else "second"
    # Two stages are first, second and last at once: the formulas take the larger.
    both = last == 1 and values["memory_second"] > values["memory_last"]
    return "second" if both else "last"


def memory_curve(prediction: Prediction, stage: int, passes: StagePasses) -> Curve:
    """(second, bytes) of a rank of a decoder stage; each value holds until the next point.

    passes: of the stage, in seconds from the start of the step.
    """
    values, name = prediction.values, formula_stage(prediction, stage)
    chunks = stage_chunks(prediction)[stage + _encoder_stages(prediction)]
    prefix = f"memory_{name}_"
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    moving = ("activations", "logits", *COMPUTING)
    scale = _weight_ratio(values, chunks, name)
    stays = sum(
        value * (scale if key in ("weights", "gradients", "optimizer") else 1.0)
        for key, value in own.items()
        if key not in moving
    )
    kept = sum(
        number * values[f"{block}_activation_bytes"] for chunk in chunks for block, number in chunk.blocks
    )
    layers = float(sum(chunk.layers for chunk in chunks) or 1)
    x = SimpleNamespace(**values)
    vpp = len(chunks)
    where = {"first": 0, "second": 1, "fullest": values.get("fullest_stage", 0)}.get(name, x.pp - 1)
    heads = values.get(f"{name}_stage_mtp_kept", 0.0) / last_chunk_in_flight(x, where)
    dispatcher = values.get(f"{name}_stage_dispatcher", 0.0)
    if scale == 1.0:  # the stage is the formula's own: its figures, so that peaks agree to the digit
        kept = values[f"{name}_stage_kept"]
        layers = values[f"layers_{name}"]
    # A pass takes memory when it starts forward and gives it back when it ends backward, in order of the passes.
    seconds = np.where(passes.forward, passes.start, passes.end)
    order = np.argsort(seconds, kind="stable")
    taken = np.where(passes.forward, 1, -1)
    flying = np.cumsum(taken[order])
    held = np.array(
        [
            0.0,
            *(
                activation_bytes(x, kept, layers, number / vpp, dispatcher=dispatcher)
                for number in range(1, flying.max() + 1)
            ),
        ]
    )
    moved = held[flying] + sum(own.get(part, 0.0) for part in COMPUTING) * (flying > 0)
    turned = np.cumsum((taken * (passes.chunk == vpp - 1))[order])
    moved += turned * heads * (1 - x.offload_share)
    if own.get("logits"):
        moved += own["logits"] * (turned > 0)
    points = zip(seconds[order].tolist(), (stays + moved).tolist(), strict=True)
    return ((0.0, stays), *points)


def _encoder_stages(prediction: Prediction) -> int:
    return len(stage_chunks(prediction)) - prediction.plan.pp


def _weight_ratio(values: dict[str, float], chunks: Sequence[Chunk], name: str) -> float:
    """Parameters of a stage's blocks over those of the stage that stands for it: 1 where the blocks are the same."""
    if name != "second":
        return 1.0
    counts: dict[str, int] = {}
    for chunk in chunks:
        for block, number in chunk.blocks:
            counts[block] = counts.get(block, 0) + number
    experts = values.get("second_stage_expert_parameters", 0.0) / max(values.get("experts_second", 1.0), 1.0)

    def parameters(number_of: dict[str, float]) -> float:
        return sum(
            number * (values[f"{block}_parameters"] + (experts if block == "experts" else 0.0))
            for block, number in number_of.items()
        )

    second = {block: values[f"{block}_second"] for block in counts}
    whole = parameters(second)
    return parameters({block: float(number) for block, number in counts.items()}) / whole if whole else 1.0


def thinned(curve: Curve, most: int) -> Curve:
    """At most `most` points: of each run of points the highest stays, so that the peak does."""
    if len(curve) <= most:
        return curve
    size = -(-len(curve) // max(most - 2, 1))
    runs = [curve[first : first + size] for first in range(1, len(curve) - 1, size)]
    return (curve[0], *(max(run, key=lambda point: point[1]) for run in runs), curve[-1])
