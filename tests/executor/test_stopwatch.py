"""Seconds go to the phase and the group they belong to, whatever the clock."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from executor.workers.stopwatch import Stopwatch  # noqa: E402


class Ticks:
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
