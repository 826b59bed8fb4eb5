"""What carries messages between nodes: InfiniBand or EFA devices, their state, the plugin, GPUDirect."""

from __future__ import annotations

from collections.abc import Iterator

from executor.doctor.finding import Finding
from executor.doctor.machine import Machine

CLASS = "/sys/class/infiniband"
GUIDE = "NCCL user guide, environment variables and troubleshooting"
AWS = "awsome-distributed-training, EFA cheat sheet"
RECIPES = "awsome-distributed-training, NeMo performance recipes, EFA not detected (guide 004)"
# Where EFA's installer puts it, which no shell's path needs to have.
FI_INFO = ("fi_info", "/opt/amazon/efa/bin/fi_info")


def network(machine: Machine) -> Iterator[Finding]:
    """Adapters and what NCCL is told to do with them."""
    adapters = machine.names(CLASS)
    efa = [name for name in adapters if name.startswith(("efa", "rdmap"))]
    variables = machine.environment
    if not adapters:
        yield Finding(
            "network", "ok", f"no RDMA adapters; interfaces {', '.join(_interfaces(machine)) or 'none'}"
        )
        if machine.gpus and variables.get("NCCL_NET", "").lower() == "ib":
            yield Finding(
                "network",
                "fail",
                "NCCL_NET=IB and no InfiniBand device",
                "NCCL refuses to start",
                "Unset NCCL_NET, or give the container its devices (--device /dev/infiniband)",
                GUIDE,
            )
        yield from _no_efa(machine)
        yield from _socket_name(machine)
        return
    down = [name for name in adapters if not _active(machine, name)]
    kind = "EFA" if efa else "RDMA"
    if down:
        yield Finding(
            "network",
            "warn",
            f"{len(down)} of {len(adapters)} {kind} adapters are not active: {', '.join(down[:4])}",
            "messages of a node share the others, or fall back to TCP",
            "Check cables and `ibstat`; leave dead ones out with NCCL_IB_HCA=^NAME",
            GUIDE,
        )
    else:
        yield Finding(
            "network",
            "ok",
            f"{len(adapters)} {kind} adapters, all active: {', '.join(_rates(machine, adapters))}",
        )
    yield from _bypassed(machine, efa)
    if efa:
        yield from _plugin(machine)
        yield from _provider(machine)
    else:
        yield from _no_efa(machine)
    if machine.gpus:
        yield from _direct(machine, efa)
    yield from _socket_name(machine)


def _interfaces(machine: Machine) -> list[str]:
    return [name for name in machine.names("/sys/class/net") if name != "lo"]


def _ports(machine: Machine, adapter: str) -> list[str]:
    return [f"{CLASS}/{adapter}/ports/{port}" for port in machine.names(f"{CLASS}/{adapter}/ports")]


def _active(machine: Machine, adapter: str) -> bool:
    # "4: ACTIVE" as the kernel's ib_core writes it.
    return any("ACTIVE" in machine.text(f"{port}/state") for port in _ports(machine, adapter))


def _rates(machine: Machine, adapters: list[str]) -> list[str]:
    rates = [
        machine.text(f"{port}/rate").split("(")[0].strip()
        for each in adapters
        for port in _ports(machine, each)
    ]
    return sorted({rate for rate in rates if rate}) or ["rate unknown"]


def _bypassed(machine: Machine, efa: list[str]) -> Iterator[Finding]:
    variables = machine.environment
    for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "socket")):
        # EFA is no InfiniBand to NCCL: its plugin speaks for it.
        if variables.get(name, "").lower() == value and not (efa and name == "NCCL_IB_DISABLE"):
            yield Finding(
                "network",
                "warn",
                f"{name}={variables[name]} beside RDMA adapters",
                "messages between nodes go over TCP, ten times slower and through the CPU",
                f"Unset {name}",
                GUIDE,
            )


def _no_efa(machine: Machine) -> Iterator[Finding]:
    """A provider that is asked for and has no adapter."""
    if machine.environment.get("FI_PROVIDER", "").lower() == "efa":
        yield Finding(
            "network provider",
            "warn",
            "FI_PROVIDER=efa and no EFA adapter",
            "NCCL falls back to TCP where it looks for EFA",
            "Start the instance with EFA interfaces and give the container /dev/infiniband, or unset FI_PROVIDER",
            RECIPES,
        )


def _provider(machine: Machine) -> Iterator[Finding]:
    """Whether libfabric finds EFA behind the adapters, as `fi_info -p efa` tells."""
    wanted = machine.environment.get("FI_PROVIDER", "")
    if wanted and wanted.lower() != "efa":
        yield Finding(
            "network provider",
            "warn",
            f"FI_PROVIDER={wanted} beside EFA adapters",
            "libfabric leaves EFA out, and messages between nodes are slow",
            "Set FI_PROVIDER=efa",
            RECIPES,
        )
    tool = next((each for each in FI_INFO if machine.run((each, "--version")) is not None), "")
    if not tool:
        yield Finding("network provider", "ok", "EFA adapters; no fi_info here to ask libfabric for them")
    elif "provider: efa" in (machine.run((tool, "-p", "efa")) or ""):
        yield Finding("network provider", "ok", "fi_info finds efa")
    else:
        yield Finding(
            "network provider",
            "warn",
            "EFA adapters, and fi_info -p efa finds no provider",
            "NCCL falls back to TCP, whose messages are many times slower",
            "Install the EFA software (libfabric) in the container; ls /dev/infiniband shows its devices",
            RECIPES,
        )


def _plugin(machine: Machine) -> Iterator[Finding]:
    """EFA speaks to NCCL only through aws-ofi-nccl; libraries lie where the loader looks."""
    places = machine.environment.get("LD_LIBRARY_PATH", "").split(":")
    places += [
        "/opt/amazon/ofi-nccl/lib",
        "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
        "/opt/aws-ofi-nccl/lib",
    ]
    places += ["/opt/aws-ofi-nccl/install/lib", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib"]
    found = [
        name for place in places if place for name in machine.names(place) if name.startswith("libnccl-net")
    ]
    plugin = machine.environment.get("NCCL_NET_PLUGIN", "")
    if not found:
        yield Finding(
            "network plugin",
            "warn",
            "EFA adapters and no libnccl-net (aws-ofi-nccl) where the loader looks",
            "NCCL cannot speak to EFA and silently uses TCP",
            "Install aws-ofi-nccl, or add its folder to LD_LIBRARY_PATH",
            AWS,
        )
    elif plugin and "ofi" not in plugin and plugin != "none":
        yield Finding(
            "network plugin",
            "warn",
            f"NCCL_NET_PLUGIN={plugin} beside EFA adapters",
            "only aws-ofi-nccl drives EFA; with another plugin NCCL silently uses TCP",
            "Set NCCL_NET_PLUGIN=ofi",
            "constraint C237 of the published list; " + AWS,
        )
    else:
        yield Finding("network plugin", "ok", sorted(set(found))[0])


def _direct(machine: Machine, efa: list[str]) -> Iterator[Finding]:
    """GPUDirect RDMA: the adapter reads the GPU's memory, else every message is copied through the host's."""
    modules = machine.text("/proc/modules")
    if efa or "nvidia_peermem" in modules or "nv_peer_mem" in modules:
        return
    # Newer kernels need no module where the driver is open and DMA-BUF is there.
    if "Open Kernel Module" in machine.text("/proc/driver/nvidia/version"):
        return
    yield Finding(
        "GPUDirect",
        "warn",
        "nvidia_peermem is not loaded and the driver is not the open one (DMA-BUF)",
        "messages between nodes are copied through host memory",
        "sudo modprobe nvidia-peermem",
        "NVIDIA GPUDirect RDMA documentation",
    )


def _socket_name(machine: Machine) -> Iterator[Finding]:
    there = machine.names("/sys/class/net")
    # Ranks on processors speak through gloo alone, which reads no variable of NCCL's.
    read = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if machine.gpus else ("GLOO_SOCKET_IFNAME",)
    for name in read:
        wanted = machine.environment.get(name, "")
        if not wanted or wanted.startswith("^") or not there:
            continue
        choices = [part.lstrip("=") for part in wanted.split(",")]
        exact = name.startswith("GLOO") or wanted.startswith("=")
        if not any(
            each == part or (not exact and each.startswith(part)) for part in choices for each in there
        ):
            yield Finding(
                "network",
                "fail",
                f"{name}={wanted} and interfaces {', '.join(there)}",
                "no interface has that name: ranks cannot meet",
                f"Set {name} to one of them",
                GUIDE,
            )
