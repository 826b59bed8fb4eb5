"""Gradients divided by the number of their ranks before they are reduced, where the reduction does not average."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.rates import tuned_stream
from costmodel.work import communication


def scaled_once(x: SimpleNamespace, *, experts: bool = False) -> Amount:
    """1 where data parallelism without FSDP multiplies gradients once a step, by one over their ranks. [1]

    Recipes of NVIDIA's frameworks let the reduction average (average_in_collective, `collective_mean` of
    costmodel/stacks.toml), which kernels on registered buffers cannot; experts have fewer ranks than tokens are spread
    over, so that theirs are multiplied then too. A loss by tokens is divided at the end of a step, on the shard.
    Source: Megatron-Core 0.16.1, distributed_data_parallel.py, gradient_scaling_factor, and param_and_grad_buffer.py,
    start_grad_sync; Megatron-Bridge, overrides.py (nccl_ub).
    """
    averaged = x.collective_mean * (1 - x.user_buffers)
    if experts:
        averaged = averaged * (1 - is_more_than_one(x.ep))
    shared = is_more_than_one(communication.data_parallel_ranks(x))
    return x.megatron_core * shared * (1 - x.fsdp) * (1 - averaged) * (1 - x.per_token_loss)


def scaled_each_pass(x: SimpleNamespace) -> Amount:
    """1 where FSDP does so with the whole gradients of a unit, in every backward pass. [1]

    On a stream of its own, which takes its bandwidth from the computation beside. Megatron's in BF16, as what NCCL
    cannot multiply on the way; PyTorch's first FSDP always. Its second one averages. Source: Megatron-Core 0.16.1,
    megatron_fsdp/param_and_grad_buffer.py, gradient_reduce_preprocessing; Megatron-Core docs, megatron_fsdp.md
    (calculate_per_token_loss); PyTorch 2.13, fsdp/_runtime_utils.py, _div_if_needed.
    """
    narrow = maximum(0, 1 - maximum(0, x.grad_bytes - 2))
    own = x.megatron_core * (1 - maximum(x.fsdp_copies, x.fsdp2)) * narrow * (1 - x.per_token_loss)
    return is_more_than_one(communication.data_parallel_ranks(x)) * x.fsdp * maximum(own, x.fsdp1)


def scaling_time(x: SimpleNamespace, elements: Amount) -> Amount:
    """So many gradients read and written once more. [s]"""
    return tuned_stream(x, 2 * communication.gradient_bytes(x, elements), x.stream_fraction)
