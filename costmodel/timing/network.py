"""Seconds of collectives, alone on their links: two protocols inside a domain, network cards between.

Inside a scale-up (NVLink) domain NCCL chooses the quicker of a low-latency and a simple protocol,

    t = min(a_ll + r_ll (n - 1) + w / (b_ll g),  a + r (n - 1) + w / (b g)),   g = n / (n + n_half),

with w the bytes each rank puts on its link. In a mesh, whose GPUs have a link to each other one and no switch, a group
has those among its members alone: b is (n - 1) / (N - 1) of what a whole mesh of N reaches (`mesh_share`). Between
domains a chunked ring uses the network cards of all ranks of the group that share a domain, and runs beside the
transfers inside: the slower counts.
Groups of one rank take no time. More bandwidth is never slower, more bytes never faster.

Sources: NVIDIA NCCL, src/graph/tuning.cc; NVIDIA nccl-tests, PERFORMANCE.md. Fits of the constants:
`tools/fit_tables.py`, docs/kernel-fits.md.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_above_one, is_more_than_one, logarithm2, maximum, minimum
from costmodel.symbols import COLLECTIVE_CONSTANTS

# Sources: DeepSeek-AI, DeepEP README (24 of 132 for all, 20 by Megatron-Core); Megatron-Core, moe_hybridep_num_sms.
DEEPEP_SMS, HYBRIDEP_SMS = 20, 16
# Seconds of one hop of a tree between nodes in NCCL's low-latency protocol, which small messages take.
# Source: NCCL, src/graph/tuning.cc, hwLat of the network (from memory).
TREE_HOP = 5e-6
# A hop of a ring over NVLink, over one between nodes: 3.4 and 14 us in NCCL's simple protocol. Source: NCCL,
# src/graph/tuning.cc, hwLat (from memory).
HOP_INSIDE = 3.4 / 14
# NCCL passes these through every rank; all-reduces cross domains in trees. Source: NCCL, src/graph/tuning.cc.
RINGS_ONLY = ("all_gather", "reduce_scatter")


def domain_time(
    x: SimpleNamespace, operation: str, wire: Amount, ranks: Amount, hops: Amount | None = None
) -> Amount:
    """Seconds of a collective inside a domain. [s]

    wire: bytes each rank puts on its link. ranks: n > 1; one rank gives the latencies alone. hops: of a ring that
    goes on outside the domain, n - 1 where it does not.
    Source: two-protocol fit of nccl-tests curves for 2, 4 and 8 GPUs, 512 B to 512 MiB.
    """
    hops = ranks - 1 if hops is None else hops
    c = {name: getattr(x, f"{operation}_{name}") for name in COLLECTIVE_CONSTANTS}
    growth = ranks / (ranks + c["half_ranks"]) * mesh_share(x, ranks)
    simple = c["latency"] + c["latency_per_rank"] * hops + wire / (c["bandwidth"] * x.intra_scale * growth)
    quick = (
        c["low_latency"]
        + c["low_latency_per_rank"] * hops
        + wire / (c["low_latency_bandwidth"] * x.intra_scale * growth)
    )
    return minimum(simple, quick)


def mesh_share(x: SimpleNamespace, ranks: Amount) -> Amount:
    """Share of a GPU's bandwidth inside a domain that `ranks` of its GPUs reach among themselves. [1]

    1 behind a switch. In a mesh the links to the n - 1 others, of one to each other GPU: rings that together use all
    of them, or an all-to-all straight to every peer. Holds for the ranks of a group that share a domain, at least two;
    links between other GPUs carry nothing for them, although longer ways over these would be free.
    Source: AMD, CDNA 3 white paper (from memory): eight MI300X, seven links each, fully connected.

    Examples
    --------
    >>> [round(mesh_share(SimpleNamespace(peer_links=7), ranks), 3) for ranks in (2, 4, 8)]
    [0.143, 0.429, 1.0]
    """
    return minimum(1, maximum(ranks - 1, 1) / x.peer_links)


def network_time(x: SimpleNamespace, wire: Amount, domains: Amount, cards: Amount) -> Amount:
    """Seconds of the part of a collective that crosses domains. [s]

    wire: bytes each rank of a ring passes on; `cards` ranks of a domain share the work, each with its
    own network cards. Latency grows with the logarithm of the domains. Source: 350 to 380 GB/s bus bandwidth
    of eight 50 GB/s cards, 4 to 1024 H100 nodes; latency 225 us at 4 nodes, 85 us more for each doubling.
    """
    return x.network_latency * logarithm2(domains) + wire / (
        cards * x.network_bandwidth * inter_scale(x, cards)
    )


def inter_scale(x: SimpleNamespace, cards: Amount) -> Amount:
    """Rate of a step's collectives and sends between domains over the table's. [1]

    Ranks that are alone in their domains, each with one card, reach less of it than those that share several.
    """
    several = is_more_than_one(cards)
    return several * x.inter_scale + (1 - several) * x.one_card_scale


def ring_cards(x: SimpleNamespace, ranks_in_domain: Amount) -> Amount:
    """GPUs of a domain whose network cards a ring uses: those of all its ranks there. [1]

    Of one alone where some GPUs of the domain are in the ring and some are not, and the stack is so (`partial_rings`:
    see costmodel/stacks.toml).
    """
    some = minimum(1, maximum(0, x.domain - ranks_in_domain))
    return ranks_in_domain - x.partial_rings * some * (ranks_in_domain - 1)


def one_card_time(x: SimpleNamespace, wire: Amount, ranks: Amount, ranks_in_domain: Amount) -> Amount:
    """Seconds of a ring of which one card of a domain carries all that crosses it. [s]

    At the share of a card's rate that expert dispatch reaches, which has one card a rank. 0 inside a domain.
    """
    domains = ranks / ranks_in_domain
    crosses = is_above_one(domains)
    rate = x.network_bandwidth * x.dispatch_network
    return crosses * (x.network_latency * logarithm2(domains) + wire / rate)


def ring_time(
    x: SimpleNamespace,
    operation: str,
    wire: Amount,
    ranks: Amount,
    ranks_in_domain: Amount,
    in_switch: Amount = 0,
) -> Amount:
    """Seconds of a ring collective over `ranks`, of which `ranks_in_domain` share a domain; 0 for one rank. [s]

    All-gathers and reduce-scatters pass every rank, hop after hop: `ring_hop` is what one between domains takes.
    in_switch: 1 when the network's switches do an all-reduce, of which a card then sends every byte once instead of
    twice. A reduce-scatter sends them once in any case. Source: NVIDIA SHARP.
    """
    domains = ranks / ranks_in_domain
    crosses = is_above_one(domains)
    outside = crosses * network_time(x, wire * (1 - in_switch / 2), domains, ring_cards(x, ranks_in_domain))
    hops = ranks_in_domain - 1
    if operation in RINGS_ONLY:
        outside += crosses * x.ring_hop * (HOP_INSIDE * (ranks - domains) + domains - 1)
        hops = ranks - 1
    several = is_more_than_one(ranks_in_domain)
    return is_more_than_one(ranks) * maximum(
        several * domain_time(x, operation, wire, ranks_in_domain, hops), outside
    )


def all_gather_time(x: SimpleNamespace, size: Amount, ranks: Amount, ranks_in_domain: Amount) -> Amount:
    """Seconds of an all-gather of `size` gathered bytes: w = size (n - 1) / n. [s] Source: module docstring."""
    return ring_time(x, "all_gather", size * (ranks - 1) / ranks, ranks, ranks_in_domain)


def reduce_scatter_time(x: SimpleNamespace, size: Amount, ranks: Amount, ranks_in_domain: Amount) -> Amount:
    """Seconds of a reduce-scatter of `size` input bytes: w = size (n - 1) / n. [s] Source: module docstring."""
    return ring_time(x, "reduce_scatter", size * (ranks - 1) / ranks, ranks, ranks_in_domain)


def all_reduce_time(
    x: SimpleNamespace, size: Amount, ranks: Amount, ranks_in_domain: Amount, in_switch: Amount = 0
) -> Amount:
    """Seconds of an all-reduce of `size` bytes: w = 2 size (n - 1) / n. [s] Source: module docstring."""
    return ring_time(x, "all_reduce", 2 * size * (ranks - 1) / ranks, ranks, ranks_in_domain, in_switch)


def small_all_reduce_time(x: SimpleNamespace, ranks: Amount, ranks_in_domain: Amount) -> Amount:
    """Seconds of an all-reduce of a few KB, whose bytes take no time; 0 for one rank. [s]

    The low-latency protocol: a chain inside a domain, up and down a tree between domains. `network_time`, whose
    latency is that of large messages in a ring, would take three times as long.
    Source: NCCL, src/graph/tuning.cc, ncclTopoTuneModel (from memory): base + 2 (chain + log2(nodes) hop).
    """
    inside = x.all_reduce_low_latency + x.all_reduce_low_latency_per_rank * (ranks_in_domain - 1)
    return is_more_than_one(ranks) * (inside + 2 * TREE_HOP * logarithm2(ranks / ranks_in_domain))


def all_to_all_time(x: SimpleNamespace, size: Amount, ranks: Amount, ranks_in_domain: Amount) -> Amount:
    """Seconds of an all-to-all in which each rank holds `size` bytes. [s]

    (n - 1) / n of them leave the rank, (n - n_in) / n leave the domain through the rank's own cards.
    Source: nccl-tests, alltoall; module docstring.
    """
    leaving = size * (ranks - ranks_in_domain) / ranks
    outside = network_time(x, leaving, ranks / ranks_in_domain, 1)
    several = is_more_than_one(ranks_in_domain)
    inside = domain_time(x, "all_to_all", size * (ranks_in_domain - 1) / ranks, ranks_in_domain)
    return is_more_than_one(ranks) * maximum(several * inside, outside)


def dispatch_time(
    x: SimpleNamespace, near: Amount, far: Amount, ranks: Amount, ranks_in_domain: Amount
) -> Amount:
    """Seconds of one expert dispatch: `near` bytes inside the domain and `far` bytes over the own card. [s]

    Both run side by side; inside they go at the all-to-all's rate, kernels of DeepEP and HybridEP at dispatch_scale
    times that and no faster than the SMs that they have allow. One card a GPU cannot be helped by others.
    Sources: nccl-tests, alltoall; DeepSeek-AI, DeepEP README (intranode 153 GB/s of 160, internode 43 to 58 GB/s of 50
    and 100).
    """
    several = is_more_than_one(ranks_in_domain)
    # Kernels of DeepEP and HybridEP need that many SMs to fill the link.
    fed = minimum(1, x.dispatch_sms / (DEEPEP_SMS - (DEEPEP_SMS - HYBRIDEP_SMS) * x.dispatch_fused))
    rate = 1 + x.dispatch_once * (x.dispatch_scale * fed - 1)
    inside = several * domain_time(x, "all_to_all", near / rate, ranks_in_domain)
    domains = ranks / ranks_in_domain
    crosses = is_above_one(domains)
    # Not at the rate of a step's rings, in which the cards of a domain share the work.
    sending = far / (x.network_bandwidth * x.dispatch_network)
    outside = crosses * (x.network_latency * logarithm2(domains) + sending)
    return is_more_than_one(ranks) * maximum(inside, outside)


def send_recv_time(x: SimpleNamespace, size: Amount, ranks: Amount, ranks_in_domain: Amount) -> Amount:
    """Seconds to pass `size` bytes on to the next rank of a ring or pipeline; 0 for one rank. [s]

    The slowest hop counts: over the network as soon as the group leaves a domain.
    One peer at a time: in a mesh one link, which is what send_recv_bandwidth is of.
    Source: NCCL point-to-point; NVLink P2P reaches 0.83 of the link, a network card 0.95.
    """
    leaves = is_above_one(ranks / ranks_in_domain)
    inside = x.send_recv_latency + size / (x.send_recv_bandwidth * x.intra_scale)
    outside = x.network_latency + size / (x.network_bandwidth * inter_scale(x, 1))
    return is_more_than_one(ranks) * ((1 - leaves) * inside + leaves * maximum(inside, outside))
