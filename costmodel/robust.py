"""Robust least squares with beliefs: what fits of step constants, kernel tables and calibrations share.

Residuals are logarithms of predicted over measured. Small ones count as squares, large ones as their size
(pseudo-Huber), so that a slow repeat or a wrong row pulls no harder than a good one. Beliefs before any measurement
are normal in the logarithms of the constants, so that constants no measurement moves stay where physics puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

OUTLIER = 0.05  # residuals beyond about this count less and less
STEP = 1e-4  # of the finite differences, in log space
# Levenberg-Marquardt: trials of one run, factor of the damping, change of the cost at which it ends.
TRIALS, DAMPING, ENOUGH = 200, 4.0, 1e-10


def robust(error: Numbers) -> Numbers:
    """Residuals whose squares are pseudo-Huber losses of `error`, in units of OUTLIER. [1]

    sign(e) sqrt(2 (sqrt(1 + e^2) - 1)). Source: R. Hartley and A. Zisserman, Multiple View Geometry, app. 6.8.
    """
    result: Numbers = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
    return result


def robust_slope(error: Numbers) -> Numbers:
    """Derivative of `robust`: |e| / (sqrt(1 + e^2) robust(e)), 1 at zero. [1]"""
    root = np.sqrt(1 + error**2)
    size = np.sqrt(2 * (root - 1))
    result: Numbers = np.where(size > 1e-6, np.abs(error) / np.maximum(root * size, 1e-12), 1.0)
    return result


@dataclass(frozen=True)
class Belief:
    """A positive constant before any measurement: value, relative width (one standard deviation of its log), bounds."""

    value: float
    width: float
    low: float = 1e-30
    high: float = 1e30


@dataclass(frozen=True)
class Fitted:
    """Constants, the standard errors of their logarithms, and residuals at the optimum."""

    values: Numbers
    errors: Numbers
    residuals: Numbers


def fit(
    residuals: Callable[[Numbers], Numbers],
    beliefs: Sequence[Belief],
    outlier: float = OUTLIER,
    start: Sequence[float] | None = None,
    trials: int = TRIALS,
) -> Fitted:
    """The constants that measurements and beliefs determine together.

    residuals(values) gives weighted log(predicted / measured) of values in rows, one set a column: (constants, sets) to
    (measurements, sets). outlier: the size from which one is no more small; errors take it for the scatter. start: a
    point near the optimum, from which few steps (trials) find it.
    """
    centre = np.log([belief.value for belief in beliefs])
    width = np.array([belief.width for belief in beliefs])
    low = np.log([belief.low for belief in beliefs])
    high = np.log([belief.high for belief in beliefs])

    def linearised(point: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        moved = np.column_stack([point, point[:, None] + STEP * np.eye(len(point))])
        every = residuals(np.exp(moved))
        raw = every[:, 0]
        slope = (every[:, 1:] - raw[:, None]) / STEP
        value = np.concatenate([robust(raw / outlier), (point - centre) / width])
        weights = robust_slope(raw / outlier) / outlier
        return value, np.vstack([weights[:, None] * slope, np.diag(1 / width)]), raw

    def cost(point: Numbers) -> float:
        raw = residuals(np.exp(point[:, None]))[:, 0]
        whole = np.concatenate([robust(raw / outlier), (point - centre) / width])
        return float(whole @ whole)

    point = np.clip(centre if start is None else np.log(start), low, high)
    damping, best = 1e-3, cost(point)
    value, slope, raw = linearised(point)
    for _ in range(trials):
        square = slope.T @ slope
        step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slope.T @ value)
        trial = np.clip(point + np.clip(step, -2, 2), low, high)
        found = cost(trial)
        if found < best:
            gained, point, best, damping = best - found, trial, found, damping / DAMPING
            value, slope, raw = linearised(point)
            if gained < ENOUGH * max(best, ENOUGH):
                break
        elif damping > 1e12:
            break
        else:
            damping *= DAMPING
    errors = np.sqrt(np.diag(np.linalg.pinv(slope.T @ slope)))
    return Fitted(np.exp(point), errors, raw)
