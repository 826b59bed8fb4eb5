"""The optimizer once a step: Adam over one rank's share of the state, on the device and on the host."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, maximum
from costmodel.data_parallel import Owner
from costmodel.rates import stream
from costmodel.term import Ledger, Term
from costmodel.work import communication

# Seconds of one element in PyTorch's CPU Adam, copies apart. Published with copies: 1.04 ns (Qwen3-30B-A3B, eight
# ranks of a DGX H100, Megatron-Bridge memory notes) and 1.5 ns (Qwen3-0.6B on one H100, NVIDIA-NeMo/RL PR 3628).
HOST_ADAM = 1.15e-9


def optimizer_terms(ledger: Ledger, x: SimpleNamespace, owners: Collection[Owner]) -> list[Term]:
    """Optimizer on the device and on the host, and what happens once a step."""
    update = optimizer_time(x, owners) + x.layers_pace * x.layer_update_host
    return [
        ledger.term("optimizer_step", "optimizer step", update, "s", optimizer_time),
        ledger.term(
            "optimizer_host",
            "optimizer on the host",
            offloaded_optimizer_time(x, owners),
            "s",
            offloaded_optimizer_time,
        ),
        ledger.term(
            "step_fixed",
            "data loading, logging, gradient norm",
            x.step_overhead,
            "s",
            "a constant of the software stack",
        ),
    ]


def optimizer_time(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Adam over one rank's shard: read gradient, master and moments, write back, write the parameter. [s]

    2 state_bytes + grad_bytes + weight_bytes an element, and the gradient once more for its norm and
    once to be zeroed (whole buffer). Source: TE FusedAdam, multi_tensor_adam.cu.
    """
    element = 2 * x.state_bytes + 2 * x.grad_bytes + x.weight_bytes
    on_device = element * sharded(x, owners) * (1 - x.optimizer_offload)
    zeroed = x.grad_bytes * sum(
        owner.whole * (1 - x.grads_sharded + x.grads_sharded / owner.shard) for owner in owners
    )
    return stream(x, on_device + zeroed, x.stream_fraction)


def sharded(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Parameters whose optimizer state one rank holds. [1]"""
    return sum(
        owner.whole
        * (
            1
            - x.optimizer_sharded
            + x.optimizer_sharded / communication.state_shard(x, owner.ranks, owner.shard)
        )
        for owner in owners
    )


def offloaded_optimizer_time(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """Time of the part of the optimizer on the host: gradients over, Adam at the host's memory, parameters back. [s]

    Adam reads and writes 12 bytes of state an element beside a 4-byte gradient, but PyTorch's CPU Adam passes over
    them many times with few threads a rank. Copies hide behind the host's arithmetic when they overlap. Sources:
    Megatron-Core, cpu_offloading/hybrid_optimizer.py; `HOST_ADAM`.
    """
    elements = x.optimizer_offload * sharded(x, owners)
    copies = (4 + x.weight_bytes) * elements / x.host_link
    arithmetic = maximum((2 * 12 + 4 + x.weight_bytes) / x.host_memory, HOST_ADAM) * elements
    together = maximum(copies, arithmetic)
    return x.offload_overlapped * together + (1 - x.offload_overlapped) * (copies + arithmetic)
