"""What one rank computes, sends and keeps in one step, counted: the form in which the cost model and a dry run of
the real framework are laid side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Groups by the plan's sizes: "dp" is data parallel with context parallel, "edp" the same for experts, "tp_ep" the
# ranks of an expert dispatch that also splits tensors, "tp_cp" and "tp_dp" those that count tokens of experts together,
# "mp" all that hold one copy of the model, "optimizer_instance" those of one of several optimizers.
GROUPS = (
    *("tp", "cp", "ep", "etp", "tp_ep", "tp_cp", "tp_dp", "pp", "dp", "edp"),
    *("embedding", "mp", "optimizer_instance", "world"),
)
PHASES = ("forward", "backward", "gradients", "optimizer", "parameters")
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "recv", "broadcast")


@dataclass(frozen=True)
class Message:
    """Messages of one kind that one rank takes part in.

    bytes: of each, as nccl-tests counts: the gathered buffer of an all-gather, the input of a reduce-scatter, the
    whole buffer of an all-reduce, the rank's own buffer of an all-to-all or a send. count: of them in a step.
    """

    operation: str
    group: str
    ranks: int
    bytes: float
    count: float
    phase: str

    @property
    def total_bytes(self) -> float:
        """Of all of them. [byte]"""
        return self.bytes * self.count


@dataclass(frozen=True)
class RankAmounts:
    """Amounts of one rank over `num_microbatches` micro-batches and one optimizer step.

    flops: product ("qkv", "proj", "fc1", "fc2", "core" of attention, "experts_fc1", "router", "output", ... the
    names of `costmodel.work`) to {"forward", "backward"} [FLOP]. saved: what one micro-batch keeps for its backward
    pass, by block ("attention", "mlp", "experts", ..., and "layer" where only whole layers can be told apart),
    summed over the rank's layers [byte]. parameters: "dense" and "experts" [1]. state: "parameters", "gradients"
    and "optimizer" [byte]. peak: of the activations of all micro-batches in flight [byte], 0 when not counted.
    operations: dispatched kernels or operators by pass [1]. notes: what is counted otherwise, and why.
    """

    stage: int
    num_microbatches: int
    flops: Mapping[str, Mapping[str, float]]
    messages: tuple[Message, ...]
    saved: Mapping[str, float]
    parameters: Mapping[str, float]
    state: Mapping[str, float]
    peak: float = 0.0
    operations: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json` and for a worker's answer."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RankAmounts:
        """Back from plain values."""
        messages = tuple(Message(**message) for message in values["messages"])
        return cls(**dict(values) | {"messages": messages, "notes": tuple(values.get("notes", ()))})
