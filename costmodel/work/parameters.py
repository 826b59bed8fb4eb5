"""Parameters that one rank holds outside the blocks: embedding, output layer, MTP projections.

Those of a block stand with its other amounts; `costmodel.parameter_counts` counts whole models.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.work.block import BlockWork
from costmodel.work.linear import padded_vocabulary


def block_parameters(block: BlockWork) -> Amount:
    """Parameters of a block on one rank, experts apart: linear weights, norms, biases. [1]

    Linear weights and column-parallel biases are split over tp; norms and row-parallel biases are
    replicated. Source: Megatron-Core, TransformerLayer.
    """
    return block.weights(grouped=False) + block.vectors


def expert_parameters(block: BlockWork) -> Amount:
    """Parameters of the local experts of a block. [1] Source: Megatron-Core, experts.py."""
    return block.weights(grouped=True) + block.expert_vectors


def embedding_parameters(x: SimpleNamespace) -> Amount:
    """Word embedding (split over tp) and learned positions on the first stage. [1]"""
    return padded_vocabulary(x) * x.h / x.tp + x.positions * x.h


def output_parameters(x: SimpleNamespace) -> Amount:
    """Output projection and final norm on the last stage. [1]

    A tied projection is a second copy when the last stage is not the first: Megatron-Core keeps the
    weight on both and all-reduces its gradient.
    """
    second_copy = 1 - x.tied * (1 - is_more_than_one(x.pp))
    return padded_vocabulary(x) * x.h / x.tp * second_copy + x.norm_vectors * x.h


def mtp_parameters(x: SimpleNamespace) -> Amount:
    """What an MTP head holds beside its layer: the 2h to h projection, three norms. [1]

    Source: DeepSeek-AI, arXiv:2412.19437, sec. 2.2; Megatron-Core, multi_token_prediction.py.
    """
    return 2 * x.h * x.h / x.tp + 3 * x.norm_vectors * x.h


def mtp_embedding(x: SimpleNamespace) -> Amount:
    """The copy of the embedding on a later stage with MTP heads, one for all of them. [1]

    A tied output layer there has a weight of its own beside it. Source: Megatron-Core 0.16.1 and 0.19.2, gpt_model.py
    (skip_weight_param_allocation on the first stage alone).
    """
    return is_more_than_one(x.pp) * padded_vocabulary(x) * x.h / x.tp
