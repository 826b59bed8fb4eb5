"""Data-parallel communication of a step as exposed time, and the optimizer.

Parameters outside the experts are shared by dp x cp ranks, experts by edp ranks. The distributed optimizer
reduces gradients and gathers parameters once a step; FSDP does so layer by layer for every micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.rates import stream
from costmodel.term import Ledger, Term
from costmodel.timing import overlap
from costmodel.timing.network import all_gather_time, all_reduce_time, reduce_scatter_time
from costmodel.work import communication

# SMs of a data-parallel collective: 16 by rings, 6 where switches reduce, 4 with registered buffers.
# Source: Megatron-Core, distributed_data_parallel_config.py (use_sharp, nccl_ub).
SHARP_SMS, USER_BUFFER_SMS, RING_SMS = 6, 4, 16


@dataclass(frozen=True)
class Owner:
    """Parameters that one group of ranks holds together, on the rank with most of them.

    whole: trained parameters on the rank; layer, trained: all and the trained ones of a mean layer [1].
    ranks: of the group; shard: over which
    optimizer state (with FSDP everything) is sharded; stride: GPUs between neighbours; straddle: see placement.
    """

    name: str
    whole: Amount
    layer: Amount
    trained: Amount
    ranks: Amount
    shard: Amount
    stride: Amount
    straddle: Amount


def slowdown(x: SimpleNamespace) -> Amount:
    """Compute time lost for each second of data-parallel communication under it. [1]

    In proportion to the SMs that the collective takes.
    """
    fewer = (1 - x.sharp) * (1 - x.user_buffers) + x.sharp * (1 - x.user_buffers) * SHARP_SMS / RING_SMS
    return x.overlap_slowdown * (fewer + x.user_buffers * USER_BUFFER_SMS / RING_SMS)


def overlap_allowed(x: SimpleNamespace) -> Amount:
    """Share of the compute under which data-parallel communication can run. [1]

    With one hardware queue and neither TP nor CP, kernels of both streams wait for each other (Megatron-LM
    issue 1468). Norm kernels that fill all SMs keep collectives waiting: with a margin below 16 SMs the
    overlap shrinks in proportion (NeMo performance guide, NVTE_*_LAYERNORM_SM_MARGIN).
    """
    alone = 1 - is_more_than_one(x.tp * x.cp)
    return (1 - x.one_queue * alone) * minimum(x.norm_margin / 16, 1)


def data_parallel_terms(
    ledger: Ledger,
    x: SimpleNamespace,
    owners: Collection[Owner],
    forward: Amount,
    backward: Amount,
    layers: Amount,
) -> list[Term]:
    """Exposed reduction of gradients and gather of parameters.

    forward, backward: compute of the pace-setting stage for one micro-batch [s]; layers: its layers.
    Distributed optimizer: once a step, gradients under the last micro-batch's backward pass and parameters
    under the first forward pass; with pipeline stages the flush and the fill hide the same amount. FSDP:
    parameters are gathered layer by layer for every micro-batch, forward and (when parameters are sharded)
    backward, gradients reduced each backward pass, each under one layer's compute.
    Source: arXiv:1910.02054; Megatron-Core, DistributedOptimizer; Megatron-FSDP.
    """
    allowed = overlap_allowed(x)
    slow = slowdown(x)
    sums: dict[str, Amount] = dict.fromkeys(
        ("scatter", "gather", "reduce", "unit_gather", "unit_scatter", "replica"), 0
    )
    for owner in owners:
        for kind, seconds in _collectives(ledger, x, owner).items():
            sums[kind] += seconds
    whole = sum(owner.whole for owner in owners)
    several = is_more_than_one(x.pp)
    # Buckets count on the first stage's first chunk alone; elsewhere a chunk is one bucket.
    in_bucket = minimum(x.bucket / whole, 1) * (1 - several)
    first_bucket = maximum(1 / maximum(layers, 1), in_bucket)
    buckets = minimum(x.bucket, 1) * (1 - several) * maximum(whole / maximum(x.bucket, 1) - 1, 0)
    messages = buckets * (x.reduce_scatter_latency + x.reduce_scatter_latency_per_rank * x.shard)
    under_backward = allowed * x.overlap_reduce * backward * (1 - first_bucket)
    under_forward = allowed * x.overlap_gather * forward * (1 - first_bucket)

    def hidden(seconds: Amount, compute: Amount) -> Amount:
        return overlap.exposed(seconds, compute) + overlap.contention(seconds, compute, slow)

    scatter = hidden(sums["scatter"] + messages, under_backward)
    gather = hidden(sums["gather"], under_forward)
    plain = hidden(sums["reduce"] + messages, under_backward)
    traffic = x.params_sharded * sums["unit_gather"] + sums["unit_scatter"]
    layer_forward = allowed * x.overlap_gather * forward / maximum(layers, 1)
    layer_backward = allowed * x.overlap_reduce * backward / maximum(layers, 1)
    per_layer = hidden(sums["unit_gather"] * x.params_sharded, layer_forward) + hidden(
        traffic, layer_backward
    )
    edges = (
        sums["unit_gather"]
        + sums["unit_scatter"]
        + (1 - x.params_sharded) * gather
        + overlap.exposed(sums["replica"], under_backward)
    )
    fsdp = x.m * layers * per_layer + edges
    reduced = x.optimizer_sharded * scatter + (1 - x.optimizer_sharded) * plain
    return [
        ledger.term(
            "dp_gradients", "gradient reduction, exposed", (1 - x.fsdp) * reduced, "s", data_parallel_terms
        ),
        ledger.term(
            "dp_gather",
            "parameter gather, exposed",
            (1 - x.fsdp) * x.optimizer_sharded * gather,
            "s",
            data_parallel_terms,
        ),
        ledger.term(
            "fsdp_exposed", "FSDP gathers and reductions, exposed", x.fsdp * fsdp, "s", data_parallel_terms
        ),
    ]


def _collectives(ledger: Ledger, x: SimpleNamespace, owner: Owner) -> dict[str, Amount]:
    """Seconds of the collectives over one owner's ranks, before any overlap.

    With several optimizer instances gradients are reduced over a shard's ranks, then all-reduced between
    instances, each of them holding 1 / shard; FSDP's replicas (HSDP) do the same.
    """
    p = owner.name
    whole = ledger.define(f"{p}_parameters", owner.whole, "1", "parameters on the rank with most of them")
    unit = ledger.define(f"{p}_layer_parameters", owner.layer, "1", "parameters of a mean layer")
    whole_inside = communication.ranks_in_domain(x, owner.ranks, owner.stride, owner.straddle)
    inside = communication.ranks_in_domain(x, owner.shard, owner.stride, owner.straddle)
    copies = owner.ranks / owner.shard
    copies_inside = communication.ranks_in_domain(x, copies, owner.stride * owner.shard)
    reduce_size = communication.gradient_bytes(x, whole)

    def written(kind: str, expr: Amount, formula: object) -> Amount:
        return ledger.define(f"{p}_{kind}", expr, "s", formula)  # type: ignore[arg-type]

    between = all_reduce_time(x, reduce_size / owner.shard, copies, copies_inside, x.sharp)
    return {
        "scatter": written(
            "reduce_scatter",
            reduce_scatter_time(x, reduce_size, owner.shard, inside, x.sharp) + between * (1 - x.fsdp),
            reduce_scatter_time,
        ),
        "gather": written(
            "all_gather",
            all_gather_time(x, communication.gather_bytes(x, whole), owner.shard, inside),
            all_gather_time,
        ),
        "reduce": written(
            "all_reduce",
            all_reduce_time(x, reduce_size, owner.ranks, whole_inside, x.sharp),
            all_reduce_time,
        ),
        "unit_gather": written(
            "fsdp_gather",
            all_gather_time(x, communication.gather_bytes(x, unit), owner.shard, inside),
            all_gather_time,
        ),
        "unit_scatter": written(
            "fsdp_scatter",
            reduce_scatter_time(
                x, communication.gradient_bytes(x, owner.trained), owner.shard, inside, x.sharp
            ),
            reduce_scatter_time,
        ),
        "replica": written("fsdp_replica_reduce", between, all_reduce_time),
    }


def optimizer_time(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Adam over one rank's shard: read gradient, master and moments, write back, write the parameter. [s]

    2 state_bytes + grad_bytes + weight_bytes an element, and the gradient once more for its norm and
    once to be zeroed (whole buffer). Source: TE FusedAdam, multi_tensor_adam.cu.
    """
    element = 2 * x.state_bytes + 2 * x.grad_bytes + x.weight_bytes
    on_device = element * sharded(x, owners) * (1 - x.optimizer_offload)
    zeroed = x.grad_bytes * sum(
        owner.whole * (1 - x.grads_sharded + x.grads_sharded / owner.shard) for owner in owners
    )
    return stream(x, on_device + zeroed, x.stream_fraction)


def sharded(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Parameters whose optimizer state one rank holds. [1]"""
    return sum(
        owner.whole * (1 - x.optimizer_sharded + x.optimizer_sharded / owner.shard) for owner in owners
    )


def offloaded_optimizer_time(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Time of the part of the optimizer on the host: gradients over, Adam at the host's memory, parameters back. [s]

    Adam reads and writes 16 bytes of state an element beside a 4-byte gradient. Copies hide behind the
    host's arithmetic when they overlap. Source: Megatron-Core, cpu_offloading/hybrid_optimizer.py.
    """
    elements = x.optimizer_offload * sharded(x, owners)
    copies = (4 + x.weight_bytes) * elements / x.host_link
    arithmetic = (2 * 12 + 4 + x.weight_bytes) * elements / x.host_memory
    together = maximum(copies, arithmetic)
    return x.offload_overlapped * together + (1 - x.offload_overlapped) * (copies + arithmetic)
