"""Parameters of a pipeline stage on one rank: its blocks', its vocabulary's, its adapters', and what Muon updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.layer import BlockTimes
from costmodel.muon import muon_state_bytes
from costmodel.work import parameters
from costmodel.work.linear import padded_vocabulary

# Stages without embedding and output layer.
BETWEEN = ("second", "fullest")
Blocks = Mapping[str, BlockTimes]


def count(x: SimpleNamespace, block: str, stage: str) -> Amount:
    """Blocks of a kind on a stage. [1]"""
    return getattr(x, f"{block}_{stage}")


def parameters_of(
    x: SimpleNamespace, blocks: Blocks, stage: str, *, vocabulary: bool = False, experts: bool = False
) -> Amount:
    """Parameters of a stage on one rank: its experts, or the rest, with embedding or output layer. [1]"""
    if experts:
        return sum(
            count(x, name, stage) * parameters.expert_parameters(times.work)
            for name, times in blocks.items()
            if name == "experts"
        )
    total = sum(
        count(x, name, stage) * parameters.block_parameters(times.work) for name, times in blocks.items()
    )
    if not vocabulary:
        return total
    one_stage = 1 - is_more_than_one(x.pp)
    embedding, output = parameters.embedding_parameters(x), parameters.output_parameters(x)
    heads = x.mtp_heads * parameters.mtp_parameters(x)
    if stage == "first":
        return total + embedding + one_stage * (output + heads)
    return total + output + heads + one_stage * embedding


def adapters_of(x: SimpleNamespace, blocks: Blocks, stage: str) -> Amount:
    """Parameters of a stage's adapters on one rank. [1]"""
    return sum(
        count(x, name, stage) * parameters.adapter_parameters(x, times.work) for name, times in blocks.items()
    )


def linear_weights_of(x: SimpleNamespace, blocks: Blocks, stage: str, grouped: bool) -> Amount:
    """Weights of a stage's quantised linear layers on one rank. [1]"""
    return sum(count(x, name, stage) * times.work.weights(grouped) for name, times in blocks.items())


def under_adam(x: SimpleNamespace, blocks: Blocks, stage: str, features: Collection[str]) -> Amount:
    """Trained parameters of a stage on one rank that Muon leaves to Adam: outside linear layers, and adapters. [1]"""
    edge = stage not in BETWEEN
    everything = parameters_of(x, blocks, stage, vocabulary=edge) + parameters_of(
        x, blocks, stage, experts=True
    )
    matrices = sum(linear_weights_of(x, blocks, stage, grouped) for grouped in (False, True))
    return x.trained * (everything - matrices) + (adapters_of(x, blocks, stage) if "lora" in features else 0)


def largest_table(x: SimpleNamespace, stage: str) -> Amount:
    """Elements of the tensor of a stage that one rank keeps whole under Muon. [1]

    Embedding or output layer, where a stack deals tensors out whole.
    """
    if stage in BETWEEN:
        return 0
    table = parameters.embedding_parameters(x) if stage == "first" else padded_vocabulary(x) * x.h / x.tp
    return x.trained * (1 - x.scattered_muon) * table


def muon_state(
    x: SimpleNamespace, blocks: Blocks, stage: str, features: Collection[str], ranks: tuple[Amount, Amount]
) -> Amount:
    """Optimizer state of a stage under Muon. ranks: those that share state of all, and of the experts. [byte]"""
    of_all, of_experts = ranks
    dense, experts = (x.trained * linear_weights_of(x, blocks, stage, grouped) for grouped in (False, True))
    rest = under_adam(x, blocks, stage, features)
    own = muon_state_bytes(x, dense, rest, largest_table(x, stage), of_all)
    return own + muon_state_bytes(x, experts, 0, 0, of_experts)
