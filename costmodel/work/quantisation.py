"""Quantisation of linear layers: elements cast and transposed over HBM.

FP8 and FP4 never speed up what is not a linear layer, and their operands are made on the fly: inputs
for forward and (transposed) weight gradient, output gradients for data and (transposed) weight
gradient, weights once a step: by their layers, or by the optimizer, its shard, where parameters are kept quantised.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work import communication
from costmodel.work.linear import Linear


def writes_operands(x: SimpleNamespace) -> Amount:
    """1 where a norm writes the operand of the linear layer that it is one module with. [1]

    With delayed scaling always; in MXFP8 cuDNN's norm does (NVTE_NORM_FWD_USE_CUDNN), for tokens and hidden sizes that
    are multiples of 128. Source: Transformer Engine 1.11 to 2.20, csrc/extensions/normalization.cpp.
    """
    return x.norm_writes + x.cudnn_norms * x.cudnn_writes


def finds_maxima(x: SimpleNamespace) -> Amount:
    """1 where such a norm finds the maximum of what it writes: Transformer Engine's own from 2.7 on, not cuDNN's. [1]

    Source: Transformer Engine 2.6 to 2.20, csrc/extensions/normalization.cpp, FUSED_NORM_AMAX_FP8.
    """
    return x.norm_maxima * (1 - x.cudnn_norms)


def operand_traffic(
    x: SimpleNamespace, whole: Amount, gathered: bool, plain: Amount = 0, normed: Amount = 0
) -> Amount:
    """HBM bytes to quantise one element of an operand, as this rank's products read it. [byte]

    whole: quantised on this rank, for both directions at once. What sequence parallelism gathers is quantised before
    that, each rank its share, and where products need it transposed that is done behind, instead of a second copy
    written at once. Frozen weights have no gradients for which an operand would be needed the other way round.
    plain: 1 where it is gathered in 16 bits, for an adapter reads it too, and quantised behind. normed: 1 where a norm
    made it: some recipes' operands it writes itself, of others it finds the maximum.
    Source: Transformer Engine 2.8, pytorch/distributed.py, gather_along_first_dim; module/linear.py, set_usage.
    """
    other = maximum(0, x.quantised_copy_bytes - x.operand_bytes)
    whole = whole - (1 - x.trained) * other - normed * finds_maxima(x) * x.maximum_bytes
    if not gathered:
        return whole
    behind = x.trained * x.sp * is_more_than_one(x.tp) * x.transpose_bytes
    alone = plain * whole + (1 - plain) * ((whole - behind / 2) / (1 + x.sp * (x.tp - 1)) + behind)
    written = normed * writes_operands(x)
    return written * x.trained * x.transpose_bytes + (1 - written) * alone


def spared_kernels(x: SimpleNamespace, layer: Linear) -> Amount:
    """Launches that a norm spares the layer behind it: the search for a maximum, or all but a transposition. [1]"""
    written = writes_operands(x) * (1 - x.trained * minimum(1, x.transpose_bytes))
    return layer.normed * (written + finds_maxima(x) * minimum(1, x.maximum_bytes))


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


def weight_cast_bytes(x: SimpleNamespace, linear: Linear) -> tuple[Amount, Amount]:
    """HBM bytes to quantise a layer's weights, forward and backward, of one micro-batch. [byte]

    Micro-batches share one cast of all of them, but with recipes that cast anew. Where they are kept and gathered
    quantised the optimizer casts its shard, and columns are made from what was gathered: once a step, and under
    Megatron's FSDP in every backward pass, unless it gathers columns too. Frozen weights stay as they are. Source:
    Megatron-Core 0.16.1 to 0.19.2, fp8_utils.py, quantize_param_shard; param_and_grad_buffer.py,
    post_all_gather_processing; megatron_fsdp.py, fp8_create_transpose_cache.
    """
    elements = quantise_weight_elements(linear)
    sharing = 1 + (1 - x.cast_anew) * (x.m - 1)
    ranks, shard = (
        (x.edp, x.expert_shard) if linear.grouped else (communication.data_parallel_ranks(x), x.shard)
    )
    own = x.megatron_core * x.param_gather * minimum(1, maximum(0, x.weight_bytes - x.gather_bytes))
    spared = own * (
        1 - x.trained + x.trained * x.optimizer_sharded * (1 - 1 / communication.state_shard(x, ranks, shard))
    )
    columns = own * (1 - x.fsdp_columns) * 2 * maximum(0, x.quantised_copy_bytes - x.operand_bytes)
    once = x.quantise_weight_bytes * (1 - spared) / sharing + (1 - x.fsdp) * x.trained * columns / x.m
    return once * elements, x.fsdp * columns * elements
