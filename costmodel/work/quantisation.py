"""Quantisation of linear layers: elements cast and transposed over HBM.

FP8 and FP4 never speed up what is not a linear layer, and their operands are made on the fly: inputs
for forward and (transposed) weight gradient, output gradients for data and (transposed) weight
gradient, weights once a step unless parameters are kept quantised.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.work.linear import Linear


def operand_traffic(x: SimpleNamespace, whole: Amount, gathered: bool, plain: Amount = 0) -> Amount:
    """HBM bytes to quantise one element of an operand, as this rank's products read it. [byte]

    whole: quantised on this rank, for both directions at once. What sequence parallelism gathers is quantised before
    that, each rank its share, and where products need it transposed that is done behind, instead of a second copy
    written at once. Frozen weights have no gradients for which an operand would be needed the other way round.
    plain: 1 where it is gathered in 16 bits, for an adapter reads it too, and quantised behind.
    Source: Transformer Engine 2.8, pytorch/distributed.py, gather_along_first_dim; module/linear.py, set_usage.
    """
    other = maximum(0, x.quantised_copy_bytes - x.operand_bytes)
    whole = whole - (1 - x.trained) * other
    if not gathered:
        return whole
    behind = x.trained * x.sp * is_more_than_one(x.tp) * x.transpose_bytes
    return plain * whole + (1 - plain) * ((whole - behind / 2) / (1 + x.sp * (x.tp - 1)) + behind)


def agrees_on_scale(x: SimpleNamespace, layer: Linear, split: str) -> Amount:
    """1 where an operand of a layer, quantised a share a rank, has one scale for all tensor-parallel ranks. [1]

    split: of the layers whose operand sequence parallelism gathers, "column" forward and "row" backward. Not experts'.
    Source: Transformer Engine 2.8, module/linear.py, _customize_quantizers_float8_current_scaling and _nvfp4.
    """
    gathered = layer.split == split and layer.quantised and not layer.grouped
    return x.joint_scale * x.sp * is_more_than_one(x.tp) if gathered else 0


def quantise_input_elements(linear: Linear) -> Amount:
    """Input elements of a linear layer that are quantised, forward. [1]"""
    return linear.cast_input * linear.groups * linear.rows * linear.inner


def quantise_grad_elements(linear: Linear) -> Amount:
    """Output-gradient elements of a linear layer that are quantised, backward. [1]"""
    return linear.cast_grad * linear.groups * linear.rows * linear.columns


def cast_bytes(x: SimpleNamespace, linear: Linear) -> Amount:
    """HBM bytes to quantise the operands of a layer by itself, forward and backward, one micro-batch. [byte]"""
    return (
        x.quantise_input_bytes * quantise_input_elements(linear)
        + x.quantise_grad_bytes * quantise_grad_elements(linear)
        + x.quantise_weight_bytes * quantise_weight_elements(linear) / x.m
    )


def quantise_weight_elements(linear: Linear) -> Amount:
    """Weight elements that are quantised, once a step. [1]"""
    return linear.groups * linear.columns * linear.inner
