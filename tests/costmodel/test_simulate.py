"""Laws of the event simulator: closed forms for equal stages, order, dependencies, memory in flight."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import schedule
from costmodel.simulate import (
    SIMULATED_ROUNDS,
    Replay,
    least_makespan,
    pipeline_makespan,
    simulate_pipeline,
)

times = st.floats(0.01, 10.0)
stages = st.integers(1, 6)
chunks = st.integers(1, 4)


@st.composite
def uneven_pipes(draw):
    """Random pipelines: (forward, backward, num_microbatches, send_time, overlap)."""
    pp, vpp = draw(stages), draw(chunks)
    if pp == 1:
        vpp = 1
    m = draw(st.integers(1, 12)) if vpp == 1 else pp * draw(st.integers(1, 3))
    table = st.lists(st.lists(times, min_size=vpp, max_size=vpp), min_size=pp, max_size=pp)
    return draw(table), draw(table), m, draw(st.floats(0, 3)), draw(st.booleans())


def equal(pp: int, vpp: int, seconds: float) -> list[list[float]]:
    return [[seconds / vpp] * vpp for _ in range(pp)]


@given(stages, chunks, st.integers(1, 5), times, times)
def test_equal_stages_give_the_closed_form(pp, vpp, rounds, forward, backward):
    vpp = 1 if pp == 1 else vpp
    m = pp * rounds
    line = simulate_pipeline(equal(pp, vpp, forward), equal(pp, vpp, backward), m)
    work = m * (forward + backward)
    assert line.makespan == pytest.approx(work + (pp - 1) * (forward + backward) / vpp)
    assert line.bubble / work == pytest.approx(schedule.bubble_over_ideal(pp, m, vpp))


@given(stages, st.integers(1, 20), times, times)
def test_plain_1f1b_closed_form_holds_for_any_number_of_microbatches(pp, m, forward, backward):
    line = simulate_pipeline(equal(pp, 1, forward), equal(pp, 1, backward), m)
    assert line.makespan == pytest.approx((m + pp - 1) * (forward + backward))


@given(uneven_pipes())
def test_no_step_is_shorter_than_its_busiest_stage_or_one_round_trip(pipe):
    forward, backward, m, send, _ = pipe
    line = simulate_pipeline(*pipe)
    trip = sum(map(sum, forward)) + sum(map(sum, backward))
    hops = 2 * (len(forward) * len(forward[0]) - 1) * send if len(forward) > 1 else 0.0
    assert line.makespan >= max(line.busy) * (1 - 1e-12)
    assert line.makespan >= (trip + hops) * (1 - 1e-12)
    assert line.makespan <= (m * trip + 2 * m * hops + 1e-9) * (1 + 1e-12)


@given(uneven_pipes())
def test_every_pass_runs_once_after_its_input_and_alone_on_its_stage(pipe):
    forward, backward, m, send, overlap = pipe
    pp, vpp = len(forward), len(forward[0])
    line = simulate_pipeline(*pipe)
    end = {(e.kind, e.chunk * pp + e.stage, e.microbatch): e.end for e in line.events}
    assert len(end) == len(line.events) == 2 * pp * vpp * m
    blocking = send if not (overlap and vpp > 1) else 0.0
    for e in line.events:
        virtual = e.chunk * pp + e.stage
        length = (forward if e.kind == "F" else backward)[e.stage][e.chunk]
        assert e.end - e.start == pytest.approx(length)
        if e.kind == "F" and virtual:
            assert e.start >= end["F", virtual - 1, e.microbatch] + send
        elif e.kind == "B" and virtual == pp * vpp - 1:
            assert e.start >= end["F", virtual, e.microbatch]
        elif e.kind == "B":
            assert e.start >= end["B", virtual + 1, e.microbatch] + send
    for stage in range(pp):
        mine = [e for e in line.events if e.stage == stage]
        for before, after in pairwise(mine):
            ends_pipe = before.kind == "F" and before.chunk * pp + stage == pp * vpp - 1
            ends_pipe |= before.kind == "B" and before.chunk * pp + stage == 0
            leaves = 0.0 if ends_pipe or pp == 1 else blocking
            assert after.start >= before.end + leaves - 1e-12, (before, after)


@given(uneven_pipes(), st.floats(1.0, 3.0))
def test_scaling_every_time_scales_the_step(pipe, factor):
    forward, backward, m, send, overlap = pipe
    scaled = [[[t * factor for t in stage] for stage in table] for table in (forward, backward)]
    before = simulate_pipeline(*pipe).makespan
    assert simulate_pipeline(*scaled, m, send * factor, overlap).makespan == pytest.approx(before * factor)


@given(uneven_pipes(), st.data())
def test_a_slower_chunk_or_message_never_shortens_the_step(pipe, data):
    forward, backward, m, send, overlap = pipe
    before = simulate_pipeline(*pipe).makespan
    stage = data.draw(st.integers(0, len(forward) - 1))
    slower = [list(row) for row in forward]
    slower[stage][0] += 1.0
    assert simulate_pipeline(slower, backward, m, send, overlap).makespan >= before - 1e-9
    assert simulate_pipeline(forward, backward, m, send + 0.5, overlap).makespan >= before - 1e-9
    assert simulate_pipeline(forward, backward, m, send, True).makespan <= before + 1e-9


@given(st.integers(2, 6), chunks, st.integers(1, 5))
def test_micro_batches_in_flight_equal_the_closed_form_of_the_memory_model(pp, vpp, rounds):
    m = pp * rounds
    line = simulate_pipeline(equal(pp, vpp, 1.0), equal(pp, vpp, 2.0), m)
    x = SimpleNamespace(ep_overlap=0, pp=pp, vpp=vpp, m=m, vpp_group=pp, flushes=1)
    for stage, peak in enumerate(line.peak_in_flight):
        assert peak == pytest.approx(schedule.in_flight(x, stage)), stage
    assert list(line.peak_in_flight) == sorted(line.peak_in_flight, reverse=True)


@given(uneven_pipes(), st.integers(2, 4))
def test_a_pipeline_that_is_drained_several_times_takes_as_often_as_long(pipe, flushes):
    forward, backward, m, send, overlap = pipe
    once = simulate_pipeline(forward, backward, m, send, overlap)
    often = simulate_pipeline(forward, backward, flushes * m, send, overlap, flushes=flushes)
    assert often.makespan == pytest.approx(flushes * once.makespan)
    assert often.peak_in_flight == once.peak_in_flight
    together = pipeline_makespan(forward, backward, flushes * m, send, overlap, flushes=flushes)
    assert together == pytest.approx(flushes * pipeline_makespan(forward, backward, m, send, overlap))
    assert least_makespan(forward, backward, flushes * m, send, flushes) <= together + 1e-9


def test_one_stage_sends_nothing():
    assert simulate_pipeline([[2.0]], [[3.0]], 4, send_time=100.0).makespan == 20.0


def test_order_of_a_stage_is_megatrons():
    """Two stages, two chunks, four micro-batches: table of get_schedule_table(4, 2, 2), first stage."""
    line = simulate_pipeline(equal(2, 2, 1.0), equal(2, 2, 1.0), 4)
    seen = [(e.kind, e.chunk, e.microbatch) for e in line.events if e.stage == 0]
    forwards = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    backwards = [(1, 0), (1, 1), (0, 0), (0, 1), (1, 2), (1, 3), (0, 2), (0, 3)]
    assert [e[1:] for e in seen if e[0] == "F"] == forwards
    assert [e[1:] for e in seen if e[0] == "B"] == backwards
    assert "".join(e[0] for e in seen) == "FFFF" + "FB" * 4 + "BBBB"


def test_a_remainder_of_microbatches_runs_as_a_short_group():
    line = simulate_pipeline(equal(2, 2, 1.0), equal(2, 2, 1.0), 5)
    assert len(line.events) == 2 * 2 * 2 * 5


def test_the_slow_last_stage_sets_the_pace():
    line: Replay = simulate_pipeline([[1.0], [1.0], [1.5]], [[2.0], [2.0], [3.0]], 10)
    assert line.makespan == pytest.approx(10 * 4.5 + 2 * 3.0)


@pytest.mark.parametrize(
    ("forward", "backward", "m", "send"),
    [
        ([], [], 1, 0.0),
        ([[1.0]], [[1.0], [1.0]], 1, 0.0),
        ([[1.0], [1.0, 2.0]], [[1.0], [1.0]], 1, 0.0),
        ([[]], [[]], 1, 0.0),
        ([[1.0]], [[1.0]], 0, 0.0),
        ([[-1.0]], [[1.0]], 1, 0.0),
        ([[float("nan")]], [[1.0]], 1, 0.0),
        ([[1.0]], [[1.0]], 1, float("inf")),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused_in_one_line(forward, backward, m, send):
    with pytest.raises(ValueError) as refusal:
        simulate_pipeline(forward, backward, m, send)
    assert "\n" not in str(refusal.value)


@given(
    st.integers(2, 6),
    chunks,
    st.integers(1, 25),
    st.floats(1.0, 3.0),
    st.floats(0, 0.5),
    st.floats(-0.5, 1.0),
    st.floats(0, 0.3),
)
def test_long_steps_are_extrapolated_where_stages_are_equal_but_for_the_ends(
    pp, vpp, rounds, backward, first, last, send
):
    """Within 1 %, the bound of the docstring: few pipes change their round once more later."""
    tables = []
    for seconds in (1.0, backward):
        table = equal(pp, vpp, seconds)
        table[0][0] *= 1 + first
        table[-1][-1] *= 1 + last
        tables.append(table)
    m = pp * rounds
    exact = simulate_pipeline(*tables, m, send).makespan
    assert pipeline_makespan(*tables, m, send) == pytest.approx(exact, rel=0.01)
    if rounds <= SIMULATED_ROUNDS:
        assert pipeline_makespan(*tables, m, send) == exact


@given(stages, st.integers(1, 200), times)
def test_extrapolation_of_equal_stages_is_the_closed_form_for_any_count(pp, m, seconds):
    table = equal(pp, 1, seconds)
    assert pipeline_makespan(table, table, m) == pytest.approx((m + pp - 1) * 2 * seconds)


@given(uneven_pipes(), st.integers(1, 12))
def test_no_step_is_shorter_than_its_bound(pipe, more_rounds):
    forward, backward, m, send, overlap = pipe
    for count in (m, m + more_rounds * len(forward)):
        makespan = pipeline_makespan(forward, backward, count, send, overlap)
        assert least_makespan(forward, backward, count, send if len(forward) > 1 else 0) <= makespan * (
            1 + 1e-12
        )


@given(stages, chunks, st.integers(1, SIMULATED_ROUNDS), times, times)
def test_equal_stages_take_their_bound(pp, vpp, rounds, forward, backward):
    tables = equal(pp, vpp, forward), equal(pp, vpp, backward)
    assert least_makespan(*tables, pp * rounds) == pytest.approx(pipeline_makespan(*tables, pp * rounds))


def test_extrapolation_refuses_what_the_simulator_refuses():
    with pytest.raises(ValueError):
        pipeline_makespan([], [], 4)


@pytest.mark.parametrize(
    ("count", "flushes", "told"),
    [(125, 1, "125 micro-batches over"), (250, 2, "250 micro-batches, drained 2")],
)
def test_what_waits_for_ever_is_told_with_the_micro_batches_of_the_step(count, flushes, told):
    """The message had the 29 that are replayed of 125."""
    with pytest.raises(ValueError, match=f"^{told}.* last round of 1 is too short"):
        pipeline_makespan(equal(4, 3, 1.0), equal(4, 3, 2.0), count, flushes=flushes)
