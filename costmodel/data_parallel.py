"""Data-parallel communication of a step as exposed time.

Parameters outside the experts are shared by dp x cp ranks, experts by edp ranks. The distributed optimizer
reduces gradients and gathers parameters once a step; FSDP does so layer by layer: `costmodel.fully_sharded`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace

from costmodel.amount import Amount, is_above_one, is_more_than_one, maximum, minimum
from costmodel.fully_sharded import Owner, Traffic, fully_sharded_time, shown, unit_traffic
from costmodel.term import Ledger, Term
from costmodel.timing.network import (
    all_gather_time,
    all_reduce_time,
    inter_scale,
    one_card_time,
    reduce_scatter_time,
    ring_cards,
)
from costmodel.work import communication

# SMs that NCCL takes for a collective without registered buffers, where switches reduce, and with registered
# buffers for (all-gather, reduce-scatter): inside NVLink alone, and over InfiniBand alone.
# Source: Megatron-Core, distributed_data_parallel_config.py, table of nccl_ub.
RING_SMS, SHARP_SMS = 16, 6
NVLINK_SMS, NETWORK_SMS, NETWORK_SHARP_SMS = (4, 5), (1, 4), 1
# Elements of a bucket by NVIDIA's recipes, where several data-parallel ranks reduce. Source: see `bucket_elements`.
LARGE_BUCKET = 128 * 1024**2


def written(ledger: Ledger, owner: Owner) -> Owner:
    """The owner with its parameters as entries of the ledger."""
    p = owner.name

    def ends(name: str, expr: Amount, title: str) -> Amount:
        return ledger.define(f"{p}_{name}_parameters", expr, "1", title) if expr != 0 else 0

    return replace(
        owner,
        whole=ledger.define(f"{p}_parameters", owner.whole, "1", "parameters on the rank with most of them"),
        layer=ledger.define(f"{p}_layer_parameters", owner.layer, "1", "parameters of a mean layer"),
        trained=ledger.define(
            f"{p}_layer_trained_parameters", owner.trained, "1", "trained parameters of a mean layer"
        ),
        first=ends("first", owner.first, "parameters of the unit with which FSDP begins and ends a pass"),
        output=ends("output", owner.output, "parameters of an output layer that is a unit of FSDP by itself"),
    )


def in_switches(x: SimpleNamespace) -> Amount:
    """1 where the network's switches reduce: with SHARP, on a network that has it. [1]"""
    return x.sharp * x.network_reduces


def slowdown(x: SimpleNamespace, ranks: Amount, inside: Amount, *, gathers: bool) -> Amount:
    """Compute time lost for each second of data-parallel communication under it. [1]

    In proportion to the SMs that the collective takes (`ring_sms`), over a ring's 16 inside NVLink. Registered buffers
    need few where the group stays inside NVLink, whose switches then reduce (NCCL_NVLS_ENABLE=1), or has no NVLink
    (inside = 1 of its ranks share a domain); over both it takes as many as without, 6 where the network's switches
    reduce. Source: Megatron-Core, DistributedDataParallelConfig.nccl_ub.
    """
    leaves = is_above_one(ranks / inside)
    several = is_more_than_one(inside)
    sharp = in_switches(x)
    rings = ring_sms(x, inside, leaves)
    both = rings + (minimum(SHARP_SMS, rings) - rings) * sharp * leaves
    network = NETWORK_SMS[not gathers] * (1 - sharp) + NETWORK_SHARP_SMS * sharp
    nvls = x.nvls * x.switch_reduces
    switched = nvls * NVLINK_SMS[not gathers] + (1 - nvls) * RING_SMS
    registered = (1 - leaves) * switched + leaves * (several * both + (1 - several) * network)
    sms = (1 - x.user_buffers) * both + x.user_buffers * registered
    return x.overlap_slowdown * sms / RING_SMS


def ring_sms(x: SimpleNamespace, inside: Amount, leaves: Amount) -> Amount:
    """SMs of a ring without registered buffers: 16 inside NVLink, fewer where network cards feed it less. [1]

    NCCL gives a ring channels, of a block each, while its links have bandwidth left: over one card of eight it needs
    few, of which we take no fewer than a registered reduction has. leaves: 1 where it leaves the domain [1].
    Source: NCCL, src/graph/search.cc and tuning.cc (from memory).
    """
    cards = ring_cards(x, inside)
    fed = cards * x.network_bandwidth * inter_scale(x, cards) / (x.all_gather_bandwidth * x.intra_scale)
    return (1 - leaves) * RING_SMS + leaves * maximum(RING_SMS * minimum(1, fed), NETWORK_SMS[1])


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
    *,
    muon: Amount = 0,
) -> list[Term]:
    """Exposed reduction of gradients and gather of parameters.

    forward, backward: compute of the pace-setting stage for one micro-batch [s]; layers: its layers. muon: 1
    where ranks share the state by whole matrices, whose gradients are all-reduced [1].
    Distributed optimizer: once a step, gradients under the last micro-batch's backward pass and parameters
    under the first forward pass, on a pipeline's first stage, which ends last; the last bucket of gradients and the
    first of parameters move alone. An interleaved schedule passes vpp_group micro-batches (pp as a rule) through a
    chunk before the next, and all stages reduce a chunk at once (align_grad_reduce), when it is done, and gather one
    at once (align_param_gather), the first layer last: the chunk that ends last reduces alone and the one that begins
    waits for its parameters, and every other chunk hides under the passes of those after it. Sources: arXiv:1910.02054;
    Megatron-Core 0.16.1 to 0.19.2, DistributedOptimizer, distributed_data_parallel.py (start_param_sync) and
    schedules.py, grad_sync_func and param_sync_func; Megatron-Bridge performance tuning guide ("DP communications
    overlap with multiple micro-batches").
    """
    allowed = overlap_allowed(x)
    found = [_collectives(ledger, x, owner) for owner in owners]
    whole = sum(owner.whole for owner in owners)
    # Buckets count on the first stage's first chunk alone; elsewhere a chunk is one bucket. A stage without layers
    # trains nothing where only adapters are trained.
    in_bucket = minimum(bucket_elements(x) / maximum(whole, 1), 1) * (1 - is_more_than_one(x.pp))
    in_chunk = is_more_than_one(x.vpp) * (1 - x.fsdp) / x.vpp
    alone = ledger.define(
        "dp_alone",
        maximum(maximum(1 / maximum(layers, 1), in_bucket), in_chunk),
        "1",
        "share of data-parallel communication beside which nothing is computed: a layer, a bucket or a chunk",
    )
    passes = 1 + is_more_than_one(x.vpp) * (minimum(x.vpp_group, x.m / x.flushes) - 1)
    beside = passes - (passes - 1) / x.vpp - alone

    def hiding(name: str, expr: Amount) -> Amount:
        return ledger.define(name, expr, "s", "compute under which data-parallel communication runs")

    under_backward = hiding("dp_under_backward", allowed * x.overlap_reduce * backward * beside)
    under_forward = hiding("dp_under_forward", allowed * x.overlap_gather * forward * beside)

    def of(kind: str, share: Amount = 1) -> list[Traffic]:
        return [replace(each[kind], seconds=share * each[kind].seconds) for each in found]

    scatter = shown(of("scatter"), under_backward, alone)
    demanded = x.gathers_on_demand * x.overlap_gather * (1 - is_more_than_one(x.vpp))
    # Without overlap the optimizer of each owner gathers all parameters when it is done: see work/messages.py.
    gathers = 1 + (len(owners) - 1) * (1 - x.overlap_gather * x.overlap_reduce)
    ahead = [
        replace(
            each["gather"], seconds=gathers * each["gather"].seconds * (1 - demanded * unprefetched(x, owner))
        )
        for owner, each in zip(owners, found, strict=True)
    ]
    waited = demanded * sum(
        unprefetched(x, owner) * each["gather"].seconds for owner, each in zip(owners, found, strict=True)
    )
    gather = ledger.define("dp_gather_shown", shown(ahead, under_forward, alone) + waited, "s", shown)
    arrivals = ledger.define(
        "dp_gather_arrivals",
        demanded * sum(arrival_gathers(x, owner) for owner in owners),
        "s",
        arrival_gathers,
    )
    plain = shown(of("reduce"), under_backward, alone)
    per_layer = (
        hiding("dp_under_layer_forward", allowed * x.overlap_gather * forward / maximum(layers, 1)),
        hiding("dp_under_layer_backward", allowed * x.overlap_reduce * backward / maximum(layers, 1)),
    )
    fsdp = fully_sharded_time(
        ledger, x, owners, found, gather, (under_forward, under_backward), per_layer, layers
    )
    scattered = x.optimizer_sharded * (1 - muon)
    reduced = scattered * scatter + (1 - scattered) * plain
    return [
        ledger.term(
            "dp_gradients", "gradient reduction, exposed", (1 - x.fsdp) * reduced, "s", data_parallel_terms
        ),
        ledger.term(
            "dp_gather",
            "parameter gather, exposed",
            (1 - x.fsdp) * x.optimizer_sharded * (gather + arrivals),
            "s",
            data_parallel_terms,
        ),
        ledger.term(
            "fsdp_exposed", "FSDP gathers and reductions, exposed", x.fsdp * fsdp, "s", fully_sharded_time
        ),
    ]


def unprefetched(x: SimpleNamespace, owner: Owner) -> Amount:
    """Share of a gather for which a module's forward pass waits idle, where it asks for its parameters. [1]

    A module waits for each bucket that its weights are in, and only then sends for the next: beside compute goes one
    bucket for each of a layer's modules. A module of one weight is in one bucket; the two of grouped experts hold
    many. Source: as `gathers_on_demand` in costmodel/stacks.toml.
    """
    if owner.grouped == 0:
        return 0
    return x.grouped * maximum(0, 1 - 2 * bucket_elements(x) / maximum(owner.grouped, 1))


def arrival_gathers(x: SimpleNamespace, owner: Owner) -> Amount:
    """Gathers of the later pipeline stages, each of which begins when its first micro-batch arrives. [s]

    A later stage's parameters are one bucket, for which its first module asks: the pipeline fills slower by all of them
    together. An interleaved schedule sends for them at the step's begin (align_param_gather). Source: Megatron-Core
    0.16.1, distributed_data_parallel.py (pp_rank > 0), p2p_communication.py (batch_p2p_sync) and schedules.py
    (param_sync_func); Megatron-Bridge 0.6.2, comm_overlap.py.
    """
    if owner.later == 0:
        return 0
    stages = maximum(x.pp - 1, 1)
    inside = communication.ranks_in_domain(x, owner.shard, owner.stride, owner.straddle)
    size = communication.gather_bytes(x, owner.later) / stages
    return is_more_than_one(x.pp) * stages * all_gather_time(x, size, owner.shard, inside)


def bucket_elements(x: SimpleNamespace) -> Amount:
    """Gradients of one bucket: as the plan says, else as the recipes of the stack, else as Megatron-Core. [1]

    Source: Megatron-Bridge 0.6.2, comm_overlap.py, _get_optimized_overlap_cfgs; Megatron-Core 0.16.1,
    distributed_data_parallel.py.
    """
    large = (1 - x.bucket_said) * x.large_buckets * is_more_than_one(x.dp)
    return x.bucket + large * (LARGE_BUCKET - x.bucket)


def buckets_of(x: SimpleNamespace, elements: Amount) -> Amount:
    """Collectives into which gradients or parameters of so many elements are cut. [1]

    One for each bucket while reductions overlap, on the only pipeline stage; else one for all. FSDP has units
    rather than buckets. Source: Megatron-Core, distributed_data_parallel.py and param_and_grad_buffer.py.
    """
    cut = x.overlap_reduce * (1 - is_more_than_one(x.pp)) * (1 - x.fsdp)
    return 1 + cut * (maximum(elements / bucket_elements(x), 1) - 1)


def two_stages(inside: Amount, between: Amount) -> Amount:
    """Reduction of gradients inside an optimizer instance and, after it, between instances. [s]

    Their sum, although they use different links: both run on one communication stream, on which the next bucket's
    reduce-scatter waits for this one's all-reduce. Source: Megatron-Core 0.16.1 and 0.19.2, param_and_grad_buffer.py,
    start_grad_sync (async_op only with one instance), and distributed_data_parallel.py (one communication_stream).
    """
    return inside + between


def between_replicas(x: SimpleNamespace, reduced: Amount, scattered: Amount) -> Amount:
    """Gradients between the replicas of an FSDP shard group: all-reduced, scattered where they share the state. [s]

    Source: Megatron-Core 0.19.2, megatron_fsdp, param_and_grad_buffer.py.
    """
    return reduced + x.outer_sharded * (scattered - reduced)


def _collectives(ledger: Ledger, x: SimpleNamespace, owner: Owner) -> dict[str, Traffic]:
    """Collectives over one owner's ranks, before any overlap; each bucket and each unit of FSDP pays its latency.

    With several optimizer instances gradients are reduced over a shard's ranks, then all-reduced between
    instances, each of them holding 1 / shard; FSDP's replicas (HSDP) do the same, and where they share the optimizer
    state reduce-scatter and, after its step, gather parameters. Source: NCCL, tuning.cc; Megatron-Core 0.19.2,
    megatron_fsdp, param_and_grad_buffer.py.
    """
    p = owner.name
    whole = owner.whole
    buckets = ledger.define(f"buckets_{p}", buckets_of(x, whole), "1", buckets_of)
    whole_inside = communication.ranks_in_domain(x, owner.ranks, owner.stride, owner.straddle)
    inside = communication.ranks_in_domain(x, owner.shard, owner.stride, owner.straddle)
    copies = owner.ranks / owner.shard
    copies_inside = communication.ranks_in_domain(x, copies, owner.stride * owner.shard)
    reduced = communication.gradient_bytes(x, whole) / buckets
    tables = minimum(whole, x.trained * (owner.first + owner.output))  # gathered in 16 bits, as they are kept
    bucket = (communication.gather_bytes(x, whole - tables) + x.weight_bytes * tables) / buckets
    between = all_reduce_time(x, reduced / owner.shard, copies, copies_inside, in_switches(x)) * buckets
    apart = reduce_scatter_time(x, reduced / owner.shard, copies, copies_inside) * buckets

    def scattered(size: Amount) -> Amount:
        return reduce_scatter_time(x, size, owner.shard, inside)

    def gathered(size: Amount) -> Amount:
        return all_gather_time(x, size, owner.shard, inside)

    def on_ranks(ring: Callable[[Amount], Amount]) -> Callable[[Amount], Amount]:
        """Of a unit of FSDP; `early_zero3`: see costmodel/stacks.toml. [s]"""

        def unit(size: Amount) -> Amount:
            wire = size * (owner.shard - 1) / owner.shard
            return maximum(ring(size), x.early_zero3 * one_card_time(x, wire, owner.shard, inside))

        return unit

    def slow(kind: str, ranks: Amount, near: Amount, *, gathers: bool) -> Amount:
        return ledger.define(f"slowdown_{p}_{kind}", slowdown(x, ranks, near, gathers=gathers), "1", slowdown)

    reduces = slow("reduce", owner.ranks, whole_inside, gathers=False)
    gathers = slow("gather", owner.shard, inside, gathers=True)
    scatters = slow("scatter", owner.shard, inside, gathers=False)

    def traffic(kind: str, expr: Amount, formula: object, slow: Amount) -> Traffic:
        return Traffic(ledger.define(f"{p}_{kind}", expr, "s", formula), slow)  # type: ignore[arg-type]

    return {
        "scatter": traffic(
            "reduce_scatter",
            two_stages(scattered(reduced) * buckets, between * (1 - x.fsdp)),
            two_stages,
            reduces,
        ),
        "gather": traffic("all_gather", gathered(bucket) * buckets, all_gather_time, gathers),
        "reduce": traffic(
            "all_reduce",
            all_reduce_time(x, reduced, owner.ranks, whole_inside, in_switches(x)) * buckets,
            all_reduce_time,
            reduces,
        ),
        **unit_traffic(ledger, x, owner, on_ranks(gathered), on_ranks(scattered), (gathers, scatters)),
        "replica": traffic(
            "fsdp_replica_reduce",
            between_replicas(x, between, apart),
            between_replicas,
            reduces,
        ),
        "replica_gather": traffic(
            "fsdp_replica_gather",
            x.outer_sharded * all_gather_time(x, bucket / owner.shard, copies, copies_inside) * buckets,
            all_gather_time,
            gathers,
        ),
    }
