"""What one pass of a micro-batch through a chunk of a pipeline stage takes, from a prediction's own terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from costmodel.layout import Chunk, layout_of
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.prediction import Prediction
from costmodel.symbols import BLOCKS
from costmodel.workload import Workload

Table = list[list[float]]


class Evaluated(Protocol):
    """A plan with every number of its step, such as a prediction is."""

    @property
    def model(self) -> ModelSpec:
        """The model that is trained."""

    @property
    def workload(self) -> Workload:
        """What a step trains on."""

    @property
    def plan(self) -> Plan:
        """Its knobs."""

    @property
    def values(self) -> dict[str, float]:
        """Every input and every entry of the ledger, by name, in base units."""


@dataclass(frozen=True)
class Part:
    """Something inside a pass that is not compute: the stream it waits on, what it is, how long [s]."""

    stream: str
    name: str
    seconds: float


def chunk_times(prediction: Evaluated) -> tuple[Table, Table]:
    """Forward and backward time of one micro-batch, by stage and chunk. [s]

    An encoder's stages come before the decoder's. Each chunk has its own blocks; the embedding is in the first
    chunk, logits and loss in the last, MTP heads where the layout puts them.
    Launch gaps and vocabulary split between the passes as the blocks of the pace-setting stage do.
    """
    values = prediction.values
    head = values.get("mtp_head_time", 0.0)
    whole = [
        [
            sum(number * values[f"{block}_time"] for block, number in chunk.blocks) + chunk.mtp * head
            for chunk in stage
        ]
        for stage in _layout(prediction)
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
    share = forward_share(prediction)
    forward = [[share * max(time, 0.0) for time in stage] for stage in whole]
    backward = [[(1 - share) * max(time, 0.0) for time in stage] for stage in whole]
    return forward, backward


def forward_share(prediction: Evaluated) -> float:
    """Share of the forward pass in the blocks of the pace-setting stage. [1]"""
    values = prediction.values
    blocks = [block for block in BLOCKS if f"{block}_time" in values]
    forward, backward = (
        sum(values[f"{block}_pace"] * values[f"{block}_{kind}_time"] for block in blocks)
        for kind in ("forward", "backward")
    )
    return forward / (forward + backward)


def pipeline_arguments(prediction: Evaluated) -> dict[str, Any]:
    """Arguments of `costmodel.simulate.simulate_pipeline` for a prediction."""
    forward, backward = chunk_times(prediction)
    return {
        "forward": forward,
        "backward": backward,
        "num_microbatches": prediction.plan.num_microbatches(prediction.workload.global_batch),
        "send_time": prediction.values["pp_send_recv"] if prediction.plan.pp > 1 else 0.0,
        "overlap_p2p": prediction.plan.overlap_p2p and prediction.values["blocking_sends"] == 0,
        "group": prediction.plan.vpp_group_size if prediction.plan.vpp > 1 else 0,
        "flushes": prediction.plan.pipeline_flushes,
    }


def exposed_parts(prediction: Prediction, chunk: Chunk, direction: str) -> list[Part]:
    """Exposed communication inside one pass of a chunk: part of its time, not beside it.

    direction: "forward" or "backward". A block's share is its entry of the ledger; what has no entry for one block
    (waiting for token counts) is the term of the pace-setting stage, divided by its blocks and micro-batches.
    """
    values = prediction.values
    titles = {leaf.name: leaf.title for leaf in prediction.time.leaves()}
    parts = []
    for stream, kind in (("tp", "tensor_parallel"), ("cp", "context_parallel")):
        seconds = sum(
            number * values.get(f"{block}_{stream}_exposed_{direction}", 0.0)
            for block, number in chunk.blocks
        )
        parts.append(Part(stream, titles.get(f"{direction}_{kind}", kind), seconds))
    experts = chunk.count("experts")
    if experts:
        dispatch = experts * values["dispatch_exposed"] / 2
        parts.append(Part("ep", titles.get(f"{direction}_dispatch", "dispatch"), dispatch))
        waiting = values.get(f"{direction}_wait", 0.0)
        placed = values["experts_pace"] * prediction.plan.num_microbatches(prediction.workload.global_batch)
        if waiting and placed:
            parts.append(Part("host", titles[f"{direction}_wait"], experts * waiting / placed))
    return [part for part in parts if part.seconds > 0]


def stage_chunks(prediction: Prediction) -> list[tuple[Chunk, ...]]:
    """Chunks of every stage of the simulated pipeline; an encoder's own stages come first and are empty."""
    empty = (Chunk((), 0),) * prediction.plan.vpp
    return [empty] * (prediction.plan.encoder_pp if "encoder_time" in prediction.values else 0) + list(
        _layout(prediction)
    )


def _layout(prediction: Evaluated) -> tuple[tuple[Chunk, ...], ...]:
    return layout_of(prediction.plan, prediction.model, prediction.workload.seq_len).chunks
