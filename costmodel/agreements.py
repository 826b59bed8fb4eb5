"""What ranks look at or agree on beside a step's products: NaN in gradients and loss, maxima of delayed scaling."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, maximum
from costmodel.data_parallel import buckets_of
from costmodel.fully_sharded import Owner
from costmodel.gradient_scaling import scaled_once, scaling_time
from costmodel.rates import tuned_stream
from costmodel.term import Ledger, Term
from costmodel.timing.network import small_all_reduce_time
from costmodel.work import communication


def gradient_checks(x: SimpleNamespace) -> Amount:
    """1 where each bucket of gradients is checked before it is reduced. [1]

    With one data-parallel rank too. Not under FSDP, whose sharded gradients nothing checks, and not in FP16, where a
    NaN is a signal to the scale of the loss. Source: Megatron-Core 0.8 to 0.19, param_and_grad_buffer.py,
    start_grad_sync; 0.17 to 0.19, megatron_fsdp/param_and_grad_buffer.py, _check_nan_in_grad; arguments.py.
    """
    return x.checked * x.checks_gradients * (1 - x.fsdp) * (1 - x.loss_scaled)


def gradient_check_time(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Norm of every bucket of gradients before its reduction, and the host waiting for each. [s]

    Once a step: the gradient buffer is read once, by the stream that computes, so that nothing hides it. Then the host
    has to learn the number, and its next kernels start late: one round trip, for the second look (at infinity, from
    Megatron-Core 0.12 on) finds the device idle. One bucket a chunk but on a stage without neighbours. Source:
    Megatron-Core 0.16.1, param_and_grad_buffer.py, check_grads; rerun_state_machine.py, validate_result; schedules.py,
    grad_sync_func. On one H200 with PyTorch 2.11 (2026-11-26) the norm of 4 to 16 GB ran at 0.88 of the datasheet
    bandwidth in FP32 and 0.77 in BF16, the first look took 18 to 37 us of a chain of products, the second 7 to 12.
    """
    whole = sum(owner.whole for owner in owners)
    read = tuned_stream(x, communication.gradient_bytes(x, whole), x.stream_fraction)
    stops = sum(maximum(buckets_of(x, owner.whole), x.vpp) for owner in owners)
    return gradient_checks(x) * (read + stops * x.expert_wait)


def loss_check_time(x: SimpleNamespace) -> Amount:
    """The host waiting for the loss of one micro-batch, which it checks before the backward pass. [s]

    Source: Megatron-Bridge 0.6.2, training/losses.py, masked_next_token_loss; Megatron-LM, pretrain_gpt.py, loss_func
    (from memory: no wheel has that file), by the switch of the gradients (megatron-core 0.18 and 0.19,
    training/argument_utils.py, check_for_nan_in_loss).
    """
    return x.checked * x.checks_loss * (1 - x.loss_scaled) * x.expert_wait


def maxima_time(x: SimpleNamespace) -> Amount:
    """All-reduce of the maxima of one pass of a chunk, from which delayed scaling takes later scales. [s]

    Over the tensor, context and data ranks of a stage, or without the data ranks; a few FP32 numbers for each linear
    layer, so latency alone. Nothing hides it. Source: Transformer Engine 1.13 to 2.20, fp8.py,
    reduce_and_update_fp8_tensors; Megatron-Core 0.16.1, parallel_state.py, get_amax_reduction_group.
    """
    ranks = x.tp * x.cp * (x.dp - x.amax_inside * (x.dp - 1))
    inside = communication.ranks_in_domain(x, ranks, 1)
    return x.shared_history * x.megatron_core * small_all_reduce_time(x, ranks, inside)


def maxima_term(ledger: Ledger, x: SimpleNamespace) -> Term:
    """Maxima agreed on in a step: behind each forward and each backward pass of a chunk. [s]

    And behind each layer that is computed again whole, for which Transformer Engine leaves its context once more; the
    passes that fill and drain a pipeline show theirs. Source: Transformer Engine 1.13 to 2.20, fp8.py,
    fp8_autocast_exit; distributed.py, _CheckpointFunction.backward; Megatron-Core 0.16.1, transformer_block.py.
    """
    each = ledger.define("maxima_agreed", maxima_time(x), "s", maxima_time)
    passes = 2 * (x.m * x.vpp + x.flushes * (x.pp - 1))
    again = x.m * x.recompute_layers * x.layers_pace
    return ledger.term(
        "maxima", "agreeing on maxima of delayed scaling", (passes + again) * each, "s", maxima_term
    )


def gradient_scaling_term(ledger: Ledger, x: SimpleNamespace, owners: Collection[Owner]) -> Term:
    """Gradients of data parallelism divided by their ranks, once a step, on the stream that computes. [s]"""
    scaled = sum(scaled_once(x, experts=owner.name == "edp") * owner.whole for owner in owners)
    return ledger.term(
        "gradient_scaling",
        "gradients divided by their ranks before they are reduced",
        scaling_time(x, scaled),
        "s",
        scaled_once,
    )


def checks_term(ledger: Ledger, x: SimpleNamespace, owners: Collection[Owner]) -> Term:
    """Checks of gradients for NaN, once a step. [s]"""
    return ledger.term(
        "nan_checks", "checks of gradients for NaN", gradient_check_time(x, owners), "s", gradient_check_time
    )
