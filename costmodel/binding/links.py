"""Numbers of the links for the symbols: fitted curves of collectives, else data sheets; point-to-point; the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hardware_db
from costmodel.binding.tables import bound_of
from costmodel.bound import Bound
from costmodel.symbols import COLLECTIVE_CONSTANTS, COLLECTIVES
from hardware_db import Cluster, Link

# Share of a network card's rate that NCCL reaches: 350 to 380 of 400 GB/s, 4 to 1024 H100 nodes. And the latency of a
# collective of two nodes: 35 to 50 us over InfiniBand for small messages. [1] and [s]
# Source: shared hardware notes, section 6 (between nodes).
NETWORK_EFFICIENCY, NETWORK_LATENCY = 0.92, 45e-6
# Collectives over a link without measured curves: latency, more of it for each rank [s], share of the link's rate for
# many ranks, and ranks of half of that [1]; latency of a copy between two [s]. Assumed; curves of NVSwitch on file have
# 9 to 35 us, up to 16 us a rank, 0.7 to 1.1 of the rate and 0.2 to 3.3 ranks (hardware_db/calibrated).
LINK_LATENCY, LINK_LATENCY_PER_RANK, LINK_EFFICIENCY, LINK_HALF_RANKS = 10e-6, 3e-6, 0.8, 0.5
COPY_LATENCY = 8e-6
# Share of a link that point-to-point copies reach, NVLink's P2P. [1] Source: shared hardware notes, section 7.
SEND_RECV_EFFICIENCY = 0.83
# Constants of a collective that are rates of the link.
LINK_RATES = ("bandwidth", "low_latency_bandwidth")


def collective_inputs(tables: Mapping[str, Any], cluster: Cluster) -> dict[str, Bound]:
    """Constants of the collectives: fitted curves, else the intra-domain link's data sheet."""
    measured = tables.get("collective", {})
    link, network = cluster.intra, cluster.inter
    bound: dict[str, Bound] = {}
    for operation in COLLECTIVES:
        table = measured.get(operation, {})
        for name in COLLECTIVE_CONSTANTS:
            if name in table:
                found = bound_of(table[name], f"{cluster.gpu.name}, collective.{operation}.{name}")
                bound[f"{operation}_{name}"] = (
                    _over_own_link(found, operation, cluster) if name in LINK_RATES else found
                )
        if not table:
            bound |= _link_constants(operation, link.bandwidth, link.latency, f"link {link.name}")
    bound |= _send_recv(measured.get("send_recv", {}), cluster) | {"peer_links": _peer_links(link)}
    bound["network_bandwidth"] = _network(network)
    bound["network_latency"] = Bound(
        max(network.latency, NETWORK_LATENCY),
        f"link {network.name}: latency for each doubling of the domains",
    )
    return bound


def _over_own_link(found: Bound, operation: str, cluster: Cluster) -> Bound:
    """A fitted rate of a collective, as much of this cluster's link as it was of the link that was measured.

    A user's own measurement is of the own link. Source: DeepSeek-AI, DeepEP README: 153 GB/s of the H800's 160 usable.
    """
    gpu, link, of = cluster.gpu, cluster.intra, hardware_db.calibration_link(cluster.gpu)
    if of is None or of.bandwidth == link.bandwidth or operation in gpu.own_calibration.get("collective", {}):
        return found
    share = link.bandwidth / of.bandwidth
    return Bound(
        found.value * share,
        f"{found.source}; x {share:.3g}, link {link.name} over {of.name}",
        f"collectives over link {link.name} are assumed to reach the share of its {link.bandwidth / 1e9:g} GB/s that "
        f"{gpu.calibrated_like} reaches of the {of.bandwidth / 1e9:g} GB/s of {of.name}",
    )


def _send_recv(own: Mapping[str, Any], cluster: Cluster) -> dict[str, Bound]:
    """Point-to-point between two GPUs of a domain, which in a mesh have one link; own: as it was measured there."""
    where = f"{cluster.gpu.name}, collective.send_recv"
    if own:
        return {f"send_recv_{name}": bound_of(own[name], where) for name in ("latency", "bandwidth")}
    link = cluster.intra
    one = f", one of {link.peer_links} links" if link.peer_links > 1 else ""
    return {
        "send_recv_latency": Bound(max(link.latency, COPY_LATENCY), f"link {link.name}: latency"),
        "send_recv_bandwidth": Bound(
            link.bandwidth * SEND_RECV_EFFICIENCY / link.peer_links,
            f"link {link.name}: {SEND_RECV_EFFICIENCY} of its rate{one}",
        ),
    }


def _peer_links(link: Link) -> Bound:
    """Links over which a GPU's bandwidth in a domain is spread: 1 to a switch. [1]"""
    if link.peer_links == 1:
        return Bound(1.0, f"link {link.name}: {'one link joins two GPUs' if link.is_mesh else 'no mesh'}")
    return Bound(
        float(link.peer_links),
        f"link {link.name}, num_links: {link.quantities['num_links'].source}",
        f"link {link.name} is a mesh: a collective of n GPUs of a node is assumed to use all direct links between "
        f"them, n - 1 of a GPU's {link.peer_links}; two GPUs share one",
    )


def _network(link: Link) -> Bound:
    """What a GPU's share of the network moves in a step's collectives: NCCL's share, less where runs show less."""
    source = f"link {link.name}: {NETWORK_EFFICIENCY} of {link.bandwidth / 1e9:g} GB/s a GPU"
    rate = link.bandwidth * NETWORK_EFFICIENCY
    if "reached" not in link.quantities:
        return Bound(rate, source)
    reached = link.quantities["reached"]
    return Bound(
        rate * reached.si,
        f"{source} x {reached.si:g}: {reached.source}",
        f"network {link.name}: taken at {reached.si:g} of its rate, {reached.kind}: all that published runs move on "
        "ConnectX-8's 800 Gbit/s",
    )


def _link_constants(operation: str, bandwidth: float, latency: float, where: str) -> dict[str, Bound]:
    """A link without measured curves: a share of its rate for many ranks, one protocol."""
    fixed, rate = max(latency, LINK_LATENCY), LINK_EFFICIENCY * bandwidth
    values = {
        "latency": fixed,
        "latency_per_rank": LINK_LATENCY_PER_RANK,
        "bandwidth": rate,
        "half_ranks": LINK_HALF_RANKS,
        "low_latency": fixed,
        "low_latency_per_rank": LINK_LATENCY_PER_RANK,
        "low_latency_bandwidth": rate,
    }
    note = f"collectives over {where} are assumed to reach {LINK_EFFICIENCY} of its rate: no measured curve"
    return {
        f"{operation}_{name}": Bound(value, f"{where}: data sheet", note) for name, value in values.items()
    }
