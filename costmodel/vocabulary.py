"""Seconds of the embedding, of logits with loss, and of MTP heads, one micro-batch."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.rates import added_apart, linear_gemm, model_gemm, stream, tuned_stream
from costmodel.symbols import symbol
from costmodel.term import Ledger
from costmodel.timing import kernels
from costmodel.timing.network import all_gather_time, all_reduce_time, reduce_scatter_time
from costmodel.work import communication, linear, vocabulary
from costmodel.work.quantisation import cast_bytes


def vocabulary_times(
    ledger: Ledger, x: SimpleNamespace, features: Collection[str]
) -> tuple[Amount, Amount, Amount]:
    """Time of the embedding, of everything behind the last layer, and of one MTP head beside its layer and its logits.

    Forward and backward, one micro-batch [s]. Traffic around the embedding is the embedding's, traffic around the
    output layer the output's: with several stages they are on different ones. The gradient of the output layer's input
    is reduced while its weight gradient is computed (Megatron-Core 0.16.1, tensor_parallel/layers.py).

    MTP heads have their logits and loss behind the last layer; where they are, they project embedding and hidden state
    together. Deferred weight gradients of the output layer are no part of it: see `deferred_time`.
    """
    rows, columns = linear.tokens(x), linear.padded_vocabulary(x) / x.tp
    size = communication.tensor_parallel_bytes(x)
    inside = communication.ranks_in_domain(x, x.tp, 1)
    gemms = model_gemm(x, rows, columns, x.h) + model_gemm(x, rows, x.h, columns)
    layer = linear.Linear("output", columns, x.h, rows, "none")
    low = (
        linear_gemm(x, layer, "forward")
        + linear_gemm(x, layer, "dgrad")
        + tuned_stream(x, cast_bytes(x, layer), x.elementwise_fraction)
    )
    wgrad = ledger.define(
        "output_wgrad",
        x.trained
        * (
            (1 - x.fp8_output) * model_gemm(x, columns, x.h, rows, accumulate=True)
            + x.fp8_output * linear_gemm(x, layer, "wgrad")
            + added_apart(x, columns * x.h)
        ),
        "s",
        kernels.gemm_time,
        "weight gradient of the output layer",
    )
    logits = ledger.define(
        "logits_gemms",
        (1 - x.fp8_output) * gemms
        + x.fp8_output * low
        + (1 - deferred(x, features) / passes_of(x, features)) * wgrad,
        "s",
        kernels.gemm_time,
    )
    loss = ledger.define(
        "loss_time",
        stream(x, vocabulary.cross_entropy_bytes(x), x.elementwise_fraction),
        "s",
        vocabulary.cross_entropy_bytes,
    )
    gather = all_gather_time(x, size, x.tp, inside)
    scatter = reduce_scatter_time(x, size, x.tp, inside)
    reduce = all_reduce_time(x, size, x.tp, inside)
    late = deferred(x, features) / passes_of(x, features)
    beside_wgrad = x.sp * scatter + (1 - x.sp) * reduce
    traffic = ledger.define(
        "output_tp",
        x.sp * gather
        + late * beside_wgrad
        + (1 - late) * maximum(0, beside_wgrad - wgrad)
        + 3 * all_reduce_time(x, 4 * rows, x.tp, inside),
        "s",
        "gather before the output layer; reduction of its gradient beside the weight gradient, unless that is "
        "deferred; three all-reduces of the loss",
    )
    looked_up = ledger.define(
        "embedding_tp",
        x.sp * (scatter + gather) + (1 - x.sp) * reduce,
        "s",
        "reduction of the vocabulary-parallel rows, gather of their gradient",
    )
    embedding = ledger.define(
        "embedding_time",
        stream(x, vocabulary.embedding_bytes(x), x.elementwise_fraction)
        + stream(x, vocabulary.table_gradient_bytes(x), x.contiguous_fraction)
        + looked_up,
        "s",
        vocabulary.table_gradient_bytes,
        "beside the rows that are looked up and added, and their traffic",
    )
    output = logits + loss + traffic
    if "mtp" not in features:
        return embedding, output, 0
    projection = vocabulary.mtp_projection(x)
    passes = sum(linear_gemm(x, projection, kind) for kind in ("forward", "dgrad", "wgrad"))
    head = ledger.define("mtp_projection", passes, "s", kernels.gemm_time)
    guesses = ledger.define(
        "mtp_guesses",
        stream(x, vocabulary.guesses_bytes(x), x.elementwise_fraction),
        "s",
        vocabulary.guesses_bytes,
    )
    return embedding, (1 + x.mtp_heads) * output + x.mtp_heads * guesses, head + embedding


def passes_of(x: SimpleNamespace, features: Collection[str]) -> Amount:
    """Passes through the output layer in a step: of every micro-batch, and of its MTP heads. [1]"""
    return x.m * (1 + x.mtp_heads if "mtp" in features else 1)


def deferred(x: SimpleNamespace, features: Collection[str]) -> Amount:
    """Of those, the ones whose weight gradients wait until the last stage has ended its passes. [1]

    The first ones wait, as many as the limit says. Source: Megatron-Core 0.16.1, tensor_parallel/layers.py,
    LinearWithGradAccumulationAndAsyncCommunication.backward.
    """
    return x.defer_wgrad * is_more_than_one(x.pp) * minimum(passes_of(x, features), x.deferral_limit)


def deferred_time(x: SimpleNamespace, flush: Amount, features: Collection[str]) -> Amount:
    """Deferred weight gradients of the output layer that the flush does not hide. [s]

    The last stage works them off after its last backward pass, while those before it still flush. They are not less
    work for being late. Source: Megatron-Core 0.16.1, pipeline_parallel/utils.py, drain_embedding_wgrad_compute.
    """
    return maximum(0, deferred(x, features) * symbol("output_wgrad") - flush)
