"""Bytes of parameters, gradients and optimizer state that ranks really hold, beside those of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.rank_share import rank_share
from costmodel.workload import Workload

KINDS = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Bytes:
    """One kind of state of one rank. [byte] Torch's AdamW keeps a step counter a parameter, which is not counted."""

    rank: int
    stage: int
    kind: str
    predicted: int
    measured: int

    @property
    def equal(self) -> bool:
        """To the byte."""
        return self.predicted == self.measured

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"equal": self.equal}


def compare(plan: Plan, workload: Workload, model: ModelSpec, ranks: Sequence[dict[str, Any]]) -> list[Bytes]:
    """Every kind on every rank; nothing where the cost model counts no bytes, as for FSDP."""
    found: list[Bytes] = []
    for rank in ranks:
        places = tuple(rank["places"])
        try:
            plain = rank.get("plain", False)
            counted = rank_share(plan, workload, model, rank["stage"], (places[0], places[1]), plain=plain)
        except ValueError:
            return []
        held = dict(rank["state"])
        held["optimizer"] -= rank["step_counters"]
        found += [Bytes(rank["rank"], rank["stage"], kind, counted[kind], int(held[kind])) for kind in KINDS]
    return found


def warnings(found: Sequence[Bytes]) -> list[str]:
    """A line for the first rank whose bytes are not as counted."""
    wrong = [each for each in found if not each.equal]
    if not wrong:
        return []
    one = wrong[0]
    return [
        f"rank {one.rank} holds {one.measured:,} bytes of {one.kind}, counted were {one.predicted:,}: "
        f"{len({each.rank for each in wrong})} ranks differ; a disagreement with Megatron-Core that we want to know"
    ]
