"""Communication inside a layer as exposed time: tensor parallel and context parallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.rates import stream
from costmodel.term import Ledger
from costmodel.timing import overlap
from costmodel.timing.network import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
    send_recv_time,
)
from costmodel.work import communication
from costmodel.work.adapters import adapted
from costmodel.work.block import BlockWork
from costmodel.work.linear import Linear, heads_are_shared
from costmodel.work.quantisation import agrees_on_scale

Times = dict[str, dict[str, Amount]]
# The largest absolute value of a tensor, in FP32.
MAXIMUM_BYTES = 4


@dataclass(frozen=True)
class _Collectives:
    """What one block sends over its tensor-parallel ranks, and how long that takes before any overlap.

    gathered, reduced: the block's input and output [byte]; gathered_gradient, reduced_gradient: their gradients, the
    first in 16 bits, the second in the format of operands [byte]. gather, scatter: forward, under sequence parallelism;
    regather: of the output's gradient, rescatter: of the input's, backward; reduce, rereduce: the all-reduce in their
    place without sequence parallelism, forward and backward [s].
    """

    gathered: Amount
    reduced: Amount
    gathered_gradient: Amount
    reduced_gradient: Amount
    gather: Amount
    scatter: Amount
    reduce: Amount
    regather: Amount
    rescatter: Amount
    rereduce: Amount


def tensor_parallel_times(
    ledger: Ledger, x: SimpleNamespace, block: BlockWork, gemms: Times
) -> dict[str, Amount]:
    """Exposed tensor-parallel communication of one block, forward and backward.

    Forward: the block gathers its input and reduces its output. Backward: the row-parallel layer gathers
    the output gradient (exposed), the column-parallel layer gathers its input again under the data gradient
    (unless its weights are frozen) and reduce-scatters the input gradient under the weight gradient, always in
    Megatron-Core (CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell); DTensor reduces it before the weight gradient, with
    nothing beside. With tp_overlap every collective is pipelined
    with its GEMM in chunks, which takes SMs from the GEMM. Without sequence parallelism both become one all-reduce.
    QKV outputs of ranks that share key/value heads are gathered whole, with nothing beside.
    Source: arXiv:2205.05198, sec. 4.2; Megatron-Core, LinearWithGradAccumulationAndAsyncCommunication.
    """
    p = block.name
    inside = communication.ranks_in_domain(x, x.tp, 1)
    first = next(linear for linear in reversed(block.linears) if linear.split == "column")
    last = next(linear for linear in block.linears if linear.split == "row")
    column, row = gemms[first.name], gemms[last.name]
    sent = _collectives(ledger, x, block, first, inside)
    # Transformer Engine pipelines no gather of a norm's output that it also returns, to an adapter.
    alone = adapted(x, first.adapter)
    forward = (1 - alone) * _pipelined(x, sent.gather, column["forward"]) + alone * sent.gather
    forward += _pipelined(x, sent.scatter, row["forward"])
    forward += _tokens_copied(x, sent.gathered) + _tokens_copied(x, sent.reduced)
    backward = _pipelined(x, sent.regather, row["dgrad"]) + _tokens_copied(x, sent.reduced_gradient)
    backward += (1 - x.dtensor) * _megatron_backward(x, sent, column)
    backward += x.dtensor * _dtensor_backward(x, sent, column, first)
    without = overlap.exposed(sent.rereduce, _ordered(x) * (1 - x.dtensor) * column["wgrad"])
    shared = heads_are_shared(x) if block.joined != 0 else 0  # nothing is sent otherwise, not even a latency
    join = {"forward": all_gather_time, "backward": reduce_scatter_time}
    joined = {name: shared * seconds(x, block.joined, x.tp, inside) for name, seconds in join.items()}
    return {
        "forward": ledger.define(
            f"{p}_tp_exposed_forward",
            x.sp * forward + (1 - x.sp) * sent.reduce + joined["forward"],
            "s",
            overlap.pipelined_exposed,
        ),
        "backward": ledger.define(
            f"{p}_tp_exposed_backward",
            x.sp * backward + (1 - x.sp) * without + joined["backward"],
            "s",
            overlap.exposed,
        ),
    }


def _collectives(
    ledger: Ledger, x: SimpleNamespace, block: BlockWork, first: Linear, inside: Amount
) -> _Collectives:
    """Collectives of a block before any overlap; first: its column-parallel layer; inside: ranks in one domain [1]."""
    p = block.name
    gathered = ledger.define(f"{p}_tp_gathered", block.gathered, "byte", "input of the block, over tp")
    # What an adapter reads too is gathered in 16 bits, and frozen weights need it no second time.
    wide = 1 + gathered_plain(x, first) * (x.activation_bytes / x.operand_bytes - 1)
    reduced = ledger.define(f"{p}_tp_reduced", block.reduced, "byte", communication.tensor_parallel_bytes)
    # Backward the output's gradient is gathered and the input's reduced: other sizes where latents are gathered.
    formats = x.operand_bytes / x.activation_bytes

    def timed(name: str, seconds: Callable[..., Amount], size: Amount) -> Amount:
        return ledger.define(f"{p}_{name}", seconds(x, size, x.tp, inside), "s", seconds)

    return _Collectives(
        gathered=gathered,
        reduced=reduced,
        gathered_gradient=gathered / formats,
        reduced_gradient=reduced * formats,
        gather=timed("all_gather", all_gather_time, wide * gathered),
        scatter=timed("reduce_scatter", reduce_scatter_time, reduced),
        reduce=timed("all_reduce", all_reduce_time, reduced),
        regather=timed("all_gather_backward", all_gather_time, reduced * gathered_gradient_formats(x)),
        rescatter=timed("reduce_scatter_backward", reduce_scatter_time, gathered / formats),
        rereduce=all_reduce_time(x, gathered / formats, x.tp, inside),
    )


def gathered_gradient_formats(x: SimpleNamespace) -> Amount:
    """Bytes of an output's gradient as it is gathered, over those in the model's own format. [1]

    Quantised; rows and columns apart where each have scales of their own (`columns_gathered`) and weights are trained.
    Columns are hidden where tp_overlap pipelines the rows. Source: Transformer Engine 2.12, module/linear.py.
    """
    columns = x.trained * x.columns_gathered * (1 - x.tp_overlap)
    formats = x.operand_bytes / x.activation_bytes * (1 + columns)
    return formats + x.cast_anew * (1 - formats)


def _ordered(x: SimpleNamespace) -> Amount:
    """1 where a collective starts ahead of the product that hides it, 0 where hardware queues let it wait. [1]

    Before Blackwell, Megatron-Core with more than one queue (CUDA_DEVICE_MAX_CONNECTIONS).
    """
    return 1 - x.queued * x.megatron_core * x.many_queues


def _pipelined(x: SimpleNamespace, collective: Amount, gemm: Amount) -> Amount:
    """What is exposed of a collective that tp_overlap cuts into chunks beside its product; all of it without. [s]"""
    pipelined = x.tp_overlap * _ordered(x)
    chunks = 1 + pipelined * (x.overlap_chunks - 1)
    taken = overlap.contention(collective, gemm, pipelined * x.overlap_sms / x.gpu_sms)
    # Each further chunk launches a product and the copy that brings or takes its rows.
    started = 2 * (chunks - 1) * x.linear_launch
    return overlap.pipelined_exposed(collective, gemm, chunks) + taken + started


def _tokens_copied(x: SimpleNamespace, size: Amount, *, always: bool = False) -> Amount:
    """DTensor copies what it gathers or scatters along the sequence, which is not the outermost dimension. [s]

    Not where tp_overlap brings the rows themselves, unless `always`.
    """
    on = x.dtensor * is_more_than_one(x.tp) * (1 if always else 1 - x.tp_overlap)
    return on * stream(x, 2 * size, x.elementwise_fraction)


def _megatron_backward(x: SimpleNamespace, sent: _Collectives, column: dict[str, Amount]) -> Amount:
    """Exposed of the input's second gather, under the data gradient, and of its gradient, under the weight's. [s]"""
    bulk: Amount = 0
    for collective, gemm in ((x.trained * sent.gather, column["dgrad"]), (sent.rescatter, column["wgrad"])):
        bulk += overlap.exposed(collective, _ordered(x) * gemm)
        bulk += overlap.contention(collective, _ordered(x) * gemm, x.overlap_slowdown)
    return bulk


def _dtensor_backward(
    x: SimpleNamespace, sent: _Collectives, column: dict[str, Amount], first: Linear
) -> Amount:
    """The same with collectives that wait where they stand. [s]

    DTensor keeps what was gathered; recompute of ops drops it, recompute of the layer gathers it in its forward pass.
    Autograd sums the input gradients of products kept apart, and no product writes what is then scattered.
    """
    apart = x.separate_gate * is_more_than_one(first.products)
    single = _pipelined(x, sent.rescatter, column["dgrad"]) + _tokens_copied(x, sent.gathered_gradient)
    summed = sent.rescatter + x.residual_split * _tokens_copied(x, sent.gathered_gradient, always=True)
    dropped = (1 - x.recompute_layers) * x.recompute_ops * x.trained
    again = sent.gather + _tokens_copied(x, sent.gathered, always=True)
    return dropped * again + (1 - apart) * single + apart * summed


def gathered_plain(x: SimpleNamespace, layer: Linear) -> Amount:
    """1 where the input of a column-parallel layer is gathered in 16 bits. [1]

    Once for the layer and its adapter, or by a recipe that quantises behind the gather. Source: Transformer Engine
    2.8, module/layernorm_linear.py, return_layernorm_output_gathered, which Megatron-Bridge's peft/utils.py sets
    unless user buffers overlap the gather; `costmodel/precision.toml`.
    """
    reads_it_too = (1 - x.tp_overlap) * adapted(x, layer.adapter)
    return x.sp * is_more_than_one(x.tp) * maximum(reads_it_too, x.cast_anew)


def joint_scale_time(x: SimpleNamespace, layer: Linear, split: str) -> Amount:
    """Seconds in which tensor-parallel ranks exchange the maximum that scales such an operand; nothing hides it. [s]"""
    inside = communication.ranks_in_domain(x, x.tp, 1)
    return agrees_on_scale(x, layer, split) * all_reduce_time(x, MAXIMUM_BYTES, x.tp, inside)


def adapter_messages(ledger: Ledger, x: SimpleNamespace, block: BlockWork) -> dict[str, Amount]:
    """Tensor-parallel communication of a block's adapters, forward and backward: nothing hides it. [s]

    Beside a column-parallel layer A's r outputs are gathered, and their gradient is reduced; the input's gradient is
    reduced with the layer's own under sequence parallelism, else by itself. Where user buffers overlap the layer's
    gather, the adapter gathers its input anew. Beside a row-parallel layer A's partial sums are reduced and B's outputs
    gathered, joined in a copy; under sequence parallelism each rank takes its tokens of them, and the gradient is
    gathered again. Source: Megatron-Bridge 0.3.1 to 0.6.2, peft/utils.py, ParallelLinearAdapter.forward;
    Megatron-Core 0.16.1, tensor_parallel/mappings.py.
    """
    inside = communication.ranks_in_domain(x, x.tp, 1)
    several = is_more_than_one(x.tp)
    forward: Amount = 0
    backward: Amount = 0
    for layer in block.linears:
        if not layer.adapter or layer.grouped:
            continue
        on = several * adapted(x, layer.adapter)
        narrow = x.activation_bytes * layer.rows * x.lora_rank
        inputs, outputs = (x.activation_bytes * layer.rows * side for side in (layer.inner, layer.columns))
        backward += on * all_reduce_time(x, narrow, x.tp, inside)
        if layer.split == "column":
            again = on * x.sp * x.tp_overlap
            forward += on * all_gather_time(x, narrow, x.tp, inside)
            forward += again * all_gather_time(x, inputs, x.tp, inside)
            backward += again * reduce_scatter_time(x, inputs, x.tp, inside)
            backward += on * (1 - x.sp) * all_reduce_time(x, inputs, x.tp, inside)
        else:
            whole = on * all_gather_time(x, outputs, x.tp, inside)
            joined = on * stream(x, 2 * outputs, x.elementwise_fraction)
            forward += on * all_reduce_time(x, narrow, x.tp, inside) + whole + joined
            backward += x.sp * whole if layer.split == "row" else 0
    return {
        name: ledger.define(f"{block.name}_adapters_tp_{name}", seconds, "s", adapter_messages)
        for name, seconds in (("forward", forward), ("backward", backward))
    }


def context_parallel_times(
    ledger: Ledger,
    x: SimpleNamespace,
    block: str,
    core: dict[str, Amount],
    columns: communication.ContextColumns,
) -> dict[str, Amount]:
    """Exposed context-parallel communication of one block, for the four communication types.

    Ring (p2p): cp - 1 steps, each under the attention of one chunk. all_gather: exposed, gradients
    reduce-scattered. a2a: two exposed exchanges each way. a2a+p2p: all-to-all inside groups of
    cp_a2a_size, a ring between them; the output is exchanged once more backward.
    Source: Transformer Engine 2.8 to 2.12, context_parallel.py.
    """
    ring_size = communication.context_parallel_ring_bytes(x, columns.keys)
    inside = communication.ranks_in_domain(x, x.cp, x.tp, x.cp_straddle)
    ring = x.cp / x.cp_a2a_size
    ring_inside = communication.ranks_in_domain(x, ring, x.tp * x.cp_a2a_size)
    hop = ledger.define(
        f"{block}_cp_ring_step", send_recv_time(x, ring_size, ring, ring_inside), "s", send_recv_time
    )
    back_hop = ledger.define(
        f"{block}_cp_ring_step_backward",
        send_recv_time(x, 2 * ring_size, ring, ring_inside),
        "s",
        send_recv_time,
    )
    # All keys and values of the sequence: source arXiv:2407.21783, sec. 3.3.2.
    whole = ring_size * x.cp
    gather = ledger.define(
        f"{block}_cp_gather", all_gather_time(x, whole, x.cp, inside), "s", all_gather_time
    )
    scatter = ledger.define(
        f"{block}_cp_scatter", reduce_scatter_time(x, whole, x.cp, inside), "s", reduce_scatter_time
    )
    near = communication.ranks_in_domain(x, x.cp_a2a_size, x.tp)
    exchange, again = (
        ledger.define(
            f"{block}_cp_{name}",
            all_to_all_time(x, communication.context_parallel_a2a_bytes(x, width), x.cp_a2a_size, near),
            "s",
            all_to_all_time,
        )
        for name, width in (("exchange", columns.everything), ("output_exchange", columns.output))
    )
    rings = (1 - x.cp_all_gather) * (ring - 1)
    return {
        "forward": ledger.define(
            f"{block}_cp_exposed_forward",
            rings * overlap.exposed(hop, core["forward"] / ring) + x.cp_all_gather * gather + exchange,
            "s",
            overlap.exposed,
        ),
        "backward": ledger.define(
            f"{block}_cp_exposed_backward",
            rings * overlap.exposed(back_hop, core["backward"] / ring)
            + x.cp_all_gather * (gather + scatter)
            + exchange
            + (1 - x.cp_a2a) * again,
            "s",
            overlap.exposed,
        ),
    }


def ring_merges(
    ledger: Ledger, x: SimpleNamespace, label: str, columns: communication.ContextColumns
) -> dict[str, Amount]:
    """Time in which the steps of a context ring are merged with the sum so far, forward and backward. [s]"""
    steps = (1 - x.cp_all_gather) * (x.cp / x.cp_a2a_size - 1)
    return {
        kind: ledger.define(
            f"{label}_cp_merge_{kind}",
            steps * stream(x, size, x.elementwise_fraction),
            "s",
            communication.ring_merge_bytes,
        )
        for kind, size in communication.ring_merge_bytes(x, columns).items()
    }


def mixer_exchange_times(
    ledger: Ledger, x: SimpleNamespace, block: str, sizes: tuple[Amount, Amount]
) -> dict[str, Amount]:
    """Exposed all-to-alls of one mixer over context-parallel ranks: heads for sequence and back; gradients likewise.

    [s] sizes: bytes a rank holds at each. Source: Megatron-Core 0.16.1, mamba_context_parallel.py.
    """
    inside = communication.ranks_in_domain(x, x.cp, x.tp, x.cp_straddle)
    once = sum(all_to_all_time(x, size, x.cp, inside) for size in sizes)
    return {
        name: ledger.define(f"{block}_cp_exposed_{name}", once, "s", all_to_all_time)
        for name in ("forward", "backward")
    }
