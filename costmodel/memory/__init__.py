"""Memory of one rank by component, for the first, the second, the fullest and the last pipeline stage.

The first stage holds most micro-batches in flight, the last one the logits; the second may be the worst
where the first has lighter layers (dense layers before experts), and where the second has some of those too, the
fullest of those between: the one with most parameters. The worst of them is compared with the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel import schedule
from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.block_kernels import graphed_whole
from costmodel.encoder import encoder_kept, encoder_weights
from costmodel.layer import Blocks, BlockTimes
from costmodel.memory.beside import (
    context_bytes,
    deferred_bytes,
    dispatcher_bytes,
    flat_gradient_bytes,
    fragmentation_bytes,
    gather_buffer_bytes,
    graph_bytes,
    handed_bytes,
    logits_hole_bytes,
    ring_bytes,
    stand_in_bytes,
    stream_pool_bytes,
    whole_parameters,
)
from costmodel.memory.states import (
    gathered_bytes,
    gradient_bytes,
    optimizer_bytes,
    weight_bytes,
    whole_tables,
)
from costmodel.memory.workspace import (
    beside_table,
    block_workspace,
    early_table_gradient,
    output_gradients,
    recomputed_bytes,
    table_gradient,
    widest_layer,
    workspace_bytes,
)
from costmodel.muon import muon_gather_bytes, muon_state_bytes
from costmodel.stage_parameters import (
    adapters_of,
    decoder_count,
    linear_weights_of,
    muon_state,
    parameters_of,
)
from costmodel.symbols import STAGES, in_stage, symbol
from costmodel.term import Ledger, Term
from costmodel.work import activations, communication, parameters

# Stages whose memory is counted: but for the one that sets the pace, which is known by its time.
MEMORY_STAGES = tuple(stage for stage in STAGES if stage != "pace")
# Of a stage's memory: name, title, bytes, formula.
Part = tuple[str, str, Amount, Callable[..., Amount]]
# Blocks with linear layers that every tensor-parallel rank holds whole: routers, down-projections of latents.
WHOLE_LINEARS = {"experts", "mla", "dsa", "csa"}
# Layers whose activations an offloaded stage keeps on the device: in use and on the way.
OFFLOAD_BUFFERS = 2


def activation_bytes(
    x: SimpleNamespace,
    kept: Amount,
    layers: Amount,
    in_flight: Amount,
    heads: Amount = 0,
    dispatcher: Amount = 0,
) -> Amount:
    """Activations of all layers of a stage and all micro-batches in flight. [byte]

    kept: of the blocks of the stage's decoder layers for one micro-batch; heads: of its MTP heads for all in flight
    there, which full recompute leaves out; dispatcher: held once, whatever is in flight. Layers with full recompute
    keep their input alone; what waits in host memory passes through two layers' buffers, which are free again when
    the layers that stay are computed. A forward pass that runs beside a backward pass layer by layer (overlapped expert
    dispatch) holds one layer more.
    Source of what recompute leaves out: Megatron-Core 0.16.1, multi_token_prediction.py, _checkpointed_forward with
    method block, which is what is exported.
    """
    inputs = layers * activations.layer_input(x)
    stage = x.recompute_layers * inputs + (1 - x.recompute_layers) * kept
    held = in_flight + x.ep_overlap / maximum(layers, 1)
    buffers = minimum(OFFLOAD_BUFFERS / maximum(layers, 1), x.offload_share)
    return maximum(held * (1 - x.offload_share), buffers) * stage + (1 - x.offload_share) * heads + dispatcher


def rank_memory(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Blocks,
    features: Collection[str],
    encoder: dict[str, BlockTimes],
) -> dict[str, Term]:
    """Breakdown of a rank of each of MEMORY_STAGES, and the worst of them as entry `peak_memory`."""
    for name, times in blocks.items():
        ledger.define(
            f"{name}_activation_bytes", times.work.saved_bytes(), "byte", f"costmodel.work, block {name}"
        )
        ledger.define(
            f"{name}_parameters", parameters.block_parameters(times.work), "1", parameters.block_parameters
        )
        if WHOLE_LINEARS & set(blocks):
            ledger.define(f"{name}_whole_parameters", whole_parameters(x, times.work), "1", whole_parameters)
        again = ledger.define(
            f"{name}_recomputed", recomputed_bytes(x, times.work, features), "byte", recomputed_bytes
        )
        ledger.define(f"{name}_workspace", block_workspace(x, times.work, again), "byte", block_workspace)
    layer = ledger.define("widest_layer", widest_layer(blocks), "byte", widest_layer)
    ring = ledger.define("ring_buffers", ring_bytes(x, blocks), "byte", ring_bytes)
    passing = ledger.define(
        "layer_workspace", workspace_bytes(x, layer, blocks, ring), "byte", workspace_bytes
    )
    trees = {
        f"memory_{stage}": _stage_memory(ledger, x, blocks, features, stage, passing, encoder)
        for stage in MEMORY_STAGES
    }
    first, second, fullest, last = (symbol(name) for name in trees)
    ledger.define(
        "peak_memory",
        maximum(first, maximum(maximum(second, fullest) * is_more_than_one(x.pp), last)),
        "byte",
        "the largest of the first, the second, the fullest and the last stage",
        "peak memory of the worst rank",
    )
    return trees


@dataclass(frozen=True)
class _Stage:
    """One pipeline stage: parameters of its rank, layers, micro-batches in flight [1], and what these keep [byte].

    dense, experts, adapters: parameters; kept: of the decoder's blocks for one micro-batch; heads: of its MTP heads for
    those in flight on the last chunk; dispatcher: held once; loss: logits and what stands beside them; buffer: what the
    output layer keeps for good.
    """

    name: str
    dense: Amount
    experts: Amount
    adapters: Amount
    layers: Amount
    flying: Amount
    kept: Amount
    heads: Amount
    dispatcher: Amount
    loss: Amount
    buffer: Amount


def _activations_of(blocks: Blocks, counts: Callable[[str], Amount]) -> Amount:
    """Saved activations of blocks for one micro-batch, by how many of each there are. [byte]"""
    return sum(counts(name) * symbol(f"{name}_activation_bytes") for name in blocks)


def _stage(
    ledger: Ledger, x: SimpleNamespace, blocks: Blocks, features: Collection[str], stage: str
) -> _Stage:
    """A stage with its amounts as entries of the ledger."""
    dense = ledger.define(
        f"{stage}_stage_parameters",
        parameters_of(x, blocks, stage, vocabulary=True),
        "1",
        parameters_of,
    )
    experts: Amount = 0
    if "experts" in blocks:
        experts = ledger.define(
            f"{stage}_stage_expert_parameters",
            parameters_of(x, blocks, stage, experts=True),
            "1",
            parameters_of,
        )
    where = {"first": 0, "second": 1, "fullest": x.fullest_stage, "last": x.pp - 1}[stage]
    flying = ledger.define(f"{stage}_stage_in_flight", schedule.in_flight(x, where), "1", schedule.in_flight)
    kept = ledger.define(
        f"{stage}_stage_kept",
        _activations_of(blocks, lambda name: decoder_count(x, name, stage)),
        "byte",
        "activations of the blocks of the stage's decoder layers for one micro-batch",
    )
    heads: Amount = 0
    if "mtp" in features:
        layer = _activations_of(blocks, lambda name: getattr(x, f"{name}_mtp"))
        heads = ledger.define(
            f"{stage}_stage_mtp_kept",
            schedule.last_chunk_in_flight(x, where)
            * in_stage(x, "mtp", stage)
            * (layer + activations.mtp_inputs(x)),
            "byte",
            schedule.last_chunk_in_flight,
        )
    dispatcher: Amount = 0
    if "experts" in blocks:
        held = dispatcher_bytes(x, stage)
        dispatcher = ledger.define(f"{stage}_stage_dispatcher", held, "byte", dispatcher_bytes)
    return _Stage(
        name=stage,
        dense=dense,
        experts=experts,
        adapters=adapters_of(x, blocks, stage) if "lora" in features else 0,
        layers=getattr(x, f"layers_{stage}"),
        flying=flying,
        kept=kept,
        heads=heads,
        dispatcher=dispatcher,
        loss=_loss_bytes(x, features, stage),
        buffer=_has_loss(x, stage) * gather_buffer_bytes(x, blocks, stage),
    )


def _has_loss(x: SimpleNamespace, stage: str) -> Amount:
    """1 where a stage has output layer and loss. [1]"""
    return {"first": 1 - is_more_than_one(x.pp), "last": 1}.get(stage, 0)


def _loss_bytes(x: SimpleNamespace, features: Collection[str], stage: str) -> Amount:
    """Logits of every head of a stage that has the loss, and what stands beside them. [byte]"""
    loss = maximum(activations.logits(x), output_gradients(x)) + activations.output_input(x)
    if "mtp" in features:
        loss += activations.mtp_logits(x) + x.mtp_heads * activations.output_input(x)
    return _has_loss(x, stage) * loss


def _graph_pools(x: SimpleNamespace, blocks: Blocks, of: _Stage, workspace: Amount) -> Amount:
    """CUDA graph pools of a stage. [byte]"""
    blocks_here = sum(in_stage(x, name, of.name) for name in blocks)
    captured = sum(in_stage(x, name, of.name) * graphed_whole(x, name) for name in blocks) / maximum(
        blocks_here, 1
    )
    kept = _activations_of(blocks, lambda name: in_stage(x, name, of.name) * graphed_whole(x, name))
    pooled = activation_bytes(x, kept, captured * of.layers, maximum(of.flying - 1, 0)) + captured * (
        of.loss + workspace
    )
    return graph_bytes(x, pooled, 3 * captured * of.layers * activations.layer_input(x))


def _states(
    x: SimpleNamespace, blocks: Blocks, features: Collection[str], of: _Stage, workspace: Amount
) -> list[Part]:
    """Weights, what FSDP has whole, gradients and optimizer state of a stage: name, title, bytes, formula."""
    shards = ((of.dense, x.shard, False), (of.experts, x.expert_shard, True))
    of_all = communication.state_shard(x, communication.data_parallel_ranks(x), x.shard)
    of_experts = communication.state_shard(x, x.edp, x.expert_shard)

    def over_shards(function: Callable[..., Amount], held: Iterable[tuple[Amount, Amount, bool]]) -> Amount:
        return sum(
            function(x, x.trained * amount + (0 if grouped else of.adapters), shard)
            for amount, shard, grouped in held
        )

    weights = sum(
        weight_bytes(
            x,
            linear_weights_of(x, blocks, of.name, grouped),
            amount + (0 if grouped else of.adapters),
            shard,
        )
        for amount, shard, grouped in shards
    )
    optimizer = over_shards(optimizer_bytes, ((of.dense, of_all, False), (of.experts, of_experts, True)))
    state: Callable[..., Amount] = optimizer_bytes
    if "muon" in features:
        under_muon = muon_state(x, blocks, of.name, features, (of_all, of_experts))
        optimizer, state = (1 - x.muon) * optimizer + x.muon * under_muon, muon_state_bytes
    of_blocks = parameters_of(x, blocks, of.name) + of.experts
    linears = sum(linear_weights_of(x, blocks, of.name, grouped) for _, _, grouped in shards)
    layer = (of_blocks / maximum(of.layers, 1), linears / maximum(of.layers, 1))
    # A backward pass gives back what it finds: with full recompute an input, of what waits in host memory nothing.
    kept = (1 - x.recompute_layers) * of.kept / maximum(of.layers, 1)
    freed = (1 - x.offload_share) * (x.recompute_layers * activations.layer_input(x) + kept)
    gathered = gathered_bytes(x, layer, of.dense + of.experts, of.loss, workspace, freed)
    return [
        ("weights", "weights", weights, weight_bytes),
        ("gathered", "FSDP layers in use", gathered, gathered_bytes),
        ("gradients", "gradients", over_shards(gradient_bytes, shards), gradient_bytes),
        ("optimizer", "optimizer state", optimizer, state),
    ]


def encoder_bytes(x: SimpleNamespace, encoder: dict[str, BlockTimes], in_flight: Amount) -> Amount:
    """Memory of an encoder in the first stage: its weights, gradients, optimizer state and activations. [byte]"""
    linear_weights, held = encoder_weights(x, encoder)
    ranks = communication.state_shard(x, communication.data_parallel_ranks(x), x.shard)
    state = gradient_bytes(x, x.trained * held, x.shard) + optimizer_bytes(x, x.trained * held, ranks)
    return weight_bytes(x, linear_weights, held, x.shard) + state + in_flight * encoder_kept(x, encoder)


def _passing(x: SimpleNamespace, features: Collection[str], of: _Stage, layer: Amount) -> list[Part]:
    """What the passes of a stage hold: activations, logits, and the workspace of one layer beyond these."""
    active = activation_bytes(x, of.kept, of.layers, of.flying, of.heads, of.dispatcher)
    active += handed_bytes(x, of.flying, of.name)
    early = early_table_gradient(x, features)
    workspace = maximum(layer + early - of.loss, 0)
    if of.name == "first":
        active += of.flying * activations.embedding_mask(x)
        workspace = maximum(workspace, table_gradient(x, of.kept, of.layers) + early - of.loss)
    return [
        ("activations", "activations in flight", active, activation_bytes),
        ("logits", "logits and loss", of.loss + of.buffer, activations.logits),
        ("workspace", "workspace of one layer, beyond the logits", workspace, workspace_bytes),
    ]


def _terms(ledger: Ledger, stage: str, parts: Iterable[Part]) -> list[Term]:
    """Terms of a stage's memory, entries of the ledger."""
    return [
        ledger.term(f"memory_{stage}_{name}", title, expr, "byte", formula)
        for name, title, expr, formula in parts
    ]


def _stage_memory(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Blocks,
    features: Collection[str],
    stage: str,
    layer: Amount,
    encoder: dict[str, BlockTimes],
) -> Term:
    """Breakdown of the rank of one stage. layer: workspace of one layer [byte]; encoder: its blocks."""
    of = _stage(ledger, x, blocks, features, stage)
    if stage == "last" and "mtp" in features:  # Its heads have an embedding of their own, and turn first.
        heads = minimum(in_stage(x, "mtp", stage), 1) * is_more_than_one(x.pp)
        layer = maximum(layer, heads * beside_table(x))
    passing = _terms(ledger, stage, _passing(x, features, of, layer))
    held, workspace = sum(symbol(term.name) for term in passing), symbol(f"memory_{stage}_workspace")
    stand_ins = stand_in_bytes(x, blocks, stage, _has_loss(x, stage))
    weights = (parameters_of(x, blocks, stage) + of.experts) / maximum(of.layers, 1)
    apart = stream_pool_bytes(x, weights, whole_tables(x)) + logits_hole_bytes(x, _has_loss(x, stage))
    states = _states(x, blocks, features, of, layer)
    states.append(("stand_ins", "stand-ins for weight gradients", stand_ins, stand_in_bytes))
    parts: list[Part] = [
        (
            "fragmentation",
            "allocator fragmentation",
            fragmentation_bytes(x, held, apart),
            fragmentation_bytes,
        ),
        ("graphs", "CUDA graph pools", _graph_pools(x, blocks, of, workspace), graph_bytes),
        ("context", "CUDA context, libraries, NCCL buffers", context_bytes(x), context_bytes),
    ]
    if WHOLE_LINEARS & set(blocks):
        flat = flat_gradient_bytes(x, blocks, stage, held)
        title = "flat copy of gradients that tensor-parallel ranks sum, beyond activations"
        parts.append(("flat_gradients", title, flat, flat_gradient_bytes))
    if "muon" in features:
        copy = muon_gather_bytes(x, of.dense, of.experts, held)
        parts.append(("gather_copy", "gather after Muon's step, beyond activations", copy, muon_gather_bytes))
    if (
        encoder and stage == "first"
    ):  # On GPUs of its own it needs less than the first stage, which stands for it.
        own = (1 - x.enc_own) * encoder_bytes(x, encoder, of.flying)
        parts.append(("encoder", "encoder in the first stage", own, encoder_bytes))
    if stage == "last":
        kept = deferred_bytes(x, features)
        parts.append(("deferred", "logits' gradients that wait for the flush", kept, deferred_bytes))
    before, after = _terms(ledger, stage, states), _terms(ledger, stage, parts)
    return ledger.total(
        f"memory_{stage}", f"peak memory, {stage} pipeline stage", [*before, *passing, *after]
    )
