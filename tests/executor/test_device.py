"""Ranks take a device of their own, or share one where the user says so, and NCCL then takes them for other hosts."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from executor import devices
from executor.workers import device
from executor.workers.device import SHARE, placed, shares_gpus, sharing


@pytest.fixture
def node(monkeypatch):
    """A node with two devices, rank 3 of four on it; devices that were taken."""
    taken: list[int] = []
    cuda = SimpleNamespace(device_count=lambda: 2, set_device=taken.append)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(
        os, "environ", {"LOCAL_RANK": "3", "RANK": "3", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}
    )
    return taken


def test_a_rank_without_a_device_of_its_own_says_so(node):
    with pytest.raises(
        RuntimeError, match=r"^local rank 3 has no GPU of its own: torch finds 2 here\..*" + SHARE
    ):
        device.take_device()
    assert node == []
    assert "NCCL_HOSTID" not in os.environ


def test_ranks_share_where_they_are_told_to(node):
    os.environ[SHARE] = "1"
    device.take_device()
    assert node == [1]
    assert device.ranks_on_device() == 2
    # NCCL refuses two ranks of one host on one device.
    assert os.environ["NCCL_HOSTID"] == "rank3"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"


def test_what_measures_time_shares_no_device(node):
    os.environ[SHARE] = "1"
    with pytest.raises(RuntimeError, match="no GPU of its own"):
        device.take_device(timed=True)
    assert node == []


def test_a_rank_alone_on_its_device_keeps_its_host(node):
    os.environ |= {SHARE: "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    device.take_device()
    assert node == [1]
    assert "NCCL_HOSTID" not in os.environ


def test_a_rank_alone_on_its_device_is_a_host_of_its_own_where_others_share(node):
    """Of three ranks on two devices: it offered NCCL shared memory and cards, which the other two do not take."""
    os.environ |= {SHARE: "1", "LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "RANK": "1"}
    device.take_device()
    assert node == [1]
    assert device.ranks_on_device() == 1
    assert os.environ["NCCL_HOSTID"] == "rank1"


def test_ranks_of_several_nodes_share_no_device(node, monkeypatch):
    """They would look for each other on the loopback interface."""
    os.environ |= {SHARE: "1", "WORLD_SIZE": "8"}
    with pytest.raises(RuntimeError, match=r"no GPU of its own: .* on one node share"):
        device.take_device()
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    assert devices.most_ranks(nodes=2) == 2


@pytest.mark.parametrize(("rank", "ranks", "found"), [(0, 3, 2), (1, 3, 1), (2, 3, 2)])
def test_ranks_of_a_device_are_counted(rank, ranks, found):
    assert sharing(rank, ranks, 2) == found


def test_no_device_is_none_for_anybody():
    with pytest.raises(RuntimeError, match="torch finds 0 here"):
        placed(0, 0, share=True)


@pytest.mark.parametrize(("value", "found"), [("1", True), ("0", False), ("", False)])
def test_sharing_is_asked_for(monkeypatch, value, found):
    assert shares_gpus({SHARE: value}) is found
    monkeypatch.setenv(SHARE, value)
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    assert devices.most_ranks() == (16 if found else 2)
