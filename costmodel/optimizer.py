"""The optimizer once a step: Adam over one rank's share of the state, on the device and on the host, or Muon."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace

from costmodel.amount import Amount, maximum
from costmodel.fully_sharded import Owner
from costmodel.layer import Blocks
from costmodel.muon import muon_share, muon_time
from costmodel.rates import tuned_stream
from costmodel.stage_parameters import largest_table, under_adam
from costmodel.term import Ledger, Term
from costmodel.work import communication

# Seconds of one element in PyTorch's CPU Adam, copies apart. Published with copies: 1.04 ns (Qwen3-30B-A3B, eight
# ranks of a DGX H100, Megatron-Bridge memory notes) and 1.5 ns (Qwen3-0.6B on one H100, NVIDIA-NeMo/RL PR 3628).
HOST_ADAM = 1.15e-9
# Bytes of an element in torch.optim's AdamW with foreach, one kernel after the other in FP32: weight decay (8), first
# moment (12), second moment (8 + 12), root, division and sum of the denominator (24), update (16), over the 28 of one
# kernel. Source: torch/optim/adam.py, _multi_tensor_adam.
FOREACH_MORE = 80 - 28


def optimizer_terms(
    ledger: Ledger, x: SimpleNamespace, owners: Collection[Owner], blocks: Blocks, features: Collection[str]
) -> list[Term]:
    """Optimizer on the device and on the host, and what happens once a step."""
    update = optimizer_time(x, owners)
    formula: Callable[..., Amount] = optimizer_time
    matrices: list[Term] = []
    if "muon" in features:
        update = (1 - x.muon) * update + x.muon * beside_muon_time(ledger, x, owners, blocks, features)
        formula = beside_muon_time
        seconds = x.muon * matrices_time(ledger, x, owners, blocks)
        matrices = [ledger.term("optimizer_muon", "Muon's matrices", seconds, "s", matrices_time)]
    update += x.layers_pace * x.layer_update_host
    return [
        *matrices,
        ledger.term("optimizer_step", "optimizer step", update, "s", formula),
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

    2 state_bytes + main_grad_bytes + weight_bytes an element; the gradient once more for its norm, and read and written
    where it is clipped, as in the first steps of a training, which benchmarks measure; Megatron-Core's copies; and
    the whole buffer zeroed. Sources: TE FusedAdam, multi_tensor_adam.cu; Megatron-Core, clip_grads.py; kernels of
    steps profiled on an H200, docs/run.md.
    """
    on_device = adam_bytes(x) * sharded(x, owners) * (1 - x.optimizer_offload)
    return tuned_stream(x, on_device + zeroed_bytes(x, owners), x.stream_fraction)


def adam_bytes(x: SimpleNamespace) -> Amount:
    """HBM bytes of Adam for one element, its gradient's norm and clipping and copies included. [byte]

    Without one kernel for all, more.
    """
    gradient = (1 + 1 + 2) * x.main_grad_bytes  # norm, Adam, clipping
    copies = x.megatron_core * x.update_copies
    return 2 * x.state_bytes + gradient + x.weight_bytes + copies + x.foreach_adam * FOREACH_MORE


def zeroed_bytes(x: SimpleNamespace, owners: Collection[Owner]) -> Amount:
    """The gradient buffer, written with zeros once a step. [byte]"""
    return x.grad_bytes * sum(
        owner.whole * (1 - x.grads_sharded + x.grads_sharded / owner.shard) for owner in owners
    )


def matrices_time(ledger: Ledger, x: SimpleNamespace, owners: Collection[Owner], blocks: Blocks) -> Amount:
    """One rank's matrices of the pace-setting stage orthogonalised and updated. [s]

    Source: as `costmodel.muon`.
    """
    return x.trained * sum(
        muon_time(ledger, x, blocks, muon_share(x, owner.ranks), grouped=owner.name == "edp")
        for owner in owners
    )


def beside_muon_time(
    ledger: Ledger, x: SimpleNamespace, owners: Collection[Owner], blocks: Blocks, features: Collection[str]
) -> Amount:
    """What Muon leaves to Adam, and the gradients zeroed; embedding or output layer may be one rank's whole. [s]

    Source: as `costmodel.muon`.
    """
    share = muon_share(x, communication.data_parallel_ranks(x))
    stages = [
        maximum(under_adam(x, blocks, stage, features) * share, largest_table(x, stage))
        for stage in ("first", "last")
    ]
    rest = ledger.define(
        "muon_rest", maximum(*stages), "1", under_adam, "parameters that a rank updates by Adam"
    )
    return tuned_stream(x, adam_bytes(x) * rest + zeroed_bytes(x, owners), x.stream_fraction)


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
