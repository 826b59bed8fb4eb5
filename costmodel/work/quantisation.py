"""Quantisation of linear layers: bytes over HBM for casts and transposes, and kernels launched.

FP8 and FP4 never speed up what is not a linear layer, and their operands are made on the fly: inputs
for forward and (transposed) weight gradient, output gradients for data and (transposed) weight
gradient, weights once a micro-batch unless parameters are kept quantised.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.work.linear import Linear, tokens


def quantise_input_elements(x: SimpleNamespace, linear: Linear) -> Amount:
    """Input elements of one linear layer that are quantised, forward. [1]"""
    return tokens(x) * linear.inner


def quantise_grad_elements(x: SimpleNamespace, linear: Linear) -> Amount:
    """Output-gradient elements of one linear layer that are quantised, backward. [1]"""
    return tokens(x) * linear.columns
