"""Fully sharded data parallelism: units gathered, computed with and reduced one after the other, as exposed time.

A unit is a layer, the embedding, or the output layer. Where PyTorch's FSDP wraps layers alone, embedding and output
layer are one unit, the root's (`root_unit` of costmodel/stacks.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.gradient_scaling import scaled_each_pass, scaling_time
from costmodel.rates import tuned_stream
from costmodel.term import Ledger
from costmodel.timing import overlap
from costmodel.work import communication

# Time that FSDP2's copies of gradients into the buffer that is reduced take for their bytes, over the copies of
# parameters out of one: 1.7 to 2.2 against 3.4 to 3.8 TB/s for layers of 8B and 70B, 8 to 512 ranks alike.
# Source: torch._chunk_cat (BF16 to FP32) and split_with_sizes_copy of PyTorch 2.11, this project, H200, 2026-11-27.
CHUNK_CAT = 1.7


@dataclass(frozen=True)
class Owner:
    """Parameters that one group of ranks holds together, on the rank with most of them.

    whole: trained parameters on the rank; layer, trained: all and the trained ones of a mean layer; first: those of
    the unit with which a pass begins and ends; output: those of an output layer that is a unit by itself; later: of all
    later pipeline stages together; grouped: of a layer's two modules of many weights each, 0 without such [1].
    ranks: of the group; shard: over which optimizer state (with FSDP everything) is sharded; stride: GPUs between
    neighbours; straddle: see placement.
    """

    name: str
    whole: Amount
    layer: Amount
    trained: Amount
    ranks: Amount
    shard: Amount
    stride: Amount
    straddle: Amount
    first: Amount = 0
    output: Amount = 0
    later: Amount = 0
    grouped: Amount = 0


@dataclass(frozen=True)
class Traffic:
    """One collective of an owner: its seconds before any overlap [s], and the compute lost under a second of it [1]."""

    seconds: Amount
    slowdown: Amount


Collectives = Mapping[str, Traffic]


def shown(traffic: Collection[Traffic], compute: Amount, alone: Amount = 0) -> Amount:
    """What collectives, one after the other beside `compute`, add to it: the rest of them and lost compute. [s]

    alone: share of them beside which nothing is computed [1].
    """
    lost: Amount = 0
    left = compute
    for each in traffic:
        lost += overlap.contention((1 - alone) * each.seconds, left, each.slowdown)
        left = maximum(0, left - each.seconds)
    whole = sum(each.seconds for each in traffic)
    return maximum(overlap.exposed(whole, compute), alone * whole) + lost


def unit_traffic(
    ledger: Ledger,
    x: SimpleNamespace,
    owner: Owner,
    gathered: Callable[[Amount], Amount],
    scattered: Callable[[Amount], Amount],
    slowdowns: tuple[Amount, Amount],
) -> dict[str, Traffic]:
    """Gather and reduction of each of an owner's units, before any overlap; each pays its latency.

    gathered, scattered: seconds of so many bytes; slowdowns: of both. Names: unit, first and output, each with _gather
    and _scatter.
    """
    found: dict[str, Traffic] = {}
    units = {
        "unit": ("fsdp", owner.layer, owner.trained),
        "first": ("fsdp_first", owner.first, x.trained * owner.first),
        "output": ("fsdp_output", owner.output, x.trained * owner.output),
    }
    for unit, (name, held, trained) in units.items():
        if held == 0:  # experts are of layers alone
            found |= {f"{unit}_{way}": Traffic(0, 0) for way in ("gather", "scatter")}
            continue
        # Only layers are gathered in 8 bits.
        moved = communication.gather_bytes(x, held) if unit == "unit" else x.weight_bytes * held
        gather = gathered(moved)
        scatter = scattered(communication.gradient_bytes(x, trained))
        for way, expr, slow in (("gather", gather, slowdowns[0]), ("scatter", scatter, slowdowns[1])):
            found[f"{unit}_{way}"] = Traffic(
                ledger.define(f"{owner.name}_{name}_{way}", expr, "s", unit_traffic), slow
            )
    return found


def held_until_the_last(x: SimpleNamespace, experts: Amount) -> tuple[Amount, Amount]:
    """1 where parameters stay gathered from the first micro-batch to the last, and where gradients wait for it. [1]

    PyTorch's FSDP2 does both under a pipeline, in each of its flushes (`rounds`). Without one NeMo AutoModel
    (`defers_gradients`) keeps gradients, and parameters of models with experts (1). Sources:
    torch/distributed/pipelining/stage.py, backward_maybe_with_nosync and perform_reduce_grad; torchtitan 0.1.0,
    parallelize.py, apply_fsdp; nemo-automodel 0.7.0, defer_fsdp_grad_sync of distributed/config.py,
    reshard_after_forward of moe/parallelizer.py.
    """
    stages = is_more_than_one(x.pp)
    alone = x.defers_gradients * is_more_than_one(x.m)
    return x.fsdp2 * maximum(stages, alone * experts), x.fsdp2 * maximum(stages, alone)


def rounds(x: SimpleNamespace, experts: Amount) -> Amount:
    """Times in a step that held parameters are gathered, and gradients that wait are reduced. [1]

    Once in each flush of a pipeline; NeMo AutoModel's models with experts (1) once a step. Sources as of
    `held_until_the_last`; nemo-automodel 0.2.0 and 0.7.0, moe/fsdp_mixin.py, patched_backward_maybe_with_nosync.
    """
    return 1 + is_more_than_one(x.pp) * (x.flushes - 1) * (1 - x.defers_gradients * experts)


def fully_sharded_time(
    ledger: Ledger,
    x: SimpleNamespace,
    owners: Collection[Owner],
    found: Sequence[Collectives],
    once: Amount,
    whole_pass: tuple[Amount, Amount],
    layer_pass: tuple[Amount, Amount],
    layers: Amount,
) -> Amount:
    """What FSDP adds to a step. [s]

    found: collectives of each owner; once: a gather of all parameters, for what is not sharded; whole_pass, layer_pass:
    compute to hide under, forward and backward, of a micro-batch and of one of its `layers` [s].
    A layer's parameters are gathered for each micro-batch, in both passes when parameters are sharded, its gradients
    reduced in each backward pass, under the compute of the layer before it. Compute waits in every micro-batch for the
    first unit and the first layer, gathered one after the other, and for their gradients at its end. The last layer
    hides an output layer of its own, if there is one: its gather, and its gradients beside the next layer's gather.
    Sources: torch/distributed/fsdp/_fully_shard, _root_pre_forward and _root_post_backward_final_callback;
    Megatron-Core 0.16.1, megatron_fsdp.py, _root_post_backward, which waits in GradReducePipeline.reset, and
    AllGatherPipeline, whose stream waits for the computation.
    """
    stages = is_more_than_one(x.pp)
    experts = 1 if len(owners) > 1 else 0
    held, times = held_until_the_last(x, experts), rounds(x, experts)
    kept, deferred = (
        ledger.define(f"fsdp_{name}", expr, "1", held_until_the_last)
        for name, expr in zip(("kept", "deferred"), held, strict=True)
    )
    gathers, scatters = x.m + kept * (times - x.m), x.m + deferred * (times - x.m)
    beside = 1 - deferred * stages  # a pipeline's gradients are reduced when it has ended

    def of(kind: str, share: Amount = 1) -> list[Traffic]:
        return [replace(each[kind], seconds=share * each[kind].seconds) for each in found]

    def seconds(kind: str) -> Amount:
        return sum(each[kind].seconds for each in found)

    forward, backward = layer_pass
    # Columns of a layer are gathered beside the rows that its recomputed forward pass reads.
    twice = 1 + x.fsdp_columns * x.recompute_layers
    again = of("unit_gather", x.params_sharded * (1 - kept) * twice)
    ahead, behind = of("unit_gather", x.params_sharded), again + of("unit_scatter", beside)
    unreduced = (x.m - scatters) * shown(again, backward)
    between = gathers * shown(ahead, forward) + scatters * shown(behind, backward) + unreduced
    # Megatron's FSDP releases layers alone: it gathers embedding and output layer once a step.
    tables = gathers + x.megatron_core * (1 - gathers)
    first = x.params_sharded * (gathers * seconds("unit_gather") + tables * seconds("first_gather"))
    output = tables * shown(of("output_gather", x.params_sharded), forward)
    output += scatters * shown(again + of("output_scatter", beside), backward) + unreduced
    last = scatters * (beside * seconds("unit_scatter") + seconds("first_scatter"))
    waited = (1 - beside) * times * (layers * seconds("unit_scatter") + seconds("output_scatter"))
    # PyTorch's second FSDP reduces between replicas in every backward pass that reduces inside a group.
    replicas = (1 + x.fsdp2 * (scatters - 1)) * shown(of("replica"), whole_pass[1])
    replicas += shown(of("replica_gather"), whole_pass[0])
    copies = sum(flat_copies(x, owner, layers, (kept, deferred), times) for owner in owners)
    gradients_each = sum(gradients(x, owner, layers) for owner in owners)
    scaling = scaled_each_pass(x) * scaling_time(x, x.m * gradients_each)
    copies += ledger.define("fsdp_scaling", scaling, "s", scaled_each_pass)
    sharded = maximum(0, layers - 1) * between + first + output + last + waited
    return sharded + (1 - x.params_sharded) * once + replicas + copies


def gradients(x: SimpleNamespace, owner: Owner, layers: Amount) -> Amount:
    """Gradients of an owner's units in one backward pass, before they are reduced. [1]"""
    return layers * owner.trained + x.trained * (owner.first + owner.output)


def flat_copies(
    x: SimpleNamespace, owner: Owner, layers: Amount, held: tuple[Amount, Amount], times: Amount
) -> Amount:
    """Copies of PyTorch's FSDP in a step, on the compute stream. [s]

    held, times: see `held_until_the_last` and `rounds`. FSDP2 copies what was gathered out of the flat buffer, a
    layer's for the backward pass too when parameters are sharded, and gradients into the buffer that is reduced, in
    its format. Gradients that wait for the last micro-batch are added up in that format, and copied from it. FSDP1
    computes on views of its flat parameter, whose gradient is put together from theirs. Megatron's FSDP computes on
    its communication buffers. Source: torch/distributed/fsdp, foreach_all_gather_copy_out,
    foreach_reduce_scatter_copy_in, accumulate_unsharded_grad_if_needed (FSDP2), _get_unflat_views (FSDP1); NeMo
    performance guide ("minimizing the data movement to the communication tensors").
    """
    kept, deferred = held
    ends = owner.first + owner.output
    trained = gradients(x, owner, layers)
    forward = x.m + kept * (times - x.m)
    both = forward + x.params_sharded * (1 - kept) * x.m
    out = 2 * (x.gather_bytes * both * layers * owner.layer + x.weight_bytes * forward * ends)
    into = x.m * (x.weight_bytes + x.grad_bytes * (1 + deferred)) + deferred * times * x.grad_bytes
    second = maximum(x.fsdp_copies, x.fsdp2)
    copied = (1 - deferred) * x.m * (x.weight_bytes + x.grad_bytes) + deferred * times * 2 * x.grad_bytes
    into += (CHUNK_CAT - 1) * copied
    moved = second * (out + into * trained) + x.fsdp1 * x.m * 2 * x.weight_bytes * trained
    return is_more_than_one(owner.shard) * tuned_stream(x, moved, x.stream_fraction)
