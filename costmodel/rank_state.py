"""Parameters, gradients and optimizer state of one rank as Megatron-Core's buffers hold them, and their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.rank_amounts import Message
from costmodel.rank_layers import PlacedChunk
from costmodel.tensors import (
    Buffer,
    Tensor,
    block_tensors,
    embedding_tensors,
    make_buffer,
    mtp_tensors,
    output_tensors,
)
from costmodel.work import communication, messages
from costmodel.work.block import BlockWork


@dataclass(frozen=True)
class BufferedTensors:
    """Tensors of one chunk that one group of ranks holds together, in one buffer.

    group: "dp", or "edp" for routed experts under expert parallelism. ranks: of the group [1]. shard: those of them
    over which optimizer state is sharded [1].
    """

    group: str
    ranks: int
    shard: int
    tensors: tuple[Tensor, ...]
    buffer: Buffer


def chunk_tensors(
    x: SimpleNamespace,
    plan: Plan,
    chunk: PlacedChunk,
    works: Mapping[str, BlockWork],
    tied: bool,
    *,
    plain: bool = False,
) -> Iterator[Tensor]:
    """Tensors of a model chunk in the order of Megatron-Core's modules; plain: of those without Transformer Engine.

    The last stage holds the embedding once more for MTP heads, and for a tied output layer. With heads the final norm
    follows the decoder's last layer, else it stands before the output layer; heads stand before that. Source:
    Megatron-Core 0.16.1, transformer_block.py, has_final_layernorm_in_this_stage, and gpt_model.py.
    """
    several = plan.pp > 1
    shared = several and (tied or bool(x.mtp_total))
    if chunk.first:
        yield from embedding_tensors(x, shared=shared)
    elif chunk.mtp:
        yield embedding_tensors(x, shared=True)[0]
    for placed in chunk.blocks:
        if not placed.mtp:
            yield from block_tensors(x, works[placed.block], plain=plain)
    after_layer = bool(x.mtp_total)
    if after_layer and chunk.ends:
        yield from (tensor for tensor in output_tensors(x) if tensor.name != "output")
    heads = [placed for placed in chunk.blocks if placed.mtp]
    for number in range(chunk.mtp):
        own = heads[number * len(heads) // chunk.mtp : (number + 1) * len(heads) // chunk.mtp]
        layer = [one for placed in own for one in block_tensors(x, works[placed.block], plain=plain)]
        yield from mtp_tensors(x, layer)
    if chunk.last:
        copy = not (tied and chunk.first)
        for tensor in output_tensors(x):
            if copy if tensor.name == "output" else not after_layer:
                # Of two copies on a stage the heads' is summed with the first stage's.
                yield replace(tensor, shared=tensor.shared and not chunk.mtp)


def stage_buffers(
    x: SimpleNamespace,
    plan: Plan,
    chunks: tuple[PlacedChunk, ...],
    works: Mapping[str, BlockWork],
    model: ModelSpec,
    places: tuple[int, int] = (0, 0),
    *,
    plain: bool = False,
    experts_apart: bool = False,
) -> list[BufferedTensors]:
    """Buffers of every chunk of a stage: tensors of dp x cp ranks, and of the experts' own ranks.

    places: of the rank among those that share the optimizer state of a buffer, and of one of experts. plain: modules
    of Megatron-Core alone, whose order is another, so that padding falls elsewhere.

    Without expert parallelism Megatron-Core keeps experts with the others, but for those of another tensor-parallel
    size where `experts_apart`. Buckets are cut on the first stage's first chunk while reductions overlap, elsewhere a
    chunk is one bucket. Source: Megatron-Core 0.16.1, distributed_data_parallel.py; Megatron-LM, training.py,
    disable_bucketing.
    """
    found = []
    own_ranks = plan.ep > 1 or (experts_apart and plan.etp != plan.tp)
    for index, chunk in enumerate(chunks):
        tensors = list(chunk_tensors(x, plan, chunk, works, model.tied_embeddings, plain=plain))
        # Only the first stage holds the first of all chunks.
        cut = plan.overlap_grad_reduce and index == 0 and chunks[0].first
        parts = (
            ("dp", int(x.dp * x.cp), int(x.shard), False, places[0]),
            ("edp", int(x.edp), int(x.expert_shard), True, places[1]),
        )
        for group, ranks, shard, apart, place in parts:
            own = tuple(each for each in tensors if (each.expert and own_ranks) == apart)
            if own:
                size = float(x.bucket) if cut else 0.0
                sharded = bool(x.optimizer_sharded)
                buffer = make_buffer(own, sharded=sharded, bucket_size=size, ranks=shard, rank=place)
                found.append(BufferedTensors(group, ranks, shard, own, buffer))
    return found


def parameter_counts(buffered: list[BufferedTensors]) -> dict[str, float]:
    """Parameters on the rank: routed experts, and the rest. [1]"""
    experts = sum(each.elements for one in buffered for each in one.tensors if each.expert)
    whole = sum(each.elements for one in buffered for each in one.tensors)
    counts: dict[str, float] = {"dense": whole - experts}
    return counts | {"experts": experts} if experts else counts


def state_bytes(x: SimpleNamespace, buffered: list[BufferedTensors]) -> dict[str, Amount]:
    """Buffers of parameters and gradients with their padding, and the optimizer state that the rank holds. [byte]

    Without a distributed optimizer parameters stand outside buffers, which have no padding then.
    """
    elements = sum(one.buffer.elements for one in buffered)
    return {
        "parameters": x.weight_bytes * elements,
        "gradients": x.grad_bytes * elements,
        "optimizer": x.state_bytes * sum(one.buffer.in_shard for one in buffered),
    }


def step_messages(x: SimpleNamespace, plan: Plan, buffered: list[BufferedTensors]) -> list[Message]:
    """Once a step: gradients and parameters over data-parallel ranks, and gradients of what other ranks hold too.

    Sequence parallelism sums over tp what every rank holds whole; the first and last stage sum a shared embedding.
    Numbers of a few bytes (norm of the gradients, tokens, loss) are left out. Source: Megatron-Core 0.16.1,
    finalize_model_grads.py.
    """
    found: list[Message] = []
    optimizers = len({one.group for one in buffered})
    for one in buffered:
        found += messages.data_parallel(x, one.group, one.ranks, one.shard, one.buffer.buckets, optimizers)
    tensors = [each for one in buffered for each in one.tensors]
    reduced = sum(each.elements for each in tensors if each.reduced and (x.sp or each.head_norm))
    size = communication.gradient_bytes(x, reduced)
    found.append(Message("all_reduce", "tp", plan.tp, size, 1, "gradients"))
    for each in tensors:
        if each.shared:
            size = communication.gradient_bytes(x, each.elements)
            found.append(Message("all_reduce", "embedding", 2, size, 1, "gradients"))
    return found
