"""Steady part of a log: laws of the median, and what is left out, found and told."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.logs.read import read_log
from executor.logs.record import Iteration, Log, Timer
from executor.logs.summary import spikes_by_timer, steady


def log_of(seconds, span=1, **marks):
    """A log with these times."""
    steps = [Iteration((number + 1) * span, value, span=span) for number, value in enumerate(seconds)]
    return Log("x", iterations=steps, marks=dict(marks))


@given(st.lists(st.floats(1.0, 1.05), min_size=20, max_size=60), st.floats(0.1, 1000.0))
def test_times_k_gives_times_k(values, k):
    one, other = steady(log_of(values)), steady(log_of([k * value for value in values]))
    assert other.seconds == pytest.approx(k * one.seconds)
    assert other.scatter == pytest.approx(one.scatter, abs=1e-9)
    assert other.spikes == one.spikes


def test_the_warm_up_is_left_out_and_told():
    found = steady(log_of([30.0, 5.0, 4.0, *[2.0] * 20]))
    assert found.left_out == {"warm-up": 3}
    assert (found.seconds, found.first, found.warmup_seconds) == (2.0, 4, 30.0)


def test_of_two_lines_the_second_counts():
    found = steady(log_of([30.0, 3.4]))
    assert (found.seconds, found.left_out) == (3.4, {"warm-up": 1})


def test_a_slow_half_is_no_warm_up():
    found = steady(log_of([3.0] * 20 + [2.0] * 20))
    assert found.left_out["warm-up"] <= 12
    assert found.num_lines >= 28


def test_steps_after_a_checkpoint_are_left_out_only_when_slow():
    values = [2.0] * 30
    values[10], values[20] = 5.0, 2.01
    found = steady(log_of(values, checkpoint=[10, 20]))
    assert found.left_out == {"warm-up": 1, "after checkpoint": 1}
    assert found.delays == {"checkpoint": 3.0}
    assert not found.spikes


def test_regular_spikes_have_a_period_and_a_price():
    values = [2.0 if step % 7 else 3.0 for step in range(1, 71)]
    found = steady(log_of(values))
    assert found.period == 7
    assert found.seconds == 2.0
    assert found.spike_loss == pytest.approx(10 / 70 * 0.5, rel=0.1)


def test_of_spikes_the_timer_of_the_same_steps_tells_its_share():
    log = log_of([2.0 if step % 7 else 3.0 for step in range(1, 71)])
    kept = steady(log)
    assert spikes_by_timer(log, kept, "batch-generator") == 0  # no timer at all
    log.timers["batch-generator"] = [Timer(step, None, 0.05 if step % 7 else 0.85) for step in range(1, 71)]
    assert spikes_by_timer(log, kept, "batch-generator") == pytest.approx(0.8)
    log.timers["batch-generator"] = [Timer(step, None, 0.05) for step in range(1, 71)]
    assert spikes_by_timer(log, kept, "batch-generator") == 0


def test_irregular_spikes_have_none():
    values = [2.0] * 60
    for at in (9, 13, 29, 31, 55):
        values[at] = 3.0
    assert steady(log_of(values)).period == 0
    assert len(steady(log_of(values)).spikes) == 5


@given(st.floats(0.05, 0.5), st.booleans())
def test_a_trend_is_found_with_its_sign(change, down):
    values = [2.0 * (1 + (-change if down else change) * step / 99) for step in range(100)]
    found = steady(log_of(values)).trend
    assert found.sure
    assert (found.change < 0) == down
    assert abs(found.change) == pytest.approx(change, rel=0.6)


def test_noise_is_no_trend():
    """At three standard deviations, and above two per cent of change, noise is hardly ever a trend."""
    found = 0
    for seed in range(100):
        dice = random.Random(seed)
        found += steady(log_of([dice.gauss(2.0, 0.05) for _ in range(60)])).trend.sure
    assert found <= 2


def test_no_times_at_all_is_an_error():
    with pytest.raises(ValueError, match="no step time"):
        steady(Log("x", iterations=[Iteration(1, None, loss=2.0)]))


def test_lines_without_a_time_are_left_out_and_told(tmp_path):
    """`nan` cost its whole line, and with it the step's lost loss; all of them were told as no iteration at all."""
    line = (
        " iteration {step}/ 100 | elapsed time per iteration (ms): {time} | lm loss: 2.0E+00 "
        "| number of nan iterations: {nan} |"
    )
    times = {3: "nan", 5: "inf", 6: "0.0", 7: "-4.0"}

    def log_with(steps):
        path = tmp_path / "t.log"
        path.write_text(
            "\n".join(
                line.format(step=step, time=times.get(step, "2000.0"), nan=int(step == 3)) for step in steps
            )
        )
        return read_log(path)

    log = log_with(range(1, 21))
    found = steady(log)
    assert len(log.iterations) == 20
    assert log.iterations[2].nan == 1
    assert found.left_out == {"warm-up": 1, "without a time": 4}
    assert found.seconds == 2.0
    with pytest.raises(ValueError, match="tells no step time on any of its 4 iteration lines"):
        steady(log_with(times))
