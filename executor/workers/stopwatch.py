"""Where the time of a step goes: forward, backward, optimizer, and exposed communication inside each, by group.

Collectives of torch.distributed are wrapped before Megatron-Core is imported, so every synchronous call
and every wait on an asynchronous one is counted, to the phase in which it happens and to its group.

On a CPU the clock is the host's. On CUDA it is the compute stream's: an event is recorded before and after each
phase, and before and after each collective or wait; between those two the stream stands still until NCCL's stream is
done, and that is the exposed part. Events are read once a step, after the device is idle; nothing waits for them.
FSDP sends from streams of its own: a collective there runs beside compute, and what it exposes is the compute stream's
wait for its event.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from executor.workers.groups import group_name

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather",
    "all_to_all_single",
    "broadcast",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
)
# What only neighbouring stages send to each other.
BETWEEN_STAGES = ("send", "recv", "isend", "irecv")


class HostClock:
    """Seconds of the host: a CPU computes when it is told to."""

    def mark(self) -> Any:
        """Now."""
        return time.perf_counter()

    def begin(self) -> None:
        """A step begins."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks."""
        return float(end - start)

    def beside(self) -> bool:
        """Whether what is launched now runs beside compute: never."""
        return False


class StreamClock:
    """Seconds of the compute stream of a CUDA device. Read marks only after torch.cuda.synchronize()."""

    def __init__(self) -> None:
        self.stream: Any = None  # of compute: the one that is current at the begin of a step

    def begin(self) -> None:
        """Take the current stream for the one that computes."""
        self.stream = torch.cuda.current_stream()

    def beside(self) -> bool:
        """Whether what is launched now goes to another stream than the one that computes."""
        return self.stream is not None and torch.cuda.current_stream() != self.stream

    def mark(self) -> Any:
        """An event where the stream stands now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Between two events that have happened."""
        return float(start.elapsed_time(end)) / 1e3


class Stopwatch:
    """Seconds by phase and by group; communication is taken out of the phase it interrupts."""

    def __init__(self, clock: HostClock | StreamClock | None = None) -> None:
        self.clock = clock or HostClock()
        self._spans: list[tuple[str, Any, Any]] = []  # phase, start, end
        self._waits: list[tuple[str, str, str, Any, Any]] = []  # phase it interrupts, group, name, start, end
        self._begin: Any = None  # of the step
        self.launched: Counter[tuple[str, str, str, bool]] = (
            Counter()
        )  # operation, group, phase, asynchronous
        self._phases: list[str] = []
        self._communicating = False
        self._groups: dict[int, tuple[Any, str]] = {}  # id of a pending work: itself and its group

    def reset(self) -> None:
        """Start a step."""
        self._spans.clear()
        self._waits.clear()
        self.launched.clear()
        self._groups.clear()
        self.clock.begin()
        self._begin = self.clock.mark()

    def spans(self) -> list[tuple[str, str, float, float]]:
        """Phases and waits of the step so far, phases first: group ("" of a phase), name, start, seconds.

        Start is from the begin of the step. They are the marks that are taken anyway, so that nothing is measured
        for them. Read like `read`.
        """
        marks = [("", phase, start, end) for phase, start, end in self._spans]
        marks += [(group, name, start, end) for _, group, name, start, end in self._waits]
        return [
            (group, name, self.clock.seconds(self._begin, start), self.clock.seconds(start, end))
            for group, name, start, end in marks
        ]

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of the step so far: by phase with "communication" apart, and communication by group."""
        phases: dict[str, float] = defaultdict(float)
        groups: dict[str, float] = defaultdict(float)
        for phase, start, end in self._spans:
            phases[phase] += self.clock.seconds(start, end)
        for phase, group, _, start, end in self._waits:
            spent = self.clock.seconds(start, end)
            phases["communication"] += spent
            phases[f"communication in {phase or 'outside'}"] += spent
            groups[group] += spent
            if phase:
                phases[phase] -= spent
        return dict(phases), dict(groups)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; the communication inside it counts apart."""
        start = self.clock.mark()
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.pop()
            self._spans.append((name, start, self.clock.mark()))

    @contextmanager
    def communication(self, group: str = "world", name: str = "") -> Iterator[None]:
        """Time a collective or a wait of a group; nested ones count once. name: of the call.

        Group "" is one rank, which sends nothing: its time stays with the phase. Nor does the compute stream stand
        still for what another stream sends.
        """
        if self._communicating or self.clock.beside():
            yield
            return
        self._communicating, start = True, self.clock.mark()
        try:
            yield
        finally:
            self._communicating = False
            if group:
                self._waits.append((self._here(), group, name, start, self.clock.mark()))

    def _here(self) -> str:
        return self._phases[-1] if self._phases else ""

    def watch_collectives(self) -> None:
        """Wrap torch.distributed. Call before Megatron-Core is imported: it binds some functions by name."""
        for name in COLLECTIVES:
            wrapped = self._timed(name, getattr(dist, name))
            setattr(dist, name, wrapped)
            if name in ("isend", "irecv"):
                # Batched sends accept these two functions only, compared with the names of this module.
                setattr(dist.distributed_c10d, name, wrapped)
        # Work objects take no attributes of their own; their class does, for every wait on any of them.
        work: Any = dist.Work
        work.wait = self._waited(work.wait)
        # Buckets of the distributed optimizer are launched together and waited for together.
        manager: Any = dist.distributed_c10d._CoalescingManager
        manager.wait = self._waited(manager.wait)
        coalescing = dist.distributed_c10d._coalescing_manager

        @contextmanager
        def grouped(group: Any = None, *args: Any, **kwargs: Any) -> Iterator[Any]:
            name = _name_of(group)
            with ExitStack() as sent, ExitStack() as gathered:
                made = gathered.enter_context(coalescing(group, *args, **kwargs))
                self._groups[id(made)] = (made, name)
                yield made
                # On leaving it they are launched as one, and waited for where they are not asynchronous.
                sent.enter_context(self.communication(name, "coalesced"))

        for module in (dist, dist.distributed_c10d):
            setattr(module, "_coalescing_manager", grouped)  # noqa: B010

    def watch_events(self, group: str) -> None:
        """Count the compute stream's waits for events of other streams to a group: FSDP's. On CUDA only."""
        clock, wait = self.clock, torch.cuda.Event.wait
        assert isinstance(clock, StreamClock)

        def waited(event: Any, stream: Any = None) -> Any:
            waiting = torch.cuda.current_stream() if stream is None else stream
            if waiting != clock.stream:
                return wait(event, stream)
            with self.communication(group, "wait"):
                return wait(event, stream)

        torch.cuda.Event.wait = waited  # type: ignore[method-assign, assignment]

    def watch_phases(self) -> None:
        """Wrap Megatron-Core's forward and backward steps."""
        from megatron.core.pipeline_parallel import schedules

        for name, phase in (("forward_step", "forward"), ("backward_step", "backward")):
            setattr(schedules, name, self._phased(getattr(schedules, name), phase))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            group = _group_of(args, kwargs, between_stages=name in BETWEEN_STAGES)
            inside = self._communicating  # of another: sends of a batch are told as the batch
            with self.communication(group, name):
                result = function(*args, **kwargs)
            # A synchronous collective returns nothing.
            pending = result if isinstance(result, list) else [result] if result is not None else []
            for each in pending:
                self._groups[id(each)] = (each, group)
            if group and not inside:
                self.launched[name, group, self._here(), bool(pending) or self.clock.beside()] += 1
            return result

        # Batched sends tell their functions by name.
        timed.__name__ = name
        return timed

    def _waited(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(work: Any, *args: Any, **kwargs: Any) -> Any:
            _, group = self._groups.pop(id(work), (None, "world"))
            with self.communication(group, "wait"):
                return function(work, *args, **kwargs)

        return timed

    def _phased(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def phased(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return function(*args, **kwargs)

        return phased


def _group_of(args: tuple[Any, ...], kwargs: dict[str, Any], between_stages: bool = False) -> str:
    """Name of the group of a call to torch.distributed, which stands in different places; "" of one rank alone."""
    if args and isinstance(args[0], list) and args[0] and isinstance(args[0][0], dist.P2POp):
        return group_name(args[0][0].group, between_stages=True)
    found = kwargs.get("group")
    if found is None:
        found = next((each for each in args if isinstance(each, dist.ProcessGroup)), None)
    return _name_of(found, between_stages)


def _name_of(group: Any, between_stages: bool = False) -> str:
    """Name of a group, of all ranks where it is None; "" of one rank alone, which sends nothing."""
    ranks = group.size() if group is not None else dist.get_world_size() if dist.is_initialized() else 0
    return "" if ranks == 1 and not between_stages else group_name(group, between_stages)
