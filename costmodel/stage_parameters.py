"""Parameters of a pipeline stage on one rank: its blocks', its vocabulary's, its adapters', and what Muon updates."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.layer import Blocks
from costmodel.muon import Held, muon_state_bytes, weights_of
from costmodel.symbols import in_stage
from costmodel.work import parameters
from costmodel.work.adapters import adapter_parameters
from costmodel.work.linear import padded_vocabulary

# Stages without embedding and output layer.
BETWEEN = ("second", "fullest")


def parameters_of(
    x: SimpleNamespace, blocks: Blocks, stage: str, *, vocabulary: bool = False, experts: bool = False
) -> Amount:
    """Parameters of a stage on one rank: its experts, or the rest, with embedding, output layer and MTP heads. [1]"""
    if experts:
        return sum(
            in_stage(x, name, stage) * parameters.expert_parameters(times.work)
            for name, times in blocks.items()
            if name == "experts"
        )
    total = sum(
        in_stage(x, name, stage) * parameters.block_parameters(times.work) for name, times in blocks.items()
    )
    if not vocabulary:
        return total
    one_stage = 1 - is_more_than_one(x.pp)
    embedding, output = parameters.embedding_parameters(x), parameters.output_parameters(x)
    if stage == "first":
        return total + embedding + one_stage * output + mtp_heads_of(x, stage)
    if stage == "last":
        return total + output + one_stage * embedding + mtp_heads_of(x, stage)
    return total + mtp_heads_of(x, stage)


def after_first(x: SimpleNamespace, blocks: Blocks, *, experts: bool = False) -> Amount:
    """Parameters of all pipeline stages but the first, of one rank of each: their experts, or the rest. [1]

    MTP heads are left out.
    """
    total, first = (parameters_of(x, blocks, stage, experts=experts) for stage in ("total", "first"))
    output = 0 if experts else is_more_than_one(x.pp) * parameters.output_parameters(x)
    return maximum(total - first, 0) + output


def mtp_heads_of(x: SimpleNamespace, stage: str) -> Amount:
    """Parameters of a stage's MTP heads on one rank beside their layers, with one copy of the embedding for all. [1]

    The first stage has heads only where it is the only one, which needs no copy.
    """
    heads = in_stage(x, "mtp", stage)
    copy = 0 if stage == "first" else parameters.mtp_embedding(x)
    return heads * parameters.mtp_parameters(x) + minimum(heads, 1) * copy


def decoder_count(x: SimpleNamespace, block: str, stage: str) -> Amount:
    """Blocks of a kind in the decoder layers of a stage: all but those of its MTP heads. [1]"""
    return in_stage(x, block, stage) - in_stage(x, "mtp", stage) * getattr(x, f"{block}_mtp")


def adapters_of(x: SimpleNamespace, blocks: Blocks, stage: str) -> Amount:
    """Parameters of a stage's adapters on one rank. [1]"""
    return sum(in_stage(x, name, stage) * adapter_parameters(x, times.work) for name, times in blocks.items())


def linear_weights_of(x: SimpleNamespace, blocks: Blocks, stage: str, grouped: bool) -> Amount:
    """Weights of a stage's quantised linear layers on one rank. [1]"""
    return sum(in_stage(x, name, stage) * times.work.weights(grouped) for name, times in blocks.items())


def under_adam(x: SimpleNamespace, blocks: Blocks, stage: str, features: Collection[str]) -> Amount:
    """Trained parameters of a stage on one rank that are updated by Adam under Muon: outside linear layers. [1]

    Two simplifications: adapters, which Muon would take, are counted here, as are projections of MTP heads. Learned
    positions are Muon's: only the embedding of words is marked. Source: Megatron-Core 0.19.2, language_module.py.
    """
    everything = parameters_of(x, blocks, stage, vocabulary=True) + parameters_of(
        x, blocks, stage, experts=True
    )
    matrices = sum(linear_weights_of(x, blocks, stage, grouped) for grouped in (False, True))
    positions = learned_positions(x, stage)
    adapters = adapters_of(x, blocks, stage) if "lora" in features else 0
    return x.trained * (everything - matrices - positions) + adapters


def learned_positions(x: SimpleNamespace, stage: str) -> Amount:
    """Elements of a stage's learned positions on one rank. [1]"""
    first = 1 - is_more_than_one(x.pp) if stage == "last" else int(stage == "first")
    return first * x.positions * x.h


def largest_table(x: SimpleNamespace, stage: str) -> Amount:
    """Trained elements of a stage's embedding of words or output layer, which one rank keeps whole under Muon. [1]"""
    return 0 if stage in BETWEEN else x.trained * padded_vocabulary(x) * x.h / x.tp


def under_muon(x: SimpleNamespace, blocks: Blocks, stage: str, *, grouped: bool) -> Held:
    """Trained elements of a stage on one rank that Muon updates: of its experts, or the others."""
    elements = linear_weights_of(x, blocks, stage, grouped)
    if not grouped:
        elements += learned_positions(x, stage)
    tensors = [
        minimum(in_stage(x, name, stage), 1) * weight.elements
        for name, times in blocks.items()
        for weight in weights_of(x, times.work, grouped=grouped)
    ]
    return Held(x.trained * elements, x.trained * maximum(0, 0, *tensors))


def muon_state(
    x: SimpleNamespace, blocks: Blocks, stage: str, features: Collection[str], ranks: tuple[Amount, Amount]
) -> Amount:
    """Optimizer state of a stage under Muon. ranks: those that share state of all, and of the experts. [byte]"""
    of_all, of_experts = ranks
    dense, experts = (under_muon(x, blocks, stage, grouped=grouped) for grouped in (False, True))
    rest = Held(under_adam(x, blocks, stage, features), largest_table(x, stage))
    return muon_state_bytes(x, dense, rest, of_all) + muon_state_bytes(x, experts, Held(0, 0), of_experts)
