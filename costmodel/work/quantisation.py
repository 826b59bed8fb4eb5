"""Quantisation of linear layers: elements cast and transposed over HBM.

FP8 and FP4 never speed up what is not a linear layer, and their operands are made on the fly: inputs
for forward and (transposed) weight gradient, output gradients for data and (transposed) weight
gradient, weights once a step unless parameters are kept quantised.
"""

from __future__ import annotations

from costmodel.amount import Amount
from costmodel.work.linear import Linear


def quantise_input_elements(linear: Linear) -> Amount:
    """Input elements of a linear layer that are quantised, forward. [1]"""
    return linear.groups * linear.rows * linear.inner


def quantise_grad_elements(linear: Linear) -> Amount:
    """Output-gradient elements of a linear layer that are quantised, backward. [1]"""
    return linear.groups * linear.rows * linear.columns


def quantise_weight_elements(linear: Linear) -> Amount:
    """Weight elements that are quantised, once a step. [1]"""
    return linear.groups * linear.columns * linear.inner
