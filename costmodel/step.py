"""One training step as a tree of terms that sum to the step time, for any family of models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace

from costmodel.agreements import checks_term, gradient_scaling_term, maxima_term
from costmodel.amount import Amount, is_more_than_one, logarithm2, maximum, minimum
from costmodel.data_parallel import data_parallel_terms, written
from costmodel.dispatch import Beside, dispatch_times, overlapped_dispatch
from costmodel.encoder import encoder_blocks, encoder_flops, encoder_time, encoder_weights
from costmodel.fully_sharded import Owner
from costmodel.host_waits import block_gaps, host_term
from costmodel.layer import Blocks, BlockTimes, block_times, block_tokens
from costmodel.memory import rank_memory
from costmodel.model_work import model_flops
from costmodel.offload import offload_exposed, offloaded_bytes
from costmodel.optimizer import optimizer_terms
from costmodel.stage_parameters import adapters_of, after_first, parameters_of
from costmodel.stages import (
    deferred_term,
    hidden_messages,
    pipeline_terms,
    shared_embedding_term,
    spared_by_heads,
    stage_times,
    unlike_layers,
    with_encoder,
)
from costmodel.symbols import BLOCKS, in_stage, symbol, symbol_table
from costmodel.term import Ledger, Term
from costmodel.timing import host
from costmodel.work import communication
from costmodel.work.parameters import embedding_parameters, expert_parameters, output_parameters
from costmodel.work.recompute import repeated

# Step time lost when each rank collects garbage by itself, for each doubling of the GPUs: 1.5 % on 512.
# Source: torchtitan pull request 148. Ranks not bound to cores: 5 to 10 % on 64 GPUs (Megatron-Bridge 6055), as jitter
# of the slowest rank, which grows as that does.
OWN_GC, UNBOUND = 0.0017, 0.07 / 6
# 2 ln 2: sqrt(2 ln n) is the largest of n normal numbers in standard deviations, with n counted in doublings.
# Source: S. Boucheron et al., Concentration Inequalities, 2013, sec. 2.5.
TWO_LN_2 = 1.3863

# Kinds of work of a block, in the order in which they are told: title, and the formula behind it.
KINDS = {
    "linear": ("linear layers", "costmodel.timing.kernels.gemm_time"),
    "linear_dgrad": ("linear layers, data gradient", "costmodel.timing.kernels.gemm_time"),
    "linear_wgrad": ("linear layers, weight gradient", "costmodel.timing.kernels.gemm_time"),
    "experts": ("expert GEMMs", "costmodel.timing.kernels.gemm_time"),
    "quantise": ("quantisation", "costmodel.work.quantisation.quantise_input_elements"),
    "attention": ("attention core", "costmodel.timing.kernels.attention_time"),
    "scan": ("recurrent scan", "costmodel.layer.scan_times"),
    "elementwise": ("element-wise", "costmodel.timing.kernels.stream_time"),
    "adapters": ("adapters", "costmodel.layer.adapter_times"),
    "tensor_parallel": ("tensor-parallel communication, exposed", "costmodel.exposed.tensor_parallel_times"),
    "context_parallel": (
        "context-parallel communication, exposed",
        "costmodel.exposed.context_parallel_times",
    ),
    "dispatch": ("expert dispatch and combine, exposed", "costmodel.dispatch.overlapped_dispatch"),
    "wait": (
        "waiting for token counts of experts",
        "one round trip between device and host in each expert block",
    ),
}


def build_step(features: Collection[str]) -> tuple[Ledger, dict[str, Term]]:
    """Ledger of one step of a family, with trees `step_time`, `memory_first`, `memory_second`, `memory_fullest`,
    `memory_last`.

    features: the family's blocks and what else its formulas need; see `costmodel.family.family_features`.
    """
    x = symbol_table()
    ledger = Ledger()
    block_tokens(ledger, x)
    blocks = {name: block_times(ledger, x, name, features) for name in BLOCKS if name in features}
    if "experts" in blocks:
        blocks = with_dispatch(ledger, x, blocks)
    totals = {name: write_totals(ledger, x, times) for name, times in blocks.items()}
    encoder = encoder_blocks(ledger, x) if "encoder" in features else {}
    stages = stage_times(ledger, x, totals, features)
    if encoder:
        stages = with_encoder(ledger, x, stages, encoder_time(ledger, x, encoder))
    spared = x.mtp_pace * spared_by_heads(x, totals) if "mtp" in features else 0
    ends = ("encoder, " if encoder else "") + "embedding, logits and loss on the slowest stage"
    trees = compute_trees(ledger, x, blocks, stages, spared, ends)
    trees.append(host_term(ledger, x, blocks, totals, stages))
    trees += pipeline_terms(ledger, x, stages)
    # The first and the last stage exchange with one neighbour, those between them with two.
    shown = x.vpp * symbol("pp_send_recv") * (1 - hidden_messages(x))
    slack = maximum(0, stages["slowest"] - stages["inner"] - shown * maximum(0, minimum(x.pp - 2, 1)))
    source = "what the slowest stage has beyond the others for each micro-batch: they can be late by as much"
    ledger.define("stage_slack", slack, "s", source)
    forward, backward = (
        sum(in_stage(x, name, "pace") * parts[kind] for name, parts in totals.items())
        for kind in ("forward", "backward")
    )
    backward -= spared
    trees.append(deferred_term(ledger, x, backward / (forward + backward), features))
    # Traffic hides under a wait for the host as it does under compute.
    source = "compute of the pace-setting stage for one micro-batch, with its wait for the host"
    forward = ledger.define("pace_forward", forward + symbol("host_wait_forward"), "s", source)
    backward = ledger.define("pace_backward", backward + symbol("host_wait_backward"), "s", source)
    owners = [written(ledger, owner) for owner in parameter_owners(x, blocks, features, encoder)]
    muon = x.muon if "muon" in features else 0
    trees += data_parallel_terms(ledger, x, owners, forward, backward, x.layers_pace, muon=muon)
    trees.append(shared_embedding_term(ledger, x))
    trees.append(gradient_scaling_term(ledger, x, owners))
    trees += [checks_term(ledger, x, owners), maxima_term(ledger, x)]
    trees += optimizer_terms(ledger, x, owners, blocks, features)
    if "offload" in features:
        moved = sum(
            in_stage(x, name, "pace") * offloaded_bytes(x, times, features) for name, times in blocks.items()
        )
        waiting = x.m * offload_exposed(x, moved, parameters_of(x, blocks, "pace"), forward, backward)
        trees.append(
            ledger.term("offload", "activations to and from the host, exposed", waiting, "s", offload_exposed)
        )
    step = with_stragglers(ledger, x, trees, blocks)
    flops = model_flops(x, list(blocks), features)
    if encoder:
        flops += x.b * x.m * x.dp * encoder_flops(x)
    ledger.define("model_flops", flops, "FLOP", model_flops)
    ledger.define("world", communication.world(x), "1", communication.world)
    memory = rank_memory(ledger, x, blocks, features, encoder)
    return ledger, {"step_time": step, **memory}


def with_dispatch(ledger: Ledger, x: SimpleNamespace, blocks: Blocks) -> dict[str, BlockTimes]:
    """The expert block with its dispatch as exposed time, half of it in each pass.

    Under overlap it hides behind what the experts compute, and behind the layers around, of which each expert block has
    its share.
    """
    travel = dispatch_times(ledger, x)
    own = blocks["experts"]
    inner, around = _beside_dispatch(ledger, x, blocks)
    both = ledger.define(
        "dispatch_exposed",
        overlapped_dispatch(x, travel, inner, around, own.shared),
        "s",
        overlapped_dispatch,
    )
    again = repeated(x, x.recompute_moe)
    changed = replace(
        own,
        forward=own.forward | {"dispatch": both / 2, "wait": own.wait},
        backward=own.backward | {"dispatch": both / 2},
        again=own.again + again * (travel + own.wait),
    )
    return dict(blocks) | {"experts": changed}


def _beside_dispatch(ledger: Ledger, x: SimpleNamespace, blocks: Blocks) -> tuple[Beside, Beside]:
    """Compute of the routed experts, and of all layers around for each expert block, as symbols."""
    own = blocks["experts"].inner
    assert own is not None

    def each(seconds: Mapping[str, Amount]) -> Amount:
        layers = sum(getattr(x, f"{name}_total") * seconds[name] for name in blocks)
        return layers / maximum(x.experts_total, 1)

    def written(name: str, beside: Beside, source: str) -> Beside:
        parts = {"forward": beside.forward, "backward": beside.backward, "wgrad": beside.wgrad}
        return Beside(
            **{
                kind: ledger.define(f"experts_{name}_{kind}", part, "s", source)
                for kind, part in parts.items()
            }
        )

    inner = written("inner", own, "routed experts between dispatch and combine")
    forward = each({name: sum(times.forward.values()) for name, times in blocks.items()})
    backward = each({name: sum(times.backward.values()) + times.again for name, times in blocks.items()})
    wgrad = each({name: times.backward["linear_wgrad"] for name, times in blocks.items()})
    rest = Beside(forward - inner.forward, backward - inner.backward - inner.wgrad - wgrad, wgrad)
    return inner, written("around", rest, "the layers around the routed experts, for each expert block")


def write_totals(ledger: Ledger, x: SimpleNamespace, times: BlockTimes) -> dict[str, Amount]:
    """Forward, backward (with recompute), launch gaps and whole time of one block, as symbols."""
    name = times.work.name
    forward = ledger.define(
        f"{name}_forward_time", sum(times.forward.values()), "s", "sum over the kinds of work, forward"
    )
    backward = ledger.define(
        f"{name}_backward_time",
        sum(times.backward.values()) + times.again,
        "s",
        "sum over the kinds of work, backward, with recompute",
    )
    gaps = ledger.define(
        f"{name}_launch_gaps",
        block_gaps(x, name, times),
        "s",
        host.launch_gaps,
    )
    whole = ledger.define(
        f"{name}_time", forward + backward + gaps, "s", "forward, backward and launch gaps of one block"
    )
    return {"forward": forward, "backward": backward, "again": times.again, "gaps": gaps, "whole": whole}


def compute_trees(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Blocks,
    stages: Mapping[str, Amount],
    spared: Amount,
    ends: str,
) -> list[Term]:
    """Compute of the pace-setting stage over all micro-batches, by kind; parts sum to m x its time.

    spared: recompute that MTP heads of that stage do without, one micro-batch [s]. ends: what the slowest stage
    has beyond it, in words.
    """

    def over_blocks(kind: str, direction: str) -> Amount:
        return x.m * sum(
            in_stage(x, name, "pace") * getattr(times, direction)[kind]
            for name, times in blocks.items()
            if kind in getattr(times, direction)
        )

    sums = []
    for direction, title in (("forward", "forward pass, layers"), ("backward", "backward pass, layers")):
        leaves = [
            ledger.term(f"{direction}_{kind}", name, over_blocks(kind, direction), "s", formula)
            for kind, (name, formula) in KINDS.items()
            if any(kind in getattr(times, direction) for times in blocks.values())
        ]
        if direction == "backward":
            named = sum(in_stage(x, name, "pace") * times.again for name, times in blocks.items())
            again = x.m * (named - spared)
            leaves.append(
                ledger.term(
                    "recompute", "recompute", again, "s", "forward work repeated in the backward pass"
                )
            )
        sums.append(ledger.total(direction, title, leaves))
    gaps = x.m * sum(in_stage(x, name, "pace") * symbol(f"{name}_launch_gaps") for name in blocks)
    sums.append(ledger.term("launch_gaps", "gaps between kernels", gaps, "s", host.launch_gaps))
    if unlike_layers(blocks):
        slower = x.m * (stages["inner"] - stages["pace"])
        title = "slower layers of the stage with most parameters"
        sums.append(ledger.term("slower_layers", title, slower, "s", stage_times))
    beyond = x.m * (stages["slowest"] - stages["inner"] + x.mtp_pace * stages["projection"])
    return [*sums, ledger.term("vocabulary", ends, beyond, "s", stage_times)]


def end_units(x: SimpleNamespace) -> tuple[Amount, Amount]:
    """Parameters of FSDP's unit with which a pass begins and ends, and of an output layer that is one by itself. [1]

    The first is the embedding, or the root's (`root_unit`), which has both where there is one stage.
    """
    output = (1 - is_more_than_one(x.pp)) * output_parameters(x)
    return embedding_parameters(x) + x.root_unit * output, (1 - x.root_unit) * output


def parameter_owners(
    x: SimpleNamespace, blocks: Blocks, features: Collection[str], encoder: dict[str, BlockTimes]
) -> list[Owner]:
    """Who holds which parameters together: dp x cp ranks those outside the experts, edp ranks the experts.

    An encoder's are the first stage's, or those of its own ranks.
    """
    layers = maximum(x.layers_pace, 1)

    def trained(stage: str) -> Amount:
        own = x.trained * parameters_of(x, blocks, stage, vocabulary=stage != "pace")
        return own + (adapters_of(x, blocks, stage) if "lora" in features else 0)

    pace = parameters_of(x, blocks, "pace")
    own = x.trained * encoder_weights(x, encoder)[1] if encoder else 0
    most = maximum(trained("first") + (1 - x.enc_own) * own, trained("last"))
    if encoder:
        most = maximum(most, x.enc_own * own)
    # A stage between them can have more layers, or MTP heads with a copy of the embedding.
    most = maximum(most, trained("fullest"))
    owners = [
        Owner(
            "dp",
            most,
            pace / layers,
            trained("pace") / layers,
            communication.data_parallel_ranks(x),
            x.shard,
            x.tp,
            x.dp_straddle,
            *end_units(x),
            later=x.trained * after_first(x, blocks),
        )
    ]
    if "experts" in blocks:
        fullest = maximum(
            parameters_of(x, blocks, "first", experts=True),
            parameters_of(x, blocks, "fullest", experts=True),
            parameters_of(x, blocks, "last", experts=True),
        )
        unit = parameters_of(x, blocks, "pace", experts=True) / layers
        owners.append(
            Owner(
                "edp",
                x.trained * fullest,
                unit,
                x.trained * unit,
                x.edp,
                x.expert_shard,
                x.etp * x.ep,
                x.edp_straddle,
                later=x.trained * after_first(x, blocks, experts=True),
                grouped=expert_parameters(blocks["experts"].work),
            )
        )
    return owners


def jitter_share(straggler: Amount, own_gc: Amount, unbound: Amount) -> Amount:
    """Share of a step by which its slowest rank is late, for each doubling of the ranks that count. [1]"""
    return straggler + OWN_GC * own_gc + UNBOUND * unbound


def with_stragglers(ledger: Ledger, x: SimpleNamespace, trees: list[Term], blocks: Blocks) -> Term:
    """The step: everything so far, unequal sequences, and the slowest rank.

    A replica with longer documents keeps the others waiting: the largest of dp sums of m sequences lies
    spread x sqrt(2 ln dp / m) above the mean, and never above sequences of one document each. Garbage collection and
    unbound ranks add to the jitter.

    The slowest of all ranks sets the pace where stages are alike. Where one has more to do, for its logits, only its
    own ranks' jitter shows: the others' hides in the time in which they wait for it.
    """
    cores = sum(
        in_stage(x, name, "pace") * (times.forward["attention"] + times.backward["attention"])
        for name, times in blocks.items()
        if "attention" in times.forward
    )
    spread = minimum(x.document_spread * (TWO_LN_2 * logarithm2(x.dp) / x.m) ** 0.5, x.s / x.document - 1)
    trees.append(
        ledger.term(
            "length_variance",
            "waiting for replicas with longer documents",
            x.m * cores * spread,
            "s",
            with_stragglers,
        )
    )
    busy = ledger.total("synchronous_time", "step before stragglers", trees)
    ranks = communication.world(x)
    share = jitter_share(x.straggler, x.own_gc, x.unbound)
    whole, slack = symbol("synchronous_time"), x.m * symbol("stage_slack")
    slowest_stage = share * logarithm2(ranks / x.pp) * whole
    every_stage = share * logarithm2(ranks) * (whole - slack) - slack
    straggler = ledger.term(
        "straggler_time",
        "slowest rank and jitter",
        maximum(slowest_stage, every_stage),
        "s",
        "straggler x log2(GPUs) x step; GPUs of the slowest stage where the others can be late; more with garbage "
        "collection of each rank (torchtitan pull request 148) and unbound ranks (Megatron-Bridge 6055)",
    )
    return ledger.total("step_time", "step", (*busy.parts, straggler))
