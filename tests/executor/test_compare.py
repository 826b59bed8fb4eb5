"""The comparison splits a step without losing seconds, and calls what it sees."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from costmodel.family import compiled_family
from costmodel.prediction import DATA_PARALLEL, PIPELINE
from costmodel.timeline import CORRECTION, IN_PIPELINE
from executor.compare import AS_PREDICTED, Row, compare, phases_predicted, verdict
from executor.term_phases import WAITING, phases_of

FAMILIES = (
    {"attention", "mlp"},
    {"mla", "experts", "mtp", "shared", "mlp"},
    {"attention", "mamba", "mlp"},
    {"attention", "experts", "delta", "shared"},
)


def leaves_of(features: set[str]) -> set[str]:
    """Leaves of the time tree of a family."""

    def below(term) -> list[str]:
        return [name for part in term.parts for name in below(part)] if term.parts else [term.name]

    return set(below(compiled_family(frozenset(features)).trees["step_time"]))


# Seen by a run in no phase apart.
REST = {"length_variance", "offload", "step_fixed", "straggler_time"}
LEAVES = sorted(leaves_of(FAMILIES[1]) - REST)
seconds = st.floats(0, 100)
positive = st.floats(1e-3, 100)


def prediction(terms: dict[str, float], rest: float = 0.0) -> dict:
    """The parts of `predict --json` that a comparison reads."""
    parts = [{"name": name, "seconds": value, "parts": []} for name, value in terms.items()]
    parts.append({"name": "step_overhead", "seconds": rest, "parts": []})
    step = sum(part["seconds"] for part in parts)
    return {
        "step_time_s": step,
        "tokens_per_second_per_gpu": 1000.0,
        "interval": {"low": 0.9 * step, "high": 1.1 * step},
        "memory": {"worst_rank_gib": 1.0},
        "terms": {"name": "step_time", "seconds": step, "parts": parts},
    }


def measurement(step: float, **phases: float) -> dict:
    """What a run measured."""
    return {
        "step_time_s": step,
        "tokens_per_second_per_gpu": 900.0,
        "phases": phases,
        "peak_memory_bytes": [2**29, 2**30],
    }


def test_every_term_of_every_family_has_its_phase():
    for features in FAMILIES:
        for leaf in leaves_of(features):
            shares = phases_of(leaf)
            assert math.isclose(sum(shares.values()), leaf not in REST), leaf


def test_the_correction_of_the_schedule_is_a_wait_everywhere():
    assert {CORRECTION, *IN_PIPELINE} <= set(PIPELINE)
    assert set(WAITING) == {*PIPELINE, *DATA_PARALLEL}
    assert phases_of(CORRECTION) == {"communication": 1.0}


@given(st.fixed_dictionaries(dict.fromkeys(LEAVES, seconds)))
def test_phases_hold_every_second_of_their_terms(terms):
    assert math.isclose(sum(phases_predicted(terms).values()), sum(terms.values()), abs_tol=1e-9)


@given(st.fixed_dictionaries(dict.fromkeys(LEAVES, seconds)), positive, seconds, seconds, seconds)
def test_rows_in_seconds_sum_to_the_step(terms, rest, others, forward, backward):
    step = forward + backward + others + 1.0
    rows = compare(prediction(terms, rest), measurement(step, forward=forward, backward=backward))
    parts = [row for row in rows if row.unit == "s" and row.name != "step time"]
    assert math.isclose(sum(row.predicted for row in parts), rows[0].predicted, abs_tol=1e-6)
    assert math.isclose(sum(row.measured for row in parts), step, abs_tol=1e-6)


def test_medians_that_do_not_add_up_leave_nothing_negative():
    rows = {
        row.name: row for row in compare(prediction({"forward_linear": 1.0}), measurement(1.0, forward=1.1))
    }
    assert rows["everything else"].measured == 0.0


def test_the_worst_rank_is_compared():
    rows = {row.name: row for row in compare(prediction({"forward_linear": 1.0}), measurement(1.0))}
    memory = rows["memory of the worst rank"]
    assert (memory.predicted, memory.measured, memory.ratio) == (2**30, 2**30, 1.0)


@given(positive, st.floats(0.01, 3))
def test_verdict_names_the_side(predicted, ratio):
    text = verdict(predicted, predicted * ratio)
    if abs(ratio - 1) < AS_PREDICTED - 1e-9:
        assert text == "as predicted"
    elif abs(ratio - 1) > AS_PREDICTED + 1e-9:
        assert math.isclose(float(text.split()[0]), ratio, abs_tol=0.005 + 1e-9)
        assert ("x predicted" in text) == (ratio > 1)


@given(positive, positive, positive)
def test_verdict_of_an_interval(low, width, measured):
    text = verdict(low, measured, low, low + width)
    expected = "inside" if low <= measured <= low + width else "slower" if measured > low else "quicker"
    assert text.startswith(expected)


def test_what_was_not_predicted_is_said():
    assert verdict(0.0, 1.0) == "not predicted"
    assert verdict(0.0, 0.0) == "as predicted"


def test_a_row_that_was_not_predicted_is_json():
    """One rank sends nothing: its communication is predicted as 0, and JSON knows no infinite ratio."""
    record = Row("communication and waiting", 0.0, 0.1, "s", "not predicted").to_dict()
    assert record["ratio"] is None
    json.dumps(record, allow_nan=False)
