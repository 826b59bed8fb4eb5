"""Repeated timings of one call: CUDA events on a GPU, a clock without queueing for a core on a processor.

On a GPU each call waits behind a kernel that only sleeps. The host has issued the whole call before it begins, so that
its own pace is not measured; and the device rests for three quarters of the time, as in the short runs that the tables
that ship are of. Back to back, products of an H200 draw all of its power, and its clock falls by a quarter; what power
costs in a step is in the constants of steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from executor.workers.quiet import QuietClock

# Cycles of the sleeping kernel before a call: at least a millisecond, and this many times the call before.
LEAST_SLEEP, REST = 2e6, 3.0
MOST_REPEATS = 400
LEAST_REPEATS = 5
# A first call on a processor that takes this long, and longer than all the time it has, is the measurement: what is
# done once (pages, code of a shape) takes milliseconds, one BF16 product without instructions for it seconds. [s]
LONG = 0.5
# About the clock that the sleeping kernel counts. [Hz]
CLOCK = 2e9
Entry = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One thing to measure. table: where its entries stand; weight: its share of the time."""

    table: str
    title: str
    weight: float
    measure: Callable[[Meter, float], list[Entry]]


class Meter:
    """Times calls, and remembers what share of the wall time went into queueing for a core.

    crowded: more ranks than cores. Each waits for a core in every run too, so that this counts.
    """

    def __init__(self, cuda: bool, crowded: bool = False) -> None:
        self.cuda, self.crowded = cuda, crowded
        self.device = torch.device("cuda" if cuda else "cpu")
        self.clock = QuietClock()
        self._wall = self._queued = 0.0
        self._last = 0.0

    @property
    def queued_share(self) -> float:
        """Seconds queued for a core over wall seconds, of everything timed so far. [1]"""
        return self._queued / self._wall if self._wall else 0.0

    def once(self, function: Callable[[], Any]) -> float:
        """Seconds of one call. [s]"""
        if self.cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(max(LEAST_SLEEP, REST * self._last * CLOCK)))  # type: ignore[no-untyped-call]
            start.record()
            function()
            end.record()
            end.synchronize()
            self._last = float(start.elapsed_time(end)) * 1e-3
            return self._last
        queued, wall = self.clock.queued(), time.perf_counter()
        function()
        wall = time.perf_counter() - wall
        queued = self.clock.queued() - queued
        self._wall += wall
        self._queued += queued
        return wall if self.crowded else max(wall - queued, 1e-9)

    def timed(self, function: Callable[[], Any], seconds: float) -> Entry:
        """Median, lower quartile and spread (interquartile over median) of repeated calls within `seconds`."""
        if self.cuda:
            function()
        elif (first := self.once(function)) > max(seconds, LONG):
            return summary([first])
        times: list[float] = []
        stop = time.perf_counter() + seconds
        while len(times) < LEAST_REPEATS or time.perf_counter() < stop:
            times.append(self.once(function))
            if len(times) >= MOST_REPEATS:
                break
        return summary(times)


def summary(times: list[float]) -> Entry:
    """Median, lower quartile, spread, coefficient of variation and number of repeats."""
    ordered = sorted(times)
    quarter, median = len(ordered) // 4, ordered[len(ordered) // 2]
    mean = statistics.fmean(ordered)
    return {
        "seconds": median,
        "quick": ordered[quarter],
        "spread": (ordered[-1 - quarter] - ordered[quarter]) / median,
        "cv": statistics.pstdev(ordered) / mean if mean else 0.0,
        "repeats": len(ordered),
    }
