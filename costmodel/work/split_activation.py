"""Gated activation functions that no fused kernel computes: what they keep, and the probabilities that multiply apart.

Bytes and kernels are counted as PyTorch 2.13 issues the operations of Megatron-Core 0.19.2, transformer/mlp.py and
moe/experts.py, in training, on 16-bit elements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.work.block import BlockWork, Stream
from costmodel.work.dispatched import expert_rows
from costmodel.work.elementwise import ACTIVATION_KERNELS
from costmodel.work.experts import is_clamped, kept_by_experts
from costmodel.work.linear import tokens

# Routed rows times their probabilities, in FP32 and cast back: bytes of an element and kernels, forward and backward;
# the rows stay in 16 bits. Source: Megatron-Core 0.19.2, moe/experts.py, bias_act_func.
PROBABILITY_BYTES, PROBABILITY_KERNELS = (12.0, 34.0), (2.0, 5.0)


def with_split_activation(x: SimpleNamespace, work: BlockWork, features: Collection[str]) -> BlockWork:
    """An MLP or experts with what an activation function of kernels of its own leaves; other blocks as they are."""
    if work.name == "mlp":
        kept = (1 - x.recompute_mlp) * (1 - x.recompute_activation) * (1 - x.recompute_ops)
        rows = kept * (1 + x.megatron_core * (1 + is_clamped(x))) * tokens(x) * x.f / x.tp
        return _kept(work, x.activation_split * x.gates * x.activation_bytes * rows)
    return _experts(x, work, features) if work.name == "experts" else work


def _kept(work: BlockWork, size: Amount) -> BlockWork:
    """The block with what the product of both halves of a gated activation keeps, and what multiplies apart.

    The gate's own output, and of Megatron-Core a copy of the other half too, to which it adds glu_linear_offset; and
    the clamped half of the gate where a model clamps. Routed rows have both clamped halves counted already.
    """
    return replace(work, saved=dict(work.saved) | {"activation output": size})


def _experts(x: SimpleNamespace, work: BlockWork, features: Collection[str]) -> BlockWork:
    # Frameworks whose gates are products of their own have experts of their own, not read here.
    split = x.activation_split * x.gates * (1 - x.separate_gate)
    rows = expert_rows(x) * x.fe / x.etp
    routed = kept_by_experts(x) * (1 - x.recompute_moe_act) * rows
    shared = (1 - x.recompute_moe) * (1 - x.recompute_shared_experts) * tokens(x) * x.fs / x.tp
    forward, backward = (split * size * rows for size in PROBABILITY_BYTES)
    activations = (2 if "shared" in features else 1) * ACTIVATION_KERNELS
    kernels = [split * (activations + own) for own in PROBABILITY_KERNELS]
    return replace(
        _kept(
            work,
            split
            * x.activation_bytes
            * (
                (2 + x.megatron_core - is_clamped(x)) * routed
                + (1 + x.megatron_core * (1 + is_clamped(x))) * shared
            ),
        ),
        streams=(*work.streams, Stream("probabilities", forward, backward, "contiguous")),
        kernels_forward=work.kernels_forward + kernels[0],
        kernels_backward=work.kernels_backward + kernels[1],
    )
