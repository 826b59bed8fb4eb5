"""The robust fit of step constants, and what it predicts for runs that were left out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fit_cases import StackedCases
from fit_priors import Believed, believed
from scipy.optimize import least_squares

from costmodel.robust import STEP, robust, robust_slope
from costmodel.step_constants import PRIORS

# Residuals (log) beyond KNEE count as their size, no longer as squares: published runs repeat to 2 or 3 %, and absolute
# errors are what predictions are judged by. A row off by SPREAD weighs as much as a constant one width off its prior.
# Both chosen by what models and releases left out miss: 5.60 % (median 3.38) and 6.25 % (4.04), and with 0.05 for both
# 5.63 (3.51) and 6.35 (4.22).
KNEE, SPREAD = 0.02, 0.036
PRIOR_WEIGHT = 1.0  # of the deviations from the priors, in widths
# Of a fit without a group; constants that move by less than NEAR (log) need no further linearisation.
REWEIGHTINGS, LINEARISATIONS, NEAR = 12, 5, 0.3
# Below the host-bound regime host_kernel moves nothing, so the search begins well inside it, also where an earlier
# fit left it at its prior.
HOST_BOUND_START, UNMOVED = 40e-6, 0.1


@dataclass
class Fit:
    """Constants in log space with their standard errors; raw residuals and their derivatives at the optimum.

    freedom: how many constants without priors they are worth, the trace of the rows' share in what determines them.
    """

    parameters: list[str]
    point: np.ndarray
    errors: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    covariance: np.ndarray
    freedom: float

    @property
    def values(self) -> np.ndarray:
        """The constants themselves."""
        return np.exp(self.point)


def colours(stack: StackedCases, parameters: Sequence[str]) -> list[list[int]]:
    """Constants in groups that move disjoint rows: one evaluation differentiates by a whole group."""
    groups: list[tuple[np.ndarray, list[int]]] = []
    for index, name in enumerate(parameters):
        mask = stack.mask(name)
        for taken, members in groups:
            if not (taken & mask).any():
                taken |= mask
                members.append(index)
                break
        else:
            groups.append((mask.copy(), [index]))
    return [members for _, members in groups]


def jacobian(
    stack: StackedCases, parameters: list[str], point: np.ndarray, groups: list[list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Residuals and their derivatives by the logarithms of the constants."""
    base = stack.residuals(parameters, np.exp(point))
    result = np.zeros((len(base), len(parameters)))
    for members in groups:
        moved = point.copy()
        moved[members] += STEP
        change = (stack.residuals(parameters, np.exp(moved)) - base) / STEP
        for index in members:
            mask = stack.mask(parameters[index])
            result[mask, index] = change[mask]
    return base, result


def fit(stack: StackedCases, start: dict[str, float] | None = None, evaluations: int = 150) -> Fit:
    """The constants that the rows and the priors determine together."""
    parameters = list(stack.symbols_of)
    known = believed(parameters)
    given = dict(start or {})
    for name in parameters:
        prior = PRIORS["host_kernel"].value
        if name.startswith("host_kernel/") and abs(given.get(name, prior) / prior - 1) < UNMOVED:
            given[name] = HOST_BOUND_START
    begin = np.log(
        [given.get(name, np.exp(value)) for name, value in zip(parameters, known.centre, strict=True)]
    )
    groups = colours(stack, parameters)
    weights = stack.weights * KNEE / SPREAD

    def cost(point: np.ndarray) -> np.ndarray:
        error = stack.residuals(parameters, np.exp(point)) / KNEE
        return np.concatenate([weights * robust(error), PRIOR_WEIGHT * known.off(point)])

    def slope(point: np.ndarray) -> np.ndarray:
        base, raw = jacobian(stack, parameters, point, groups)
        rows = (weights * robust_slope(base / KNEE) / KNEE)[:, None] * raw
        return np.vstack([rows, PRIOR_WEIGHT * known.root])

    result = least_squares(
        cost,
        np.clip(begin, known.low + 1e-6, known.high - 1e-6),
        jac=slope,
        bounds=(known.low, known.high),
        method="trf",
        max_nfev=evaluations,
        ftol=1e-6,
        xtol=1e-6,
    )
    covariance = np.linalg.pinv(result.jac.T @ result.jac)
    scale = 2 * result.cost / max(1, len(result.fun) - len(parameters))
    base, raw = jacobian(stack, parameters, result.x, groups)
    freedom = len(parameters) - float(np.trace(PRIOR_WEIGHT**2 * known.root.T @ known.root @ covariance))
    errors = np.sqrt(np.diag(covariance) * scale)
    return Fit(parameters, result.x, errors, base, raw, covariance * scale, freedom)


def without(
    stack: StackedCases,
    whole: Fit,
    held: np.ndarray,
    known: Believed | None = None,
    linearisations: int = LINEARISATIONS,
) -> np.ndarray:
    """Constants in log space of a fit without the rows `held`, by reweighted least squares.

    The formulas are taken as linear in the logarithms, around the fit to all rows at first and then
    around what came of it, where that is not near. known: other priors than the fit's.
    """
    known = known or believed(whole.parameters)
    rows = ~held
    weights = stack.weights[rows] * KNEE / SPREAD
    prior = PRIOR_WEIGHT**2 * known.root.T @ known.root
    around, base, raw = whole.point, whole.residuals[rows], whole.jacobian[rows]
    point = around
    for again in reversed(range(linearisations)):
        for _ in range(REWEIGHTINGS):
            error = (base + raw @ (point - around)) / KNEE
            # pseudo-Huber as weights of a square: 1 / sqrt(1 + error^2)
            weight = weights**2 / np.sqrt(1 + error**2) / KNEE**2
            left = raw.T @ (weight[:, None] * raw) + prior
            right = -raw.T @ (weight * (base - raw @ around)) + prior @ known.centre
            point = np.clip(np.linalg.solve(left, right), known.low, known.high)
        if not again or np.abs(point - around).max() < NEAR:
            break
        # Half the way, for the formulas bend.
        around = (point + around) / 2
        base, raw = jacobian(stack, whole.parameters, around, colours(stack, whole.parameters))
        base, raw = base[rows], raw[rows]
    return point


def nearby(stack: StackedCases, whole: Fit, held: np.ndarray, known: Believed) -> np.ndarray:
    """log(predicted / measured) of every row by a fit without `held` under other priors, linear around `whole`.

    Some hundredths of a second. Not for rows without which a constant moves far, as the host's does where nothing else
    is bound by it.
    """
    moved = without(stack, whole, held, known, linearisations=1) - whole.point
    return np.asarray(whole.residuals + whole.jacobian @ moved)


def left_out(
    stack: StackedCases, whole: Fit, groups: Sequence[str], known: Believed | None = None
) -> np.ndarray:
    """log(predicted / measured) of each row when its group is left out of the fit.

    known: other priors than the fit's, under which formulas are taken as linear (see `nearby`).
    """
    labels = np.array(groups)
    errors = np.full(len(labels), np.nan)
    for label in sorted(set(groups)):
        held = labels == label
        if known is None:
            found = stack.residuals(whole.parameters, np.exp(without(stack, whole, held)))
        else:
            found = nearby(stack, whole, held, known)
        errors[held] = found[held]
    return errors
