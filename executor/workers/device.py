"""The CUDA device of a rank: one of its own, or, where a user says so, one that it shares with other ranks.

ADVISOR_SHARE_GPUS=1 runs more ranks than there are GPUs, on one node: rank r takes device r modulo their number. NCCL
refuses two ranks of one host on one device, so each rank names itself a host, and all talk over the loopback
interface. That checks code (groups, overlaps, receipts, bytes of state), never time: ranks take turns on the device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

SHARE = "ADVISOR_SHARE_GPUS"


def shares_gpus(variables: Mapping[str, str] | None = None) -> bool:
    """Whether ranks may share a GPU. variables: of the environment, this process's when not given."""
    return (os.environ if variables is None else variables).get(SHARE, "") not in ("", "0")


def placed(local_rank: int, devices: int, share: bool) -> int:
    """Number of a rank's device among `devices` of its node. RuntimeError, one line, where there is none for it."""
    if local_rank < devices or (share and devices):
        return local_rank % devices
    raise RuntimeError(
        f"local rank {local_rank} has no GPU of its own: torch finds {devices} here. Run fewer ranks; {SHARE}=1 lets "
        "those of `advisor run` on one node share, which checks code and measures nothing"
    )


def sharing(local_rank: int, local_ranks: int, devices: int) -> int:
    """Ranks of this node on the device of this rank, itself too: 1 without sharing. [1]"""
    return len(range(local_rank % devices, local_ranks, devices))


def apart(rank: int) -> dict[str, str]:
    """Variables of NCCL for a rank among some that share a device: a host of its own, reached over sockets only.

    All ranks need them, also one alone on its device: they talk over one kind of network.

    Source: NCCL 2.28, "Environment Variables" of its user guide; init.cc compares devices within one NCCL_HOSTID.
    """
    return {
        "NCCL_HOSTID": f"rank{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
    }


def take_device(timed: bool = False) -> None:
    """Make this rank's device the current one. Before the process group is made. timed: what follows measures time,
    for which no rank may share. RuntimeError, one line, where there is no device for this rank."""
    import torch

    local_rank, local_ranks = local_place()
    devices = torch.cuda.device_count()
    one_node = int(os.environ.get("WORLD_SIZE", "1")) == local_ranks
    device = placed(local_rank, devices, shares_gpus() and one_node and not timed)
    if local_ranks > devices:
        os.environ.update(apart(int(os.environ["RANK"])))
    torch.cuda.set_device(device)


def ranks_on_device() -> int:
    """Ranks that this rank's device holds. [1]"""
    import torch

    return sharing(*local_place(), torch.cuda.device_count())


def local_place() -> tuple[int, int]:
    """This rank among those of its node, and how many they are, as torchrun says. [1]"""
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
