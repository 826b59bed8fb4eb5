"""The step with its pipeline replayed: more work on a stage never makes it faster, its bound is below it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from family_cases import unjudged
from hypothesis import given, settings
from hypothesis import strategies as st
from law_cases import B200, GENTLE

import hardware_db
from costmodel.family import compiled_family
from costmodel.model_registry import load_model
from costmodel.passes import chunk_times, pipeline_arguments
from costmodel.plan import Plan
from costmodel.prediction import Prediction
from costmodel.simulate import REPEATED_SHORT, SIMULATED_ROUNDS
from costmodel.simulated_pipeline import least_correction, schedule_correction, without_slack
from costmodel.workload import Workload

NAMES = {"Min": min, "Max": max, "log": math.log, "ceiling": math.ceil}
# What only the first stage has, and only the last.
ENDS = ("embedding_time", "loss_time")
# What an end has more or less than the stages between, often little, and what is added, in those for one micro-batch.
SHARES, MORE = st.floats(-0.01, 0.02) | st.floats(-0.3, 0.4), st.floats(0, 0.05)
# As the search finds it, with CUDA graphs: no stage waits for the host.
KIMI = Plan(
    ep=64,
    dp=64,
    pp=8,
    vpp=2,
    precision="fp8-cs",
    pipeline_layout="balanced",
    moe_dispatcher="hybridep",
    overlap_moe_comm=True,
    delay_wgrad=True,
    cuda_graph=True,
)


@cache
def predicted(pp: int, vpp: int, dp: int, rounds: int) -> Prediction:
    load = Workload(4096, rounds * pp * dp)
    return unjudged(load_model("llama3-8b"), load, B200, Plan(pp=pp, vpp=vpp, dp=dp))


@cache
def formulas(features: frozenset[str]) -> dict[str, CodeType]:
    """Every entry of the ledger in order, compiled."""
    texts = compiled_family(features).expressions()
    return {name: compile(text, name, "eval") for name, text in texts.items()}


def changed(prediction: Prediction, added: dict[str, float], **inputs: float) -> Any:
    """The prediction with seconds added to some entries and other inputs, everything after them taken anew."""
    values = prediction.values | inputs
    for name, code in formulas(prediction.features).items():
        values[name] = eval(code, dict(NAMES), values) + added.get(name, 0.0)
    given = {name: getattr(prediction, name) for name in ("model", "workload", "plan")}
    return SimpleNamespace(values=values, **given)


def ends(prediction: Prediction, *shares: float) -> dict[str, float]:
    """What is added to the entries ENDS so that the ends have these shares of a stage more than those between. [s]"""
    values, stage = prediction.values, prediction.values["pace_stage_time"]
    now = (values["first_stage_time"], values["last_stage_time"])
    return {
        name: (1 + share) * stage - seconds for name, share, seconds in zip(ENDS, shares, now, strict=True)
    }


def step_time(prediction: Any) -> float:
    found: float = prediction.values["step_time"] + schedule_correction(prediction)
    return found


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Prediction, float]:
    """A pipeline of 32 layers, and how late its slowest rank is for each doubling of the ranks."""
    pp = draw(st.sampled_from([2, 4, 8]))
    vpp = draw(st.sampled_from([1, 2, 4]))
    dp, rounds = draw(st.sampled_from([1, 8, 64])), draw(st.integers(1, SIMULATED_ROUNDS))
    return predicted(pp, vpp, dp, rounds), draw(st.floats(0, 0.03))


@settings(GENTLE, max_examples=200)
@given(pipelines(), SHARES, SHARES, st.sampled_from(ENDS), MORE)
def test_more_work_on_one_stage_never_makes_the_step_faster(case, first, last, end, more):
    prediction, straggler = case
    stage = prediction.values["pace_stage_time"]
    added = ends(prediction, first, last)
    before = changed(prediction, added, straggler=straggler)
    after = changed(prediction, added | {end: added[end] + more * stage}, straggler=straggler)
    assert after.values["step_time"] >= before.values["step_time"] * (1 - 1e-12)
    assert step_time(after) >= step_time(before) * (1 - 1e-12)


@GENTLE
@given(pipelines(), SHARES, SHARES, MORE)
def test_more_work_on_every_stage_never_makes_the_step_faster(case, first, last, more):
    prediction, straggler = case
    stage = prediction.values["pace_stage_time"]
    layer = more * stage / prediction.values["attention_pace"]
    added = ends(prediction, first, last)
    before = changed(prediction, added, straggler=straggler)
    after = changed(prediction, added | {"attention_time": layer}, straggler=straggler)
    assert step_time(after) >= step_time(before) * (1 - 1e-12)


@GENTLE
@given(pipelines(), SHARES, SHARES)
def test_the_bound_of_a_correction_is_below_it(case, first, last):
    prediction, straggler = case
    found = changed(prediction, ends(prediction, first, last), straggler=straggler)
    assert least_correction(found) <= schedule_correction(found) + 1e-12


@pytest.mark.parametrize("rounds", [1, SIMULATED_ROUNDS, 4 * SIMULATED_ROUNDS])
def test_recompute_of_a_dense_layer_gains_no_time(rounds):
    """Kimi K2 has one, on the first of eight stages, which it makes the slowest: that once gained 1 %."""
    gb200 = hardware_db.resolve("gb200", None)[0]
    load, model = Workload(4096, rounds * 8 * 64), load_model("kimi-k2")
    modules = {"recompute": "selective", "recompute_modules": ("mlp",)}
    kept, repeated = (unjudged(model, load, gb200, replace(KIMI, **more)) for more in ({}, modules))
    assert repeated.values["stage_slack"] > kept.values["stage_slack"]
    assert step_time(repeated) >= step_time(kept) * (1 - 1e-12)


@GENTLE
@given(pipelines(), SHARES, SHARES)
def test_the_pipeline_without_slack_has_ends_no_longer_than_the_others(case, first, last):
    prediction, _ = case
    found = changed(prediction, ends(prediction, first, last))
    arguments = without_slack(found, pipeline_arguments(found))
    slowest = found.values["slowest_stage_time"] - found.values["stage_slack"]
    before = [sum(ahead) + sum(behind) for ahead, behind in zip(*chunk_times(found), strict=True)]
    after = [
        sum(ahead) + sum(behind)
        for ahead, behind in zip(arguments["forward"], arguments["backward"], strict=True)
    ]
    assert after == pytest.approx([min(seconds, slowest) for seconds in before])


def test_the_bound_leaves_room_for_rounds_that_are_repeated():
    prediction = predicted(4, 2, 8, 4 * SIMULATED_ROUNDS)
    gap = schedule_correction(prediction) - least_correction(prediction)
    assert 0 <= gap <= 2 * REPEATED_SHORT * prediction.step_time_s
