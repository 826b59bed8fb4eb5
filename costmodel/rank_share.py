"""Parameters, gradients and optimizer state of any rank of a plan, not only of the first one of a stage."""

from __future__ import annotations

from costmodel.amounts import adam_alone, amount_inputs
from costmodel.layer import block_work
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.rank_layers import placed_chunks
from costmodel.rank_state import stage_buffers, state_bytes
from costmodel.workload import Workload


def rank_share(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    stage: int,
    places: tuple[int, int] = (0, 0),
    *,
    plain: bool = False,
) -> dict[str, int]:
    """Bytes that a rank of a stage holds: "parameters", "gradients", "optimizer". [byte]

    places: of the rank among those that share optimizer state, and among those that share it of experts; their parts
    differ by the padding that falls to each. plain: without Transformer Engine. ValueError for FSDP, whose buffers
    are others, and for other optimizers than Adam.
    """
    if plan.fsdp:
        raise ValueError("--fsdp: state is counted for the distributed optimizer. Try --zero-stage 1.")
    adam_alone(plan)
    x, features = amount_inputs(plan, workload, model)
    chunks = placed_chunks(plan, model, stage, workload.seq_len)
    names = {each.block for chunk in chunks for each in chunk.blocks}
    works = {name: block_work(x, name, features) for name in names}
    buffered = stage_buffers(x, plan, chunks, works, model, places, plain=plain)
    return {kind: int(size) for kind, size in state_bytes(x, buffered).items()}
