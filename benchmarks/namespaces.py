"""Two hosts on one machine: network namespaces joined by a pair of virtual cards, each limited by tc tbf.

Needs root and iproute2. Ranks of one host talk over its loopback, which is not limited. Traffic stays inside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One namespace: its name, its card and address."""

    name: str
    card: str
    address: str

    def command(self, words: list[str]) -> list[str]:
        """The command as this host runs it."""
        return ["ip", "netns", "exec", self.name, *words]

    @property
    def variables(self) -> dict[str, str]:
        """Environment that lets gloo meet over the card between the hosts."""
        return {"GLOO_SOCKET_IFNAME": self.card}


def why_not() -> str | None:
    """Why no namespaces can be made here, None where they can."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 (ip, tc) is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces are not permitted: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@contextmanager
def two_hosts(rate: str | None = None) -> Iterator[tuple[Host, Host]]:
    """Two hosts with a link of `rate` each way, such as "200mbit"; None does not limit it. Removed at the end."""
    mark = os.getpid() % 10000
    hosts = (Host(f"adv{mark}a", f"va{mark}", "10.77.0.1"), Host(f"adv{mark}b", f"vb{mark}", "10.77.0.2"))
    try:
        for host in hosts:
            _do("ip", "netns", "add", host.name)
        one, two = hosts
        _do(
            "ip",
            "link",
            "add",
            one.card,
            "netns",
            one.name,
            "type",
            "veth",
            "peer",
            two.card,
            "netns",
            two.name,
        )
        for host in hosts:
            _do(*host.command(["ip", "addr", "add", f"{host.address}/24", "dev", host.card]))
            _do(*host.command(["ip", "link", "set", host.card, "up"]))
            _do(*host.command(["ip", "link", "set", "lo", "up"]))
            if rate is not None:
                # A burst far below a message, else that much of each passes unlimited; queues long enough that TCP is
                # slowed and not dropped.
                limit = ["tbf", "rate", rate, "burst", "8kb", "latency", "100ms"]
                _do(*host.command(["tc", "qdisc", "add", "dev", host.card, "root", *limit]))
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def cut(host: Host) -> None:
    """Take the host off the network: its packets vanish, as when a node loses power."""
    _do(*host.command(["ip", "link", "set", host.card, "down"]))


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
