"""Where groups of ranks stand: how many GPUs of a domain a job uses, and groups that straddle its edge.

Ranks follow Megatron's order tp-cp-ep-dp-pp, so the group of a dimension is `ranks` GPUs, `stride` apart,
inside the block of one pipeline stage. Source: Megatron-Core, parallel_state.RankGenerator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Group:
    """One group that straddles: its pipeline stage, its ranks, and how many of them each domain holds."""

    stage: int
    ranks: tuple[int, ...]
    per_domain: tuple[int, ...]


def used_domain(domain: int, world: int, segment: int = 0) -> int:
    """GPUs of each scale-up domain that a job uses. [1]

    Without a wish: the whole domain when the job fits in one, else the largest power of two in it, so that
    groups do not straddle (64 of an NVL72). Source: Megatron-Bridge performance guide, 64 of 72 GPUs.
    """
    if segment:
        return min(segment, domain)
    return domain if world <= domain else 1 << (domain.bit_length() - 1)


def segment_sizes(domain: int, node: int, world: int) -> list[int]:
    """GPUs of each domain worth asking for: 0 (by `used_domain`), powers of two, and what tiles domain and job.

    Examples
    --------
    >>> segment_sizes(domain=72, node=4, world=144)
    [0, 8, 12, 16, 24, 32, 36, 48, 64, 72]
    """
    powers = {1 << power for power in range(3, domain.bit_length())}
    tiles = {size for size in range(node, domain + 1, node) if world % size == 0}
    return [0, *sorted(size for size in powers | tiles | {domain} if size >= 8)]


def is_newer(generation: str) -> bool:
    """Whether a GPU is of Hopper's generation or a later one of data centres: what has a boost slider."""
    return generation in ("hopper", "blackwell", "blackwell-ultra")


def switch_reduces(generation: str, has_nvlink_switch: bool) -> bool:
    """Whether the switches of a domain reduce (NVLS). Source: NCCL 2.17 release notes, NVLink SHARP."""
    return is_newer(generation) and has_nvlink_switch


def network_reduces(link: str) -> bool:
    """Whether the switches of a network of this name reduce: InfiniBand's alone, not Ethernet's (EFA, RoCE).

    Source: NVIDIA SHARP documentation, supported switches (Quantum); NCCL user guide, NCCL_COLLNET_ENABLE.
    """
    return link.startswith(("ib-", "infiniband"))


@lru_cache(maxsize=4096)
def straddling_groups(
    domain: int, block: int, pp: int, ranks: int, stride: int, limit: int = 64
) -> tuple[Group, ...]:
    """Groups whose ranks lie unevenly over domains, at most `limit`.

    domain: GPUs of a domain; block: ranks of one pipeline stage; the group has `ranks` ranks `stride` apart.

    Examples
    --------
    >>> straddling_groups(domain=72, block=64, pp=4, ranks=16, stride=4)[0].per_domain
    (2, 14)
    """
    span = ranks * stride
    tiles = block % domain == 0 and domain % stride == 0 and (domain % span == 0 or span % domain == 0)
    if ranks == 1 or domain % block == 0 or tiles:
        return ()
    found = []
    usual = min(ranks, max(domain // stride, 1))
    for stage in range(pp):
        for offset in range(block):
            if (offset // stride) % ranks:
                continue
            first = stage * block + offset
            counts = _per_domain(first, stride, ranks, domain)
            if len(counts) > 1 and min(counts) < usual:
                members = tuple(range(first, first + stride * ranks, stride))
                found.append(Group(stage=stage, ranks=members, per_domain=counts))
                if len(found) == limit:
                    return tuple(found)
    return tuple(found)


def _per_domain(first: int, stride: int, ranks: int, domain: int) -> tuple[int, ...]:
    """How many ranks of the group that begins with `first` each domain holds."""
    _, counts = np.unique((first + stride * np.arange(ranks)) // domain, return_counts=True)
    return tuple(counts.tolist())


def smaller_side(domain: int, block: int, pp: int, ranks: int, stride: int) -> int:
    """Fewest ranks of a straddling group that share a domain, 0 when no group straddles. [1]

    They carry the group's traffic between the domains through their network cards.
    """
    groups = straddling_groups(domain, block, pp, ranks, stride)
    return min((min(group.per_domain) for group in groups), default=0)
