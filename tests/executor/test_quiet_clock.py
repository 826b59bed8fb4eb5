"""The clock without queueing for a core: work and sleep count, waiting for a core does not."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from executor.workers.quiet import QuietClock


def busy(stop: float) -> None:
    """Hold a core until a time."""
    while time.time() < stop:
        pass


def spin(cpu_seconds: float) -> float:
    """Compute for some seconds of processor time; returns them."""
    start = time.thread_time()
    while time.thread_time() - start < cpu_seconds:
        pass
    return time.thread_time() - start


@pytest.mark.skipif(not QuietClock().counts, reason="the kernel does not count queueing here")
def test_queueing_for_a_core_does_not_count():
    clock = QuietClock()
    context = multiprocessing.get_context("fork")
    others = [
        context.Process(target=busy, args=(time.time() + 3,), daemon=True)
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    for other in others:
        other.start()
    quiet, wall = clock(), time.perf_counter()
    cpu = spin(0.3)
    quiet, wall = clock() - quiet, time.perf_counter() - wall
    for other in others:
        other.terminate()
        other.join()
    assert wall > 1.5 * cpu
    # Sixth of a slice, interrupts and a virtual machine's own host are not queueing.
    assert cpu * 0.98 < quiet < cpu + 0.4 * (wall - cpu)


def test_sleep_counts():
    clock = QuietClock()
    start = clock()
    time.sleep(0.2)
    assert clock() - start >= 0.15
