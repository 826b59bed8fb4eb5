"""A space of plans with the step time and memory of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.rules import Mask
from advisor.search.candidates import objective_of
from advisor.search.simplest import complexity
from advisor.space.grid import ALL, Rows, Space
from costmodel.columns import Array, plan_from_columns
from costmodel.plan import Plan
from costmodel.prediction import FITS_BELOW


@dataclass(frozen=True)
class Scored:
    """One evaluated space: step time [s] and peak memory [byte] of every plan, device memory [byte].

    host: `costmodel.plan_array.host_share` of every plan, None where no plan is held back by its host.
    """

    space: Space
    gpus: int
    step_time: Array
    peak_memory: Array
    device: float
    host: Array | None = None

    def fits(self, share: float = FITS_BELOW) -> Mask:
        """Plans that take at most `share` of the device's memory, and no more of the host's than there is."""
        fits = self.fits_device(share)
        return fits if self.host is None else fits & (self.host <= 1)

    def ranked(self, share: float, slowest: float) -> Mask:
        """Plans that fit and take no more than `slowest` seconds a step by the closed form."""
        return self.fits(share) & (self.step_time <= slowest)

    def fits_device(self, share: float = FITS_BELOW) -> Mask:
        """Plans that take at most `share` of the device's memory."""
        return self.peak_memory <= share * self.device

    def need(self) -> Array:
        """Of the memory that a plan may use, device's or host's, what it takes of the scarcer; fits up to 1. [1]"""
        device = self.peak_memory / (FITS_BELOW * self.device)
        return device if self.host is None else np.maximum(device, self.host)

    def score(self, objective: str) -> Array:
        """`objective_value` of every row, before its pipeline is simulated."""
        return objective_of(objective, self.step_time, self.peak_memory, self.gpus)

    def complexity(self, rows: Rows = ALL) -> Array:
        """Number of things that plans ask for beyond the default. [1]"""
        return complexity(lambda name: self.space.column(name, rows))

    def plan(self, row: int) -> Plan:
        """The plan of one row."""
        return self.plans(np.array([row]))[0]

    def plans(self, rows: NDArray[np.intp]) -> list[Plan]:
        """The plans of some rows, in order."""
        columns = self.space.some(rows)
        return [plan_from_columns(columns, index, self.space.precision) for index in range(len(rows))]


def quickest(scored: Sequence[Scored], of: Callable[[Scored], Mask]) -> tuple[Scored, int]:
    """The space and number of the fastest plan that a mask of each space leaves, of which there is one."""
    times = [np.where(of(each), each.step_time, np.inf) for each in scored]
    part = min(range(len(scored)), key=lambda number: float(times[number].min()))
    return scored[part], int(np.argmin(times[part]))
