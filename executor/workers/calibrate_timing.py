"""Repeated timings of one call: CUDA events on a GPU, a clock without queueing for a core on a processor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from executor.workers.quiet import QuietClock

MOST_REPEATS = 400
LEAST_REPEATS = 5
Entry = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One thing to measure. table: where its entries stand; weight: its share of the time."""

    table: str
    title: str
    weight: float
    measure: Callable[[Meter, float], list[Entry]]


class Meter:
    """Times calls, and remembers what share of the wall time went into queueing for a core."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.device = torch.device("cuda" if cuda else "cpu")
        self.clock = QuietClock()
        self._wall = self._queued = 0.0

    @property
    def queued_share(self) -> float:
        """Seconds queued for a core over wall seconds, of everything timed so far. [1]"""
        return self._queued / self._wall if self._wall else 0.0

    def once(self, function: Callable[[], Any]) -> float:
        """Seconds of one call. [s]"""
        if self.cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3
        queued, wall = self.clock.queued(), time.perf_counter()
        function()
        wall = time.perf_counter() - wall
        queued = self.clock.queued() - queued
        self._wall += wall
        self._queued += queued
        return max(wall - queued, 1e-9)

    def timed(self, function: Callable[[], Any], seconds: float) -> Entry:
        """Median, lower quartile and spread (interquartile over median) of repeated calls within `seconds`."""
        function()
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
