"""How far the step time may be off because the step constants are not known exactly.

The first-order law of error propagation: var(log t) = g' C g, g the derivatives of log t by the logarithms of the
constants that the plan uses, C their covariance as the fit wrote it. Constants that no published run determines count
with the width of their prior, on their own. Hosts of one kind are not alike: `HOST_SCATTER`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.compiled import CompiledModel
from costmodel.step_constants import NOT_FITTED, STEP_FILE, prior_of

COVARIANCE_FILE = STEP_FILE.with_name("step_covariance.csv")
# Standard deviation of a host's speed in issuing kernels between nodes of one kind and days. [log]
# Source: Megatron-LM's functional tests (shared functional_tests.csv), the same configuration run again: iterations of
# small models scatter by 0.21 on H100, 0.17 on A100 and 0.08 on GB200, of which the host is 0.52, 0.33 and 0.63; mean
# of the three ratios over 54 configurations.
HOST_SCATTER = 0.33
STEP = 1e-3  # of the finite differences, in log space

Numbers = NDArray[np.float64]


@lru_cache(maxsize=2)
def load_covariance(path: Path = COVARIANCE_FILE) -> tuple[dict[str, int], Numbers]:
    """Places of the fitted constants (`name/key`), and the covariance of their logarithms; empty before a fit."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(line for line in file if not line.startswith("#")))
    except FileNotFoundError:
        return {}, np.zeros((0, 0))
    lower = np.zeros((len(rows), len(rows)))
    for index, row in enumerate(rows):
        lower[index, : index + 1] = [float(number) for number in row[1:]]
    return {row[0]: index for index, row in enumerate(rows)}, lower + np.tril(lower, -1).T


def save_covariance(
    names: Sequence[str], covariance: Numbers, header: str, path: Path = COVARIANCE_FILE
) -> None:
    """Write a covariance as its lower triangle: a constant a line, its name first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("".join(f"# {line}\n" for line in header.splitlines()))
        writer = csv.writer(file, lineterminator="\n")
        for index, name in enumerate(names):
            writer.writerow([name, *(f"{number:.2e}" for number in covariance[index, : index + 1])])


def sensitivities(
    compiled: CompiledModel, numbers: Mapping[str, Any], symbols_of: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """d log(step time) / d log(constant) of each constant; symbols_of: the inputs that it sets. [1]"""
    changed = {
        symbol: np.full(len(symbols_of) + 1, float(numbers[symbol]))
        for own in symbols_of.values()
        for symbol in own
    }
    for index, symbols in enumerate(symbols_of.values(), start=1):
        for symbol in symbols:
            changed[symbol][index] *= math.exp(STEP)
    # One number where none of the constants moves the step.
    times = np.log(
        np.broadcast_to(compiled.search(dict(numbers) | changed)["step_time"], len(symbols_of) + 1)
    )
    return dict(zip(symbols_of, (times[1:] - times[0]) / STEP, strict=True))


def parameter_spread(
    compiled: CompiledModel, numbers: Mapping[str, Any], keys: Mapping[str, str], sources: Mapping[str, str]
) -> float:
    """Standard deviation of log(step time) that the constants leave. [1]

    numbers: of every input. keys: input symbol to constant (`costmodel.step_constants.parameter_keys`); sources: where
    each number was read: constants that the user measured count as known.
    """
    symbols_of: dict[str, list[str]] = {}
    for symbol, key in keys.items():
        ours = sources[symbol].startswith(("hardware_db/calibrated/step.toml", "costmodel/step_constants.py"))
        if ours and key.partition("/")[0] not in NOT_FITTED:
            symbols_of.setdefault(key, []).append(symbol)
    if not symbols_of:
        return 0.0
    slopes = sensitivities(compiled, numbers, symbols_of)
    places, covariance = load_covariance()
    fitted = {places[key]: slope for key, slope in slopes.items() if key in places}
    chosen, slope = list(fitted), np.array(list(fitted.values()))
    variance = float(slope @ covariance[np.ix_(chosen, chosen)] @ slope) if chosen else 0.0
    guessed = sum((slopes[key] * prior_of(key).width) ** 2 for key in slopes if key not in places)
    host = sum(slope for key, slope in slopes.items() if key.startswith("host_kernel/"))
    return math.sqrt(max(variance, 0.0) + guessed + (host * HOST_SCATTER) ** 2)
