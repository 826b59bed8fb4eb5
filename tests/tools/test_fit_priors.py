"""Priors of the step constants: each keeps its own, and what others of its kind show moves one without runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)

import fit_priors  # noqa: E402

from costmodel.step_constants import PRIORS, fitted, key_parts, prior_of, usual_key  # noqa: E402

NAMES = [
    "gemm_rate/hopper-fp8",
    "gemm_rate/hopper-bf16",
    "gemm_rate/blackwell-fp8",
    "gemm_rate/blackwell-ultra-fp8",
    "release_rate/nemo-25.02-hopper",
    "release_rate/nemo-25.04-hopper",
    "release_rate/nemo-25.04-blackwell-ultra",
    "release_rate/mcore-25.04-hopper",
    "straggler/nemo",
    "straggler/mcore",
]


def test_every_constant_on_file_is_one_that_formulas_have():
    """A constant under a name that it had before is read by nothing: answers took the prior, and said nothing of it."""
    assert fitted().keys() - PRIORS.keys() == {"fit"}


def everything_on_file() -> list[str]:
    return [
        f"{name}/{key}"
        for name, records in fitted().items()
        if name in PRIORS
        for key in records
        if not key.startswith("other")
    ]


@pytest.mark.parametrize("names", [NAMES, everything_on_file()], ids=["some", "all on file"])
def test_each_constant_keeps_its_own_prior(names):
    """The inverse covariance has the priors' widths as its margins."""
    found = fit_priors.believed(names)
    covariance = np.linalg.inv(found.root.T @ found.root)
    assert np.sqrt(np.diag(covariance)) == pytest.approx([prior_of(name).width for name in names])
    assert np.abs(found.off(found.centre)).max() == 0


def test_who_is_alike():
    of = fit_priors.correlation
    assert of("gemm_rate/hopper-fp8", "attention_rate/hopper-cudnn") == 0
    nearest_first = [
        of("gemm_rate/blackwell-fp8", "gemm_rate/blackwell-fp8"),
        of("gemm_rate/blackwell-fp8", "gemm_rate/blackwell-ultra-fp8"),
        of("gemm_rate/blackwell-fp8", "gemm_rate/hopper-fp8"),
        of("gemm_rate/blackwell-fp8", "gemm_rate/hopper-bf16"),
    ]
    assert nearest_first == sorted(nearest_first, reverse=True)
    assert len(set(nearest_first)) == 4
    near = of("release_rate/nemo-25.02-hopper", "release_rate/nemo-25.04-hopper")
    far = of("release_rate/nemo-25.02-hopper", "release_rate/nemo-26.06-hopper")
    assert 1 > near > far > 0
    another = of("release_rate/nemo-25.04-hopper", "release_rate/mcore-25.04-hopper")
    assert near > another > of("release_rate/nemo-25.04-hopper", "release_rate/mcore-25.04-blackwell") > 0


def test_a_generation_without_runs_takes_what_the_others_show():
    """All others a width above their priors: it is expected part of a width above its own, and never more."""
    names = [f"elementwise_rate/{generation}" for generation in ("ampere", "hopper", "blackwell")]
    prior = PRIORS["elementwise_rate"]
    usual = fit_priors.usual(names, np.log(np.full(3, prior.value)) + prior.width)
    off = np.log(usual["elementwise_rate/other"] / prior.value) / prior.width
    assert 0.5 < off < 1
    one = fit_priors.usual(names[:1], np.log([prior.value]) + prior.width)
    assert np.log(one["elementwise_rate/other"] / prior.value) / prior.width < off


def test_a_framework_without_runs_on_a_generation_takes_what_others_show_there():
    """Others' releases lie below their priors: so does its newest, by less."""
    names = [f"release_rate/nemo-{release}-blackwell" for release in ("26.02", "26.04", "26.06")]
    below = np.log([prior_of(name).value for name in names]) - 2 * prior_of(names[0]).width
    found = fit_priors.unseen_releases(names, below)
    assert not any(key.startswith("release_rate/nemo-") and key.endswith("-blackwell") for key in found)
    off = np.log(
        found["release_rate/automodel-26.04-blackwell"]
        / prior_of("release_rate/automodel-26.04-blackwell").value
    )
    assert -2 * prior_of(names[0]).width < off < 0


def test_keys():
    assert key_parts("blackwell-ultra-fp8-block") == ("blackwell-ultra", "fp8-block")
    assert key_parts("hopper") == ("hopper", "")
    assert key_parts("llm_foundry") == ("llm_foundry", "")
    assert usual_key("cdna3-bf16") == "other-bf16"
    assert usual_key("cdna3") == "other"


def test_other_beliefs_change_what_they_name_alone():
    """Wider priors of one constant widen its margins; a kinship of 0 makes its pairs strangers."""
    names = [*NAMES[:4], "straggler/nemo"]
    found = fit_priors.believed(names, widths={"gemm_rate": 2.0})
    margins = np.sqrt(np.diag(np.linalg.inv(found.root.T @ found.root)))
    assert margins[:4] == pytest.approx([2 * prior_of(name).width for name in names[:4]])
    assert margins[4] == pytest.approx(prior_of("straggler/nemo").width)
    strangers = fit_priors.Kinship(other_framework=0.0)
    pair = ("release_rate/nemo-25.04-hopper", "release_rate/mcore-25.04-hopper")
    assert fit_priors.correlation(*pair, strangers) == 0 < fit_priors.correlation(*pair)
