"""What the uncertainty of the step constants makes of a prediction."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hardware_db
from costmodel.binding import step_keys
from costmodel.family import compiled_family
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.step_constants import prior_of
from costmodel.uncertainty import (
    HOST_SCATTER,
    load_covariance,
    parameter_spread,
    save_covariance,
    sensitivities,
)
from costmodel.workload import Workload

LLAMA = load_model("llama3-8b")


@pytest.fixture(scope="module")
def case():
    """Compiled cost, numbers, keys and sources of one plan on H100."""
    cluster = hardware_db.load_cluster("dgx-h100")
    prediction = predict(LLAMA, Workload(8192, 64), cluster, Plan(dp=8))
    numbers = {name: value for name, value in prediction.values.items() if name != "parameter_spread"}
    return (
        compiled_family(prediction.features),
        numbers,
        step_keys(LLAMA, cluster, "bf16"),
        prediction.sources,
        prediction,
    )


def test_sensitivities_are_derivatives(case):
    """All rates k times faster and all latencies k times shorter: their slopes cannot sum to more than one."""
    compiled, numbers, keys, *_ = case
    symbols_of: dict[str, list[str]] = {}
    for symbol, key in keys.items():
        symbols_of.setdefault(key, []).append(symbol)
    slopes = sensitivities(compiled, numbers, symbols_of)
    gemm = slopes["gemm_rate/all-bf16"]
    assert -1 < gemm < -0.3  # linear layers are most of this step
    moved = dict(numbers)
    for symbol in symbols_of["gemm_rate/all-bf16"]:
        moved[symbol] *= 1.02
    change = math.log(compiled.search(moved)["step_time"] / compiled.search(dict(numbers))["step_time"])
    assert change == pytest.approx(gemm * math.log(1.02), rel=0.05)
    assert slopes["straggler/all"] > 0


def test_constants_that_move_nothing_have_no_slope(case):
    compiled, numbers, *_ = case
    assert sensitivities(
        compiled, dict(numbers) | {"expert_host": 30.0}, {"expert_host/x": ["expert_host"]}
    ) == {"expert_host/x": 0}


def test_the_law_of_error_propagation(case, monkeypatch):
    """With a planted covariance of two constants the spread is what the formula says."""
    compiled, numbers, keys, sources, _ = case
    one, other = "gemm_rate/all-bf16", "attention_rate/hopper-cudnn"
    fixed = [key for key in dict.fromkeys(keys.values()) if key not in (one, other)]
    covariance = np.zeros((len(fixed) + 2,) * 2)
    covariance[:2, :2] = [[0.04, -0.01], [-0.01, 0.09]]
    places = {key: index for index, key in enumerate([one, other, *fixed])}
    monkeypatch.setattr("costmodel.uncertainty.load_covariance", lambda: (places, covariance))
    symbols_of = {key: [symbol for symbol in keys if keys[symbol] == key] for key in (one, other)}
    slopes = sensitivities(compiled, numbers, symbols_of)
    wanted = math.sqrt(
        0.04 * slopes[one] ** 2 + 0.09 * slopes[other] ** 2 - 0.02 * slopes[one] * slopes[other]
    )
    assert parameter_spread(compiled, numbers, keys, sources) == pytest.approx(wanted)


def test_constants_that_the_user_measured_count_as_known(case):
    compiled, numbers, keys, sources, _ = case
    measured = dict.fromkeys(sources, "dgx-h100, step.linear_scale")
    assert parameter_spread(compiled, numbers, keys, measured) == 0


def test_constants_without_runs_count_with_their_priors(case):
    """An unknown generation leaves more to chance than a known one, and its interval is wider for that."""
    *_, known = case
    plan, workload = Plan(dp=8), Workload(8192, 64)
    unknown = predict(LLAMA, workload, hardware_db.load_cluster("mi300x-8"), plan)
    assert unknown.values["parameter_spread"] > 1.5 * known.values["parameter_spread"]
    assert unknown.values["parameter_spread"] >= 0.4 * prior_of("gemm_rate/cdna3-bf16").width
    assert known.interval_high / known.interval_low < unknown.interval_high / unknown.interval_low


def test_the_covariance_on_file_is_one():
    """Symmetric, of the constants of the fit, without negative variances of any mixture beyond its rounding."""
    places, covariance = load_covariance()
    assert "gemm_rate/all-bf16" in places
    assert covariance == pytest.approx(covariance.T)
    values = np.linalg.eigvalsh(covariance)
    assert values.min() > -0.02 * values.max()


def test_a_covariance_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "covariance.csv"
    written = np.array([[0.25, -0.125], [-0.125, 0.5]])
    save_covariance(["a/b", "c/d"], written, "one\ntwo", path)
    places, read = load_covariance(path)
    assert places == {"a/b": 0, "c/d": 1}
    assert read == pytest.approx(written)
    assert load_covariance(tmp_path / "none.csv")[0] == {}


def test_a_step_that_waits_for_the_host_is_as_uncertain_as_hosts_are():
    """Nodes of one kind issue kernels at speeds apart by HOST_SCATTER; a step of large kernels feels nothing of it."""
    cluster = hardware_db.load_cluster("dgx-h100")
    tiny = predict(load_model("gpt-h512-l12-a8"), Workload(1024, 32), cluster, Plan(dp=8, micro_batch=4))
    large = predict(LLAMA, Workload(8192, 64), cluster, Plan(dp=8))
    waits = tiny.values["host_bound"] / tiny.step_time_s
    assert waits > 0.2
    assert tiny.values["parameter_spread"] > waits * HOST_SCATTER
    assert large.values["host_bound"] == 0
    assert large.values["parameter_spread"] < 0.03
