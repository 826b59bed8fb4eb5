"""Where the time of a step goes: forward, backward, optimizer, and communication inside each.

Collectives of torch.distributed are wrapped before Megatron-Core is imported, so every synchronous call
and every wait on an asynchronous one is counted, to the phase in which it happens.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

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


class Stopwatch:
    """Seconds by phase; communication is taken out of the phase it interrupts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._phases: list[str] = []
        self._communicating = False

    def reset(self) -> None:
        """Start a step."""
        self.seconds.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase, without the communication inside it."""
        before, start = self.seconds["communication"], time.perf_counter()
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.pop()
            spent = time.perf_counter() - start
            self.seconds[name] += spent - (self.seconds["communication"] - before)

    @contextmanager
    def communication(self) -> Iterator[None]:
        """Time a collective or a wait; nested ones count once."""
        if self._communicating:
            yield
            return
        self._communicating, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._communicating = False
            spent = time.perf_counter() - start
            self.seconds["communication"] += spent
            where = self._phases[-1] if self._phases else "outside"
            self.seconds[f"communication in {where}"] += spent

    def watch_collectives(self) -> None:
        """Wrap torch.distributed. Call before Megatron-Core is imported: it binds some functions by name."""
        for name in COLLECTIVES:
            wrapped = self._timed(getattr(dist, name))
            setattr(dist, name, wrapped)
            if name in ("isend", "irecv"):
                # Batched sends accept these two functions only, compared with the names of this module.
                setattr(dist.distributed_c10d, name, wrapped)
        # Work objects take no attributes of their own; their class does, for every wait on any of them.
        work: Any = dist.Work
        work.wait = self._timed(work.wait)
        # Buckets of the distributed optimizer are launched together and waited for together.
        manager: Any = dist.distributed_c10d._CoalescingManager
        manager.wait = self._timed(manager.wait)

    def watch_phases(self) -> None:
        """Wrap Megatron-Core's forward and backward steps."""
        from megatron.core.pipeline_parallel import schedules

        for name, phase in (("forward_step", "forward"), ("backward_step", "backward")):
            setattr(schedules, name, self._phased(getattr(schedules, name), phase))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.communication():
                return function(*args, **kwargs)

        return timed

    def _phased(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def phased(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                result = function(*args, **kwargs)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                return result

        return phased
