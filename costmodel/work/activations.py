"""Saved activations of one micro-batch on one rank beyond those of the blocks: inputs, logits.

What a block keeps stands beside its other amounts (`costmodel.work.attention` and its siblings), counted as
Transformer Engine keeps it: fused norms, SwiGLU and flash attention save their inputs. Checked against a dry
run of Megatron-Core 0.16.1 (llama3-70B, TP4 SP: 35.78 bytes x s b h / tp a layer) and V. Korthikanti et al.,
arXiv:2205.05198 (34 bytes for GPT with dropout, 5 a s / h more when attention is not fused).
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.elementwise import residual_tokens
from costmodel.work.linear import padded_vocabulary, tokens
from costmodel.work.vocabulary import own_fused_loss


def layer_input(x: SimpleNamespace) -> Amount:
    """What full recompute keeps of a layer: its input, every residual stream. [byte] Source: arXiv:2205.05198."""
    return x.residual_streams * hidden_states(x)


def hidden_states(x: SimpleNamespace) -> Amount:
    """Hidden states of one micro-batch on a rank, one residual stream. [byte]"""
    return x.activation_bytes * residual_tokens(x) * x.h


def embedding_mask(x: SimpleNamespace) -> Amount:
    """The mask of dropout behind the embedding, of one micro-batch: a byte an element. [byte]

    Source: Megatron-Core 0.16.1, language_model_embedding.py, embedding_dropout.
    """
    return x.dropout * residual_tokens(x) * x.h


def logits(x: SimpleNamespace) -> Amount:
    """Logits of one micro-batch at the loss, with what stands beside them at its peak. [byte]

    Fused: Transformer Engine's kernel, which Megatron-Core calls, writes the gradient over the logits; others have
    both. Megatron-Core's own compiles its parts: beside the logits in 16 bits, the softmax in FP32 and a copy of it
    for the gradient. Not fused it casts once, FP32 not at all, and works in place. PyTorch's has three copies in FP32
    in its backward pass (log-softmax, its gradient, the result), four where the vocabulary is split over ranks
    (loss_parallel). Logits that are capped leave tanh's output beside them.
    Sources: Megatron-Core 0.16.1, tensor_parallel/cross_entropy.py and fusions/fused_cross_entropy.py, whose functional
    tests hold 6 and 10 bytes; Transformer Engine, common/triton/cross_entropy.py; PyTorch 2.13,
    distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward.
    """
    elements = tokens(x) * padded_vocabulary(x) / x.tp
    own, cast = x.megatron_core, 4 * minimum(1, maximum(0, 4 - x.activation_bytes))
    fused = own * own_fused_loss(x) * (cast + 4) + (2 - own) * x.activation_bytes
    split = x.dtensor * is_more_than_one(x.tp)
    eager = own * (x.activation_bytes + cast) + (1 - own) * (12 + 4 * split)
    capped = x.capped_logits * x.activation_bytes
    return elements * (x.fused_loss * fused + (1 - x.fused_loss) * eager + capped)


def mtp_logits(x: SimpleNamespace) -> Amount:
    """What MTP heads' losses keep of their logits while the main head has its own: their softmax in FP32. [byte]

    Or the gradient that a fused loss writes over them. Up to Megatron-Core 0.16 the frame of the forward pass holds the
    last head's logits too. Other frameworks are taken to have all that stands beside the main head's.
    Source: Megatron-Core 0.16.1, gpt_model.py, _postprocess; 0.17.1, multi_token_prediction.py, process_mtp_loss;
    checked against the peak of dry runs of both.
    """
    elements = tokens(x) * padded_vocabulary(x) / x.tp
    in_place = x.fused_loss * (1 - own_fused_loss(x))
    each = in_place * x.activation_bytes * elements + (1 - in_place) * saved_logits(x)
    held = x.holds_mtp_logits * (1 - in_place) * x.activation_bytes * elements
    own = x.mtp_heads * each + held
    return x.megatron_core * own + (1 - x.megatron_core) * x.mtp_heads * logits(x)


def saved_logits(x: SimpleNamespace) -> Amount:
    """What the loss keeps of the logits of one micro-batch for its backward pass: the softmax in FP32. [byte]

    Fused (implementation native, the default) as not fused; Transformer Engine's overwrites the 16-bit logits.
    Source: Megatron-Core 0.16.1, tensor_parallel/cross_entropy.py and fusions/fused_cross_entropy.py.
    """
    return 4 * tokens(x) * padded_vocabulary(x) / x.tp


def gather_buffer(x: SimpleNamespace) -> Amount:
    """The buffer in which sequence parallelism gathers the output layer's input; one for all micro-batches. [byte]

    Source: Megatron-Core 0.16.1, tensor_parallel/layers.py, get_global_memory_buffer.
    """
    return x.megatron_core * x.sp * x.activation_bytes * tokens(x) * x.h


def mtp_inputs(x: SimpleNamespace) -> Amount:
    """What an MTP head keeps for one micro-batch beside its layer, final norm and logits. [byte]

    The embedding, it and the hidden state side by side, the projection's output, gathered over tp, and the outputs of
    all heads joined for the loss. Source: Megatron-Core 0.16.1, multi_token_prediction.py.
    """
    return x.activation_bytes * residual_tokens(x) * x.h * (4 + x.sp * (x.tp - 1))


def output_input(x: SimpleNamespace) -> Amount:
    """Input and output of the final norm, kept for one micro-batch on the last stage. [byte]

    DTensor keeps the output as it was gathered for the output layer.
    """
    output = (1 - x.dtensor) * residual_tokens(x) + x.dtensor * tokens(x)
    return x.activation_bytes * (residual_tokens(x) + output) * x.h
