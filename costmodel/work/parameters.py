"""Parameters that one rank holds, by pipeline stage."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.work.linear import linear_weights, linears, padded_vocabulary


def layer_parameters(x: SimpleNamespace) -> Amount:
    """Parameters of one decoder layer on one rank. [1]

    Linear weights and column-parallel biases are split over tp; norms and row-parallel biases are
    replicated. Source: Megatron-Core, TransformerLayer.
    """
    qkv, proj, fc1, fc2 = linears(x)
    biases = x.qkv_biases * qkv.columns + x.biases * (proj.columns + fc1.columns + fc2.columns)
    norms = 2 * x.norm_vectors * x.h + 2 * x.qk_norms * x.d
    return linear_weights(x) + biases + norms


def embedding_parameters(x: SimpleNamespace) -> Amount:
    """Word embedding (split over tp) and learned positions on the first stage. [1]"""
    return padded_vocabulary(x) * x.h / x.tp + x.positions * x.h


def output_parameters(x: SimpleNamespace) -> Amount:
    """Output projection and final norm on the last stage. [1]

    A tied projection is a second copy when the last stage is not the first: Megatron-Core keeps the
    weight on both and all-reduces its gradient.
    """
    second_copy = 1 - x.tied * (1 - more_than_one_stage(x))
    return padded_vocabulary(x) * x.h / x.tp * second_copy + x.norm_vectors * x.h


def more_than_one_stage(x: SimpleNamespace) -> Amount:
    """1 with pipeline parallelism, else 0. [1]"""
    return is_more_than_one(x.pp)
