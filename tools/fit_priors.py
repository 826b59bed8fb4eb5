"""What is believed of the step constants before any run: values, widths, and how much one tells of another.

Each constant keeps its own prior (`costmodel.step_constants.PRIORS`); the correlations say that GPU generations,
number formats and frameworks are alike, and that a release is like the one before it. So a generation without
runs takes what the others show, and a release between two others lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.stack import families, released
from costmodel.step_constants import (
    LAUNCHED,
    SHARED_KEYS,
    key_parts,
    prior_of,
    release_key,
    usual_key,
)


@dataclass(frozen=True)
class Kinship:
    """How much one constant tells of another before any run: correlations. [1]

    Held to what runs left out of the fit miss by `tools/weigh_priors.py`.
    """

    # With the same constant of another generation or framework, and of a generation of the same architecture; with
    # that of another format or attention kernel where all else is equal.
    alike: float = 0.5
    same_architecture: float = 0.8
    other_format: float = 0.7
    # Releases: it falls by e within this time [months]; what another generation's, another framework's release tell.
    release_months: float = 12.0
    other_generation: float = 0.5
    other_framework: float = 0.8


KINSHIP = Kinship()


@dataclass(frozen=True)
class Believed:
    """Log of the constants before any run: centre, bounds, and the root of the inverse covariance."""

    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray
    root: np.ndarray

    def off(self, point: np.ndarray) -> np.ndarray:
        """Deviations of `point` from the priors, independent and in widths."""
        return np.asarray(self.root @ (point - self.centre))


@lru_cache(maxsize=4)
def _believed(
    parameters: tuple[str, ...], kinship: Kinship, widths: tuple[tuple[str, float], ...]
) -> Believed:
    priors = [prior_of(name) for name in parameters]
    wider = dict(widths)
    width = np.array(
        [
            prior.width * wider.get(name.partition("/")[0], 1.0)
            for name, prior in zip(parameters, priors, strict=True)
        ]
    )
    alike = np.array([[correlation(one, other, kinship) for other in parameters] for one in parameters])
    covariance = width[:, None] * alike * width[None, :]
    return Believed(
        np.log([prior.value for prior in priors]),
        np.log([prior.low for prior in priors]),
        np.log([prior.high for prior in priors]),
        np.linalg.inv(np.linalg.cholesky(covariance)),
    )


def believed(
    parameters: list[str], kinship: Kinship = KINSHIP, widths: Mapping[str, float] | None = None
) -> Believed:
    """The priors of some constants, `name/key` each. widths: constant -> how many times as wide its priors are."""
    return _believed(tuple(parameters), kinship, tuple((widths or {}).items()))


def correlation(one: str, other: str, kinship: Kinship = KINSHIP) -> float:
    """Correlation of two constants before any run: a sum or product of kernels over what their keys share. [1]"""
    if one == other:
        return 1.0
    name, _, key = one.partition("/")
    other_name, _, other_key = other.partition("/")
    if name != other_name:
        return 0.0
    if name == "release_rate":
        return _releases(key, other_key, kinship)
    first, second = key_parts(key)
    other_first, other_second = key_parts(other_key)
    return _alike(first, other_first, kinship) * (1.0 if second == other_second else kinship.other_format)


def _alike(one: str, other: str, kinship: Kinship) -> float:
    """Of two generations or frameworks. [1]"""
    if one == other:
        return 1.0
    same = one.partition("-")[0] == other.partition("-")[0]
    return kinship.same_architecture if same else kinship.alike


def _releases(key: str, other: str, kinship: Kinship) -> float:
    """family-yy.mm-generation, or family-generation where no release is known."""
    family, release, generation = release_key(key)
    other_family, other_release, other_generation = release_key(other)
    if not release or not other_release:
        return 0.0
    apart = abs(released(release) - released(other_release)) / kinship.release_months
    generations = 1.0 if generation == other_generation else kinship.other_generation
    return math.exp(-apart) * generations * (1.0 if family == other_family else kinship.other_framework)


def unseen_releases(parameters: list[str], point: np.ndarray) -> dict[str, float]:
    """Release rates of frameworks without a run on a generation, at their newest release, given the fitted ones. [1]"""
    known = believed(parameters)
    solved = known.root.T @ known.off(point)
    found: dict[str, float] = {}
    for family, entry in families().items():
        for generation in LAUNCHED:
            prefix, suffix = f"release_rate/{family}-", f"-{generation}"
            if not entry["releases"] or any(
                each.startswith(prefix) and each.endswith(suffix) for each in parameters
            ):
                continue
            new = f"{prefix}{entry.get('newest', entry['releases'][-1])}{suffix}"
            found[new] = _expected(new, parameters, solved)
    return found


def _expected(new: str, parameters: list[str], solved: np.ndarray) -> float:
    """Mean of a constant's prior given the others; solved: inverse covariance times their deviations."""
    prior = prior_of(new)
    shared = np.array([correlation(new, each) * prior.width * prior_of(each).width for each in parameters])
    return float(np.clip(math.exp(math.log(prior.value) + float(shared @ solved)), prior.low, prior.high))


def usual(parameters: list[str], point: np.ndarray) -> dict[str, float]:
    """For every constant's name, and second part of its key, what a key without runs is expected to have.

    The mean of the priors given the fitted constants. Keys: "name/other" or "name/other-fp8".
    """
    known = believed(parameters)
    solved = known.root.T @ known.off(point)
    found: dict[str, float] = {}
    for parameter in parameters:
        name, _, key = parameter.partition("/")
        if name == "release_rate":
            continue  # see unseen_releases; one between others takes its nearest one's
        if key in SHARED_KEYS:
            continue
        new = f"{name}/{usual_key(key)}"
        if new not in found:
            found[new] = _expected(new, parameters, solved)
    return found
