"""Embedding, logits and cross-entropy on one rank (first and last pipeline stage)."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.work.linear import Linear, gemm_flops, padded_vocabulary, tokens

# Bytes that softmax and loss move of one logit, forward and backward (`cross_entropy_bytes`).
TRITON_BYTES, NATIVE_BYTES, EAGER_BYTES = 10, 40, 52
# Bytes that capping moves of one logit: divided by the cap, tanh, times the cap; their gradients, tanh's of its output.
# Source: Megatron-Bridge 0.6.2, gemma/modeling_gemma4.py, _logit_softcapping, as PyTorch issues it.
CAP_BYTES = 3 * 4 + 4 + 6 + 4
# Bytes that a trainer moves of one logit to log its cross entropy and its perplexity (`cross_entropy_bytes`).
METRIC_BYTES = 2 * 10


def logits_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of the output projection of one micro-batch on one rank, 2 T h V / tp. [FLOP]

    Data and weight gradients take the same again each. Source: arXiv:2104.04473, appendix.
    """
    return gemm_flops(tokens(x), padded_vocabulary(x) / x.tp, x.h)


def own_fused_loss(x: SimpleNamespace) -> Amount:
    """1 when a fused loss is Megatron-Core's own: by choice, or where its release has no other. [1]"""
    return 1 - (1 - x.native_loss) * (1 - x.megatron_core * x.loss_native)


def cross_entropy_bytes(x: SimpleNamespace) -> Amount:
    """HBM bytes of softmax and loss over the vocabulary-parallel logits, forward and backward. [byte]

    Fused in Triton: read the logits twice, write the gradient in place (3 x 2 B), multiply it by the loss's (2 + 2).
    Megatron-Core's own fused loss compiles four parts over FP32 logits: cast and maximum (2 + 4), exponential and
    sum (8), division (8), a copy for the gradient (8), gradient and cast back (4 + 4 + 2). Not fused: cast (2 + 4),
    maximum (4), subtract (8), exponential (8), sum (4), division (8), gradient (8), cast back (4 + 2).
    A trainer's metrics are PyTorch's loss under autocast each: logarithms of the softmax in 16 bits (2 + 2), cast for
    the loss (2 + 4).
    Sources: Megatron-Core 0.16.1, tensor_parallel/cross_entropy.py and fusions/fused_cross_entropy.py; Transformer
    Engine, common/triton/cross_entropy.py; Composer 0.17.0, trainer/trainer.py, _eval_train_metrics, metrics/nlp.py;
    PyTorch 2.13, ATen/autocast_mode.h.
    """
    elements = tokens(x) * padded_vocabulary(x) / x.tp
    fused = TRITON_BYTES + own_fused_loss(x) * (NATIVE_BYTES - TRITON_BYTES)
    loss = x.fused_loss * fused + (1 - x.fused_loss) * EAGER_BYTES
    return elements * (loss + x.loss_metrics * METRIC_BYTES + x.capped_logits * CAP_BYTES)


def guesses_bytes(x: SimpleNamespace) -> Amount:
    """HBM bytes of one MTP head's logits that are read for their largest, by which right guesses are counted. [byte]

    Source: Megatron-Core 0.19.2, multi_token_prediction.py, _compute_mtp_acceptance_counts: argmax over the vocabulary.
    """
    return x.counts_guesses * x.activation_bytes * tokens(x) * padded_vocabulary(x) / x.tp


def embedding_bytes(x: SimpleNamespace) -> Amount:
    """HBM bytes of the embedding lookup forward and its scatter-add backward. [byte]

    Forward reads and writes one row a token; backward reads the gradient and adds FP32 rows, unless it is frozen.
    """
    return tokens(x) * x.h * (2 * x.activation_bytes + x.trained * (x.activation_bytes + 8))


def table_gradient_bytes(x: SimpleNamespace) -> Amount:
    """HBM bytes that the embedding's gradient takes beside its rows, in every micro-batch, for it is dense. [byte]

    A table of zeros is written for it, and then all of it added to the buffer of gradients, or copied into FSDP's;
    PyTorch's FSDP takes it as it is. Where the output layer ties to it on the same stage, a second table of zeros is
    that layer's gradient, and both are summed. Sources: Megatron-Core 0.16.1, tensor_parallel/layers.py,
    VocabParallelEmbedding.forward and zero_out_wgrad; distributed_data_parallel.py, _make_backward_post_hook;
    megatron_fsdp.py; PyTorch, embedding_dense_backward (from memory).
    """
    added = x.megatron_core * (x.weight_bytes + (2 - x.fsdp) * x.grad_bytes)
    tied = x.megatron_core * x.tied * (1 - is_more_than_one(x.pp)) * 4 * x.weight_bytes
    return x.trained * (x.weight_bytes + added + tied) * padded_vocabulary(x) * x.h / x.tp


def mtp_projection(x: SimpleNamespace) -> Linear:
    """Projection of embedding and hidden state together, in front of an MTP head's layer.

    Source: DeepSeek-AI, arXiv:2412.19437, sec. 2.2; Megatron-Core, multi_token_prediction.py, eh_proj.
    """
    return Linear("mtp_proj", x.h / x.tp, 2 * x.h, tokens(x), "column")
