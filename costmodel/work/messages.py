"""Messages of one rank, one by one: what a block exchanges for a micro-batch, and what a step exchanges once.

Sizes are those of `costmodel.work.communication` and of the blocks (`BlockWork.gathered`, `.reduced`), which the
step time is made of; here they stand beside the collective, its group and its pass. `again`: how often
recompute repeats the forward pass of the block. Groups of one rank exchange nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.rank_amounts import Message
from costmodel.symbols import of_block
from costmodel.work import communication, dispatched
from costmodel.work.block import BlockWork
from costmodel.work.communication import ContextColumns
from costmodel.work.elementwise import residual_tokens
from costmodel.work.linear import kv_heads_per_rank, tokens
from costmodel.work.mixers import repeated_columns

# Bytes of one number of the loss that vocabulary-parallel ranks reduce: FP32.
LOSS_BYTES = 4
# Bytes of a count of tokens: 64-bit integers.
COUNT_BYTES = 8


def merged(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages of equal kind and size together; those that are empty or of one rank left out."""
    counts: dict[tuple[str, str, int, Amount, str], Amount] = {}
    for one in messages:
        if one.count and one.bytes and one.ranks > 1:
            key = (one.operation, one.group, int(one.ranks), one.bytes, one.phase)
            counts[key] = counts.get(key, 0) + one.count
    return tuple(
        Message(operation, group, ranks, size, count, phase)
        for (operation, group, ranks, size, phase), count in counts.items()
    )


def tensor_parallel(
    x: SimpleNamespace, gathered: Iterable[Amount], reduced: Amount, again: Amount, *, kept: Amount = 0
) -> list[Message]:
    """Around a pair of column- and row-parallel layers.

    gathered: inputs of the column-parallel layers, whole [byte]; reduced: output of the row-parallel one [byte];
    kept: 1 where inputs are kept as they were gathered, as by shared experts beside the dispatch (shared_experts.py).
    Sequence parallelism gathers inputs and reduce-scatters the output; backward it gathers the output's gradient,
    gathers the inputs again for the weight gradients and reduce-scatters theirs. Without it the output is
    all-reduced forward and the inputs' gradients backward. Source: arXiv:2205.05198, sec. 4.2; Megatron-Core,
    LinearWithGradAccumulationAndAsyncCommunication.
    """
    found: list[Message] = []
    for phase, times in (("forward", 1), ("backward", again)):
        if x.sp:
            found += [Message("all_gather", "tp", x.tp, size, times, phase) for size in gathered]
            found.append(Message("reduce_scatter", "tp", x.tp, reduced, times, phase))
        else:
            found.append(Message("all_reduce", "tp", x.tp, reduced, times, phase))
    if x.sp:
        found.append(Message("all_gather", "tp", x.tp, reduced, 1, "backward"))
        for size in gathered:
            found.append(Message("all_gather", "tp", x.tp, size, 1 - kept, "backward"))
            found.append(Message("reduce_scatter", "tp", x.tp, size, 1, "backward"))
    else:
        found += [Message("all_reduce", "tp", x.tp, size, 1, "backward") for size in gathered]
    return found


def joined_heads(x: SimpleNamespace, work: BlockWork, again: Amount) -> list[Message]:
    """QKV outputs gathered where ranks share key/value heads, their gradients reduce-scattered.

    Source: Megatron-Core, attention.py, all_gather_last_dim_from_tensor_parallel_region.
    """
    return [
        Message("all_gather", "tp", x.tp, work.joined, 1, "forward"),
        Message("all_gather", "tp", x.tp, work.joined, again, "backward"),
        Message("reduce_scatter", "tp", x.tp, work.joined, 1, "backward"),
    ]


def latent_inputs(x: SimpleNamespace, work: BlockWork) -> list[Amount]:
    """Inputs of MLA's column-parallel up projections, gathered one by one. [byte]"""
    ups = [layer for layer in work.linears if layer.split == "column"]
    return [x.activation_bytes * tokens(x) * layer.inner for layer in ups]


def rotary_keys(x: SimpleNamespace, again: Amount) -> list[Message]:
    """The rotary part of MLA's keys, which every head shares: gathered whole with sequence parallelism.

    Its gradient is reduce-scattered. Source: Megatron-Core, multi_latent_attention.py, k_pos_emb.
    """
    size = x.sp * x.activation_bytes * tokens(x) * x.d_rope
    return [
        Message("all_gather", "tp", x.tp, size, 1, "forward"),
        Message("all_gather", "tp", x.tp, size, again, "backward"),
        Message("reduce_scatter", "tp", x.tp, size, 1, "backward"),
    ]


def context_columns(x: SimpleNamespace, name: str) -> ContextColumns:
    """Columns that attention exchanges, on one rank."""
    heads = x.a / x.tp
    if name == "csa":
        return ContextColumns(x.d * (1 + 1 / x.csa_light), heads * x.d, heads * x.d)
    if name == "dsa":
        # Each latent is a key and a value; the indexer's keys go with them.
        keys = x.kv_lora + x.d_rope + x.index_dim / x.index_interval
        return ContextColumns(keys, heads * (x.kv_lora + x.d_rope), heads * x.kv_lora)
    if name == "mla":
        queries = x.d_nope + x.d_rope
        return ContextColumns(heads * (queries + x.d_v), heads * queries, heads * x.d_v)
    x = of_block(x, name)
    heads = x.a / x.tp
    return ContextColumns(kv_heads_per_rank(x) * (x.d + x.d_v), heads * x.d, heads * x.d_v)


def context_parallel(x: SimpleNamespace, name: str, again: Amount) -> list[Message]:
    """Of one attention core, by communication type; sizes sum keys and values, or all that travels.

    Ring: cp - 1 steps forward, as many backward with keys, values and their gradients. All-gather: keys and values of
    the sequence, again for the backward pass, and their gradients reduce-scattered. All-to-all: queries, keys, values
    and output, in both passes; with a ring between its groups the output once more in the backward pass.
    Source: Transformer Engine 2.8, context_parallel.py.
    """
    columns = context_columns(x, name)
    ring = x.cp / x.cp_a2a_size
    step = communication.context_parallel_ring_bytes(x, columns.keys)
    found: list[Message] = []
    if x.cp_all_gather:
        whole = step * x.cp
        found.append(Message("all_gather", "cp", x.cp, whole, 1, "forward"))
        found.append(Message("all_gather", "cp", x.cp, whole, 1 + again, "backward"))
        found.append(Message("reduce_scatter", "cp", x.cp, whole, 1, "backward"))
        return found
    for kind in ("send", "recv"):
        found.append(Message(kind, "cp", ring, step, ring - 1, "forward"))
        found.append(Message(kind, "cp", ring, step, again * (ring - 1), "backward"))
        found.append(Message(kind, "cp", ring, 2 * step, ring - 1, "backward"))
    exchanged = communication.context_parallel_a2a_bytes(x, columns.everything)
    found.append(Message("all_to_all", "cp", x.cp_a2a_size, exchanged, 1, "forward"))
    found.append(Message("all_to_all", "cp", x.cp_a2a_size, exchanged, 1 + again, "backward"))
    kept = communication.context_parallel_a2a_bytes(x, columns.output)
    found.append(Message("all_to_all", "cp", x.cp_a2a_size, kept, 1 - x.cp_a2a, "backward"))
    return found


def mixer_exchange_bytes(x: SimpleNamespace, work: BlockWork) -> tuple[Amount, Amount]:
    """Bytes that a rank holds at the all-to-all in front of a mixer's scan, and at that behind it. [byte]

    All columns of the input projection, B and C of Mamba repeated where there are fewer groups than ranks; the scan's
    output. Source: Megatron-Core 0.16.1, mamba_context_parallel.py; 0.19, gated_delta_net.py.
    """
    layers = {layer.name: layer for layer in work.linears}
    repeated = repeated_columns(x) if work.name == "mamba" else 0
    each = x.activation_bytes * tokens(x)
    return each * (layers["in_proj"].columns + repeated), each * layers["out_proj"].inner


def mixer_exchange(x: SimpleNamespace, work: BlockWork, again: Amount) -> list[Message]:
    """What a Mamba or gated delta mixer exchanges over context-parallel ranks, sources as of `mixer_exchange_bytes`.

    Heads for sequence in front of its scan, and back; gradients the other way.
    """
    size = sum(mixer_exchange_bytes(x, work))
    return [
        Message("all_to_all", "cp", x.cp, size, 1, "forward"),
        Message("all_to_all", "cp", x.cp, size, 1 + again, "backward"),
    ]


def expert_parallel(x: SimpleNamespace, again: Amount, probability_bytes: int) -> list[Message]:
    """Dispatch and combine of one expert block: tokens, their probabilities, and results back; gradients likewise.

    Where rows are not padded to a capacity, ranks tell each other how many tokens each expert gets. With etp what
    arrived is gathered over the ranks of an expert, and results are reduce-scattered. All-to-all dispatcher,
    balanced. Source: Megatron-Core, token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    if x.dispatch_gather:
        return gathered_experts(x, again, probability_bytes)
    copies = dispatched.routed_copies(x) * x.capacity
    rows, numbers = x.activation_bytes * copies * x.he, probability_bytes * copies
    results = probability_bytes * copies * x.he  # reduced in the probabilities' format
    told = x.ragged * COUNT_BYTES * x.E * x.ep * x.etp
    found: list[Message] = [
        Message("all_gather", "tp_ep", x.ep * x.etp, told, 1, "forward"),
        Message("all_gather", "tp_ep", x.ep * x.etp, told, again, "backward"),
    ]
    for phase, times in (("forward", 1), ("backward", 1 + again)):
        found.append(Message("all_to_all", "ep", x.ep, rows, 2 * times, phase))
        found.append(Message("all_to_all", "ep", x.ep, numbers, times, phase))
    for phase, times in (("forward", 1), ("backward", again)):
        found.append(Message("all_gather", "etp", x.etp, rows * x.etp, times, phase))
        found.append(Message("all_gather", "etp", x.etp, numbers * x.etp, times, phase))
        found.append(Message("reduce_scatter", "etp", x.etp, results * x.etp, times, phase))
    found.append(Message("all_gather", "etp", x.etp, results * x.etp, 1, "backward"))
    found.append(Message("reduce_scatter", "etp", x.etp, rows * x.etp, 1, "backward"))
    found.append(Message("reduce_scatter", "etp", x.etp, numbers * x.etp, 1, "backward"))
    return found


def gathered_experts(x: SimpleNamespace, again: Amount, probability_bytes: int) -> list[Message]:
    """Dispatch and combine where every rank of an expert dispatch sees all tokens: gathered with the map of chosen
    experts (a byte each) and their probabilities, results reduce-scattered in the probabilities' format; gradients the
    other way.

    Source: Megatron-Core 0.16.1, token_dispatcher.py, MoEAllGatherTokenDispatcher.
    """
    ranks, own = x.ep * x.etp, residual_tokens(x)
    rows = x.activation_bytes * own * x.he * ranks
    numbers = probability_bytes * own * x.E * ranks
    results = probability_bytes * own * x.he * ranks
    found: list[Message] = []
    for phase, times in (("forward", 1), ("backward", again)):
        for size in (own * x.E * ranks, numbers, rows):
            found.append(Message("all_gather", "tp_ep", ranks, size, times, phase))
        found.append(Message("reduce_scatter", "tp_ep", ranks, results, times, phase))
    found.append(Message("all_gather", "tp_ep", ranks, results, 1, "backward"))
    for size in (rows, numbers):
        found.append(Message("reduce_scatter", "tp_ep", ranks, size, 1, "backward"))
    return found


def embedding(x: SimpleNamespace) -> list[Message]:
    """One lookup in the vocabulary-parallel table: rows of other ranks' tokens are summed up.

    With sequence parallelism by a reduce-scatter, but with learned positions, which are added to whole sequences, by
    an all-reduce; the gradient is gathered. Source: Megatron-Core, VocabParallelEmbedding, LanguageModelEmbedding.
    """
    size = communication.tensor_parallel_bytes(x)
    scattered = x.sp and not x.positions
    found = [Message("reduce_scatter" if scattered else "all_reduce", "tp", x.tp, size, 1, "forward")]
    return [*found, Message("all_gather", "tp", x.tp, x.sp * size, 1, "backward")]


def output(x: SimpleNamespace) -> list[Message]:
    """Logits and loss once: the input of the output layer, and numbers of the vocabulary-parallel loss.

    Maximum, predicted logit and sum of exponentials, the last two in one message when the loss is fused.
    Source: Megatron-Core, tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py.
    """
    size, number = communication.tensor_parallel_bytes(x), LOSS_BYTES * tokens(x)
    return [
        Message("all_gather", "tp", x.tp, x.sp * size, 1, "forward"),
        Message("all_gather", "tp", x.tp, x.sp * size, 1, "backward"),
        Message("reduce_scatter" if x.sp else "all_reduce", "tp", x.tp, size, 1, "backward"),
        Message("all_reduce", "tp", x.tp, number, 1 if x.fused_loss else 3, "forward"),
        Message("all_reduce", "tp", x.tp, 2 * number, x.fused_loss, "forward"),
    ]


def mtp_projection(x: SimpleNamespace) -> list[Message]:
    """Around the projection of an MTP head, whose output every rank needs whole.

    Its input of 2 h is gathered and its gradient reduced as for any column-parallel layer; the output is gathered,
    and with sequence parallelism cut again, so that its gradient is gathered too. Source: Megatron-Core,
    multi_token_prediction.py.
    """
    size = communication.tensor_parallel_bytes(x)
    return [
        Message("all_gather", "tp", x.tp, x.sp * 2 * size, 1, "forward"),
        Message("all_gather", "tp", x.tp, size, 1, "forward"),
        Message("all_gather", "tp", x.tp, x.sp * size, 1, "backward"),
        Message("all_gather", "tp", x.tp, x.sp * 2 * size, 1, "backward"),
        Message("reduce_scatter" if x.sp else "all_reduce", "tp", x.tp, 2 * size, 1, "backward"),
    ]


def pipeline(x: SimpleNamespace, receives: int, sends: int) -> list[Message]:
    """Between stages for one micro-batch. receives, sends: chunks of the stage with one before, or behind, them."""
    size = communication.pipeline_bytes(x)
    return [
        Message("recv", "pp", x.pp, size, receives, "forward"),
        Message("send", "pp", x.pp, size, sends, "forward"),
        Message("recv", "pp", x.pp, size, sends, "backward"),
        Message("send", "pp", x.pp, size, receives, "backward"),
    ]


def data_parallel(
    x: SimpleNamespace,
    group: str,
    ranks: Amount,
    shard: Amount,
    buckets: Iterable[Amount],
    optimizers: int = 1,
) -> list[Message]:
    """Once a step, bucket by bucket: gradients reduced, and with a distributed optimizer parameters gathered.

    buckets: elements of each, padding included [1]. optimizers: two where experts have one of their own: without
    overlap each of them gathers all parameters when it is done. Several optimizer instances (ranks > shard)
    reduce-scatter inside one, then all-reduce a rank's part between them. Source: Megatron-Core 0.16.1,
    param_and_grad_buffer.py and distrib_optimizer.py, step_with_ready_grads.
    """
    found: list[Message] = []
    for elements in buckets:
        reduced = communication.gradient_bytes(x, elements)
        if not x.optimizer_sharded:
            found.append(Message("all_reduce", group, ranks, reduced, 1, "gradients"))
            continue
        found.append(Message("reduce_scatter", group, shard, reduced, 1, "gradients"))
        found.append(Message("all_reduce", "instances", ranks / shard, reduced / shard, 1, "gradients"))
        gathers = 1 if x.overlap_gather and x.overlap_reduce else optimizers
        size = communication.gather_bytes(x, elements)
        found.append(Message("all_gather", group, shard, size, gathers, "parameters"))
    return found
