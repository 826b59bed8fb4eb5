"""The local quantile of errors: what an interval must cover where runs near a question are weighted most.

Local quantiles of held-out errors: Y. Romano et al., NeurIPS 2019, arXiv:1905.03222; kernel weights: L. Guan,
Biometrika 110 (2023), arXiv:2106.08460.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEVEL = 0.9  # of the interval
# Runs that the local quantile rests on at least (effective number), and the least width of its kernel.
LEAST_RUNS = 40.0
LEAST_WIDTH = 0.4


def local_quantile(distances: Numbers, errors: Numbers, weights: Numbers) -> float:
    """The LEVEL quantile of errors with weights exp(-distance / width) times the runs' own. [log]

    The width is the least at which the effective number of runs, (sum w)^2 / sum w^2, reaches LEAST_RUNS. Weights
    are of distances over the nearest, so that the quantile does not change when all runs are further away.

    References
    ----------
    Effective number: L. Kish, Survey Sampling, 1965.
    """
    finite = np.isfinite(distances)
    away = distances[finite] - distances[finite].min()
    errors, weights = errors[finite], weights[finite]
    low, high = math.log(LEAST_WIDTH), math.log(32.0)
    if _effective(weights * np.exp(-away / LEAST_WIDTH)) < LEAST_RUNS:
        for _ in range(12):
            middle = (low + high) / 2
            enough = _effective(weights * np.exp(-away / math.exp(middle))) >= LEAST_RUNS
            low, high = (low, middle) if enough else (middle, high)
        weights = weights * np.exp(-away / math.exp(high))
    else:
        weights = weights * np.exp(-away / LEAST_WIDTH)
    order = np.argsort(errors)
    share = np.cumsum(weights[order])
    number = _effective(weights)
    wanted = min(1.0, LEVEL * (1 + 1 / number)) * share[-1]
    return float(errors[order][min(int(np.searchsorted(share, wanted)), len(order) - 1)])


def _effective(weights: Numbers) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum())
