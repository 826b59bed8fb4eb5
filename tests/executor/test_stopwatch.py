"""Seconds go to the phase and the group they belong to, whatever the clock."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from executor.workers.stopwatch import COLLECTIVES, HostClock, Stopwatch, StreamClock  # noqa: E402


class Ticks(HostClock):
    """A clock that is set by hand. [s]"""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start


@pytest.fixture
def watch():
    made = Stopwatch(Ticks())
    made.reset()
    return made


def test_communication_is_taken_out_of_the_phase_it_interrupts(watch):
    with watch.phase("forward"):
        watch.clock.now += 3
        with watch.communication("tp"):
            watch.clock.now += 2
        with watch.communication("ep"):
            watch.clock.now += 1
    phases, groups = watch.read()
    assert phases == {"forward": 3, "communication": 3, "communication in forward": 3}
    assert groups == {"tp": 2, "ep": 1}


def test_nested_communication_counts_once_and_outside_of_phases_too(watch):
    with watch.communication("dp"):
        watch.clock.now += 1
        with watch.communication("tp"):
            watch.clock.now += 1
    phases, groups = watch.read()
    assert groups == {"dp": 2}
    assert phases == {"communication": 2, "communication in outside": 2}


def test_a_failing_collective_still_ends(watch):
    def broken() -> None:
        watch.clock.now += 1
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError), watch.phase("backward"):
        watch._timed("all_reduce", broken)()
    assert watch.read()[0]["backward"] == 0
    assert watch.read()[1] == {"world": 1}
    with watch.communication("tp"):
        watch.clock.now += 1
    assert watch.read()[1] == {"world": 1, "tp": 1}


def test_a_wait_belongs_to_the_group_of_its_launch(watch):
    class Work:
        """Pending, of one group."""

    work = Work()
    watch._groups[id(work)] = (work, "pp")

    def wait(_: object) -> None:
        watch.clock.now += 4

    watch._waited(wait)(work)
    watch._waited(wait)(Work())
    assert watch.read()[1] == {"pp": 4, "world": 4}


def test_a_group_of_one_rank_sends_nothing(watch, monkeypatch):
    """Its collectives take the host's time, which counts to the phase that calls them."""
    import torch.distributed as dist

    class Group:
        """As many ranks as asked for."""

        group_desc = "TENSOR_MODEL_PARALLEL_GROUP"

        def __init__(self, ranks: int) -> None:
            self.size = lambda: ranks

    monkeypatch.setattr(dist, "ProcessGroup", Group)
    work = object()

    def call(*_: object, **__: object) -> object:
        watch.clock.now += 1
        return work

    for ranks in (1, 2):
        with watch.phase("forward"):
            watch._timed("all_reduce", call)(None, group=Group(ranks))
            watch._waited(lambda each: watch._waited(call)(object()))(work)  # as a manager of several works
    phases, groups = watch.read()
    assert groups == {"tp": 2}
    assert phases["forward"] == 2
    assert dict(watch.launched) == {("all_reduce", "tp", "forward", True): 1}


def test_launches_are_counted_by_operation_phase_and_whether_they_wait(watch):
    with watch.phase("backward"):
        watch._timed("all_reduce", lambda: object())()
        watch._timed("all_reduce", lambda: None)()
    assert dict(watch.launched) == {
        ("all_reduce", "world", "backward", True): 1,
        ("all_reduce", "world", "backward", False): 1,
    }
    watch.reset()
    assert watch.read() == ({}, {})
    assert not watch.launched


def test_spans_are_the_marks_of_the_step_from_its_begin(watch):
    watch.clock.now = 100.0
    watch.reset()
    watch.clock.now += 1
    with watch.phase("forward"):
        watch.clock.now += 3
        with watch.communication("tp", "all_reduce"):
            watch.clock.now += 2
    assert watch.spans() == [("", "forward", 1, 5), ("tp", "all_reduce", 4, 2)]


@pytest.mark.parametrize(("name", "group"), [("isend", "pp"), ("all_reduce", "world")])
def test_what_only_stages_send_each_other_is_of_the_pipeline(watch, name, group):
    """Of two stages Megatron-Core sends one way in the group of all ranks."""

    def call() -> None:
        watch.clock.now += 1

    watch._timed(name, call)()
    assert watch.read()[1] == {group: 1}


def test_sends_of_a_batch_are_told_as_the_batch(watch):
    send = watch._timed("isend", lambda: object())
    watch._timed("batch_isend_irecv", lambda: [send(), send()])()
    assert dict(watch.launched) == {("batch_isend_irecv", "world", "", True): 1}


def watched(monkeypatch, coalescing) -> None:
    """Let torch.distributed be wrapped for one test alone, with another manager of what is sent together."""
    import torch.distributed as dist

    for name in COLLECTIVES:
        monkeypatch.setattr(dist, name, getattr(dist, name))
    for name in ("isend", "irecv"):
        monkeypatch.setattr(dist.distributed_c10d, name, getattr(dist, name))
    for module in (dist, dist.distributed_c10d):
        monkeypatch.setattr(module, "_coalescing_manager", coalescing)


def test_what_is_sent_together_counts_to_its_group_when_it_is_sent(watch, monkeypatch):
    """Not asynchronous: launched and waited for where the block ends, inside torch.distributed."""
    import torch.distributed as dist

    class Work:
        """Pending."""

        def wait(self) -> None:
            watch.clock.now += 2

    class Group:
        """Of two ranks."""

        group_desc = "DATA_PARALLEL_GROUP_WITH_CP"
        size = staticmethod(lambda: 2)

    @contextmanager
    def coalescing(group=None, **_):
        yield object()
        watch.clock.now += 3
        Work().wait()

    watched(monkeypatch, coalescing)
    monkeypatch.setattr(dist, "Work", Work)
    monkeypatch.setattr(dist.distributed_c10d._CoalescingManager, "wait", lambda self: None)
    watch.watch_collectives()
    with watch.phase("backward"), dist._coalescing_manager(Group()):
        watch.clock.now += 1
    phases, groups = watch.read()
    assert groups == {"dp": 5}
    assert phases["backward"] == 1


def test_what_one_rank_sends_together_stays_with_its_phase(watch, monkeypatch):
    """The group of all ranks, which is named by None, can be one rank too: it was told as the group world."""
    import torch.distributed as dist

    @contextmanager
    def coalescing(group=None, **_):
        yield object()
        watch.clock.now += 3

    watched(monkeypatch, coalescing)
    for work in (dist.Work, dist.distributed_c10d._CoalescingManager):
        monkeypatch.setattr(work, "wait", lambda self: None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    watch.watch_collectives()
    with watch.phase("backward"), dist._coalescing_manager(None):
        watch.clock.now += 1
    phases, groups = watch.read()
    assert groups == {}
    assert phases["backward"] == 4


class Device:
    """torch.cuda as far as streams and events go: the current one is set by hand, a wait takes a second."""

    def __init__(self) -> None:
        self.stream, self.now = "compute", 0.0

    def current_stream(self) -> str:
        return self.stream

    class Event:
        """A moment of the device."""

        def __init__(self, device) -> None:
            self.device = device

        def record(self) -> None:
            self.at = self.device.now

        def elapsed_time(self, other) -> float:
            return 1e3 * (other.at - self.at)

        def wait(self, stream=None) -> None:
            self.device.now += 1


@pytest.fixture
def streams(monkeypatch):
    """A stopwatch of a device with several streams, at the begin of a step."""
    device = Device()
    kind = type("Event", (Device.Event,), {"__init__": lambda self, **_: setattr(self, "device", device)})
    monkeypatch.setattr(torch.cuda, "current_stream", device.current_stream)
    monkeypatch.setattr(torch.cuda, "Event", kind)
    watch = Stopwatch(StreamClock())
    watch.watch_events("dp")
    watch.reset()
    return watch, device


def test_a_collective_of_another_stream_is_beside_compute_and_exposes_nothing(streams):
    watch, device = streams

    def scatter() -> None:
        device.now += 4

    with watch.phase("backward"):
        device.stream = "scatter"
        watch._timed("reduce_scatter_tensor", scatter)()
        device.stream = "compute"
        watch._timed("reduce_scatter_tensor", scatter)()
    assert watch.read()[1] == {"world": 4}
    assert dict(watch.launched) == {
        ("reduce_scatter_tensor", "world", "backward", True): 1,
        ("reduce_scatter_tensor", "world", "backward", False): 1,
    }


def test_the_wait_of_the_compute_stream_for_another_is_exposed(streams):
    watch, device = streams
    event = torch.cuda.Event()
    with watch.phase("forward"):
        event.wait()
        event.wait("gather")  # another stream than the one that computes
        device.stream = "gather"
        event.wait()
    phases, groups = watch.read()
    assert groups == {"dp": 1}
    assert phases["forward"] == 2
