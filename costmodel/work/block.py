"""A block of a layer as amounts: its linear layers, element-wise streams, messages and saved activations.

A decoder layer is a mixer (attention, MLA, Mamba-2, gated delta) and an MLP or experts; hybrid models
stack the same blocks one by one. Everything is per micro-batch on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.amount import Amount
from costmodel.work.linear import Linear


@dataclass(frozen=True)
class Stream:
    """Kernels without products: HBM bytes forward and backward; kind "norm", "permute", "contiguous" or "elementwise".

    busy: elements, forward and backward, whose arithmetic or indexing on the SMs can outlast their bytes [1]; cycles:
    symbols of the cycles that one of them takes.
    """

    name: str
    forward: Amount
    backward: Amount
    kind: str = "elementwise"
    busy: tuple[Amount, Amount] = (0, 0)
    cycles: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class BlockWork:
    """Amounts of one block.

    gathered, reduced: bytes that tensor parallelism gathers before and reduces after it. joined: output of its
    column-parallel layer that is gathered whole, where ranks share key/value heads. saved: activations kept
    for the backward pass, by what they are [byte]. vectors: parameters outside linear layers on this rank
    (norms, biases, ...), expert_vectors those of the experts [1]. kernels_*: kernels beyond quantisation and
    collectives [1]. loops: kernels that a loop over packed documents issues, forward and backward [1].
    """

    name: str
    linears: tuple[Linear, ...]
    streams: tuple[Stream, ...]
    gathered: Amount
    reduced: Amount
    saved: Mapping[str, Amount]
    vectors: Amount
    kernels_forward: Amount
    kernels_backward: Amount
    expert_vectors: Amount = 0
    joined: Amount = 0
    loops: tuple[Amount, Amount] = (0, 0)

    def weights(self, grouped: bool) -> Amount:
        """Weights of the linear layers on one rank: those of experts (grouped), or the others. [1]"""
        return sum(
            (
                linear.groups * linear.columns * linear.inner
                for linear in self.linears
                if linear.grouped == grouped
            ),
            start=0,
        )

    def saved_bytes(self) -> Amount:
        """Activations kept for the backward pass. [byte]"""
        return sum(self.saved.values())
