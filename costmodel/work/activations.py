"""Saved activations of one micro-batch on one rank, by what they are kept for.

Counted as Transformer Engine keeps them: fused norms, SwiGLU and flash attention save their inputs.
Checked against a dry run of Megatron-Core 0.16.1 (llama3-70B, TP4 SP: 35.78 bytes x s b h / tp a
layer) and V. Korthikanti et al., arXiv:2205.05198 (34 bytes for GPT with dropout, 5 a s / h more
when attention is not fused).
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, ceiling, maximum
from costmodel.work.attention import score_elements
from costmodel.work.elementwise import residual_tokens
from costmodel.work.linear import kv_heads_per_rank, padded_vocabulary, tokens


def norm_inputs(x: SimpleNamespace) -> Amount:
    """Inputs of both norms of a layer, the residual stream; kept always. [byte]"""
    return 2 * x.activation_bytes * residual_tokens(x) * x.h


def norm_outputs(x: SimpleNamespace) -> Amount:
    """Outputs of both norms: inputs of QKV and FC1, in the format the weight gradient reads. [byte]

    Zero when norms are computed again in the backward pass.
    """
    return (1 - x.recompute_norm) * 2 * x.saved_bytes * residual_tokens(x) * x.h


def query_key_value(x: SimpleNamespace) -> Amount:
    """The QKV output, which the value view keeps alive whole, and the rotated queries and keys. [byte]

    Without rotary embedding nothing is copied. Normalised queries and keys keep their inputs (the
    same QKV output). Source: Megatron-Core dry run (the 2.25 bytes beyond the hand count are this view).
    """
    heads = (x.a + x.rotary * x.a) / x.tp + (2 + x.rotary) * kv_heads_per_rank(x)
    return x.activation_bytes * tokens(x) * x.d * heads


def attention_output(x: SimpleNamespace) -> Amount:
    """Output of the attention core with its log-sum-exp, and the projection's input. [byte]

    The fused backward pass reads the 16-bit output; an FP8 projection keeps its own copy.
    """
    copy = x.saved_bytes * (1 - same_format(x))
    output = (x.activation_bytes + copy) * tokens(x) * x.a * x.d / x.tp
    return output + 4 * tokens(x) * x.a / x.tp


def same_format(x: SimpleNamespace) -> Amount:
    """1 when linear inputs are kept in the activations' own format, else 0. [1]

    saved_bytes is activation_bytes (2 and 2, 4 and 4) or smaller (1 against 2).
    """
    return maximum(0, 1 - ceiling(x.activation_bytes - x.saved_bytes))


def attention_scores(x: SimpleNamespace) -> Amount:
    """Softmax output, dropout mask and dropout output of unfused attention. [byte]

    5 a s^2 b / tp with dropout, 2 without; zero when the attention core is computed again.
    Source: arXiv:2205.05198, sec. 4.1.
    """
    return x.unfused * (1 - x.recompute_attention) * (2 + 3 * x.dropout) * score_elements(x)


def mlp(x: SimpleNamespace) -> Amount:
    """FC1 output (both halves when gated) and FC2 input. [byte]

    Zero when the MLP is computed again; FC2's input is zero when only the activation function is.
    """
    fc1 = (1 + x.gates) * x.activation_bytes * tokens(x) * x.f / x.tp
    fc2 = (1 - x.recompute_activation) * x.saved_bytes * tokens(x) * x.f / x.tp
    return (1 - x.recompute_mlp) * (fc1 + fc2)


def dropout_masks(x: SimpleNamespace) -> Amount:
    """Masks of the two residual dropouts, one byte an element. [byte]"""
    return 2 * x.dropout * residual_tokens(x) * x.h


def layer_activations(x: SimpleNamespace) -> Amount:
    """Saved activations of one decoder layer without full recompute. [byte]"""
    return (
        norm_inputs(x)
        + norm_outputs(x)
        + query_key_value(x)
        + attention_output(x)
        + attention_scores(x)
        + mlp(x)
        + dropout_masks(x)
    )


def layer_input(x: SimpleNamespace) -> Amount:
    """What full recompute keeps of a layer: its input. [byte] Source: arXiv:2205.05198, sec. 5."""
    return x.activation_bytes * residual_tokens(x) * x.h


def logits(x: SimpleNamespace) -> Amount:
    """Logits of one micro-batch at the loss: 16-bit, and an FP32 copy when the loss is not fused. [byte]

    Gradient and logits exist together: two copies. Source: Megatron-Core, cross_entropy.py.
    """
    elements = tokens(x) * padded_vocabulary(x) / x.tp
    return elements * (2 * x.activation_bytes + (1 - x.fused_loss) * 8)


def output_input(x: SimpleNamespace) -> Amount:
    """Input and output of the final norm, kept for one micro-batch on the last stage. [byte]"""
    return 2 * x.activation_bytes * residual_tokens(x) * x.h
