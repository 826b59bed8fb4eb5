"""The simulated step: it ends at the step time, its spans are the prediction's terms, memory peaks where it should."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from family_cases import B200, FAMILIES, FEW, H100, cases
from hypothesis import given
from hypothesis import strategies as st

from costmodel.memory import MEMORY_STAGES
from costmodel.model_registry import load_model
from costmodel.model_tables import Encoder
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule
from costmodel.timeline import BACKWARD, EACH_MICROBATCH, FORWARD, RESIDUAL, STREAMS, Timeline, simulate
from costmodel.workload import Workload

every_family = pytest.mark.parametrize("name", FAMILIES)
LLAMA, DEEPSEEK = load_model("llama3-70b"), load_model("deepseek-v3")
PIPE = Plan(tp=4, pp=4, vpp=5, dp=2, cp=2, sequence_parallel=True)
EXPERTS = Plan(pp=4, vpp=1, ep=8, dp=8, pipeline_layout="balanced")


def predicted(name: str, plan: Plan, workload: Workload) -> Prediction:
    return with_schedule(predict(load_model(name), workload, B200, plan))


def tracks(line: Timeline) -> dict[tuple[int, str], list]:
    """Spans of each stage and stream in order of time; messages by direction, which use different links."""
    found = defaultdict(list)
    for span in line.spans:
        found[span.stage, span.stream].append(span)
    return {key: sorted(spans, key=lambda span: span.start) for key, spans in found.items()}


def seconds(line: Timeline, stage: int, stream: str, *titles: str) -> float:
    return sum(
        span.duration
        for span in line.spans
        if span.stage == stage and span.stream == stream and (not titles or span.name in titles)
    )


def slowest(line: Timeline) -> int:
    return max(range(line.stages), key=lambda stage: seconds(line, stage, "compute", FORWARD, BACKWARD))


@every_family
@FEW
@given(data=st.data())
def test_the_last_span_ends_at_the_step_time(name, data):
    plan, workload = data.draw(cases(load_model(name)))
    closed = predict(load_model(name), workload, B200, plan)
    for prediction in (closed, with_schedule(closed)):
        line = simulate(prediction)
        assert line.step_time == prediction.step_time_s
        assert max(span.end for span in line.spans) == pytest.approx(prediction.step_time_s, rel=1e-9)
        assert min(span.start for span in line.spans) >= 0
        assert all(span.duration > 0 for span in line.spans if span.name not in (FORWARD, BACKWARD))
        assert {span.stream for span in line.spans} <= set(STREAMS)
    # Once the pipeline is simulated there is room for every pass, and no more is left unexplained than what the
    # formula adds for each micro-batch, whether the slowest stage's passes are on the critical path or not.
    leaves = {leaf.name: leaf.value for leaf in prediction.time.leaves()}
    assert line.shrink == 1
    assert line.residual <= sum(leaves.get(name, 0.0) for name in EACH_MICROBATCH) + 1e-9


@every_family
@FEW
@given(data=st.data())
def test_a_stage_does_one_thing_at_a_time(name, data):
    plan, workload = data.draw(cases(load_model(name)))
    line = simulate(predicted(name, plan, workload))
    for (_, stream), spans in tracks(line).items():
        if stream != "pp":  # messages to both neighbours travel together
            for before, after in pairwise(spans):
                assert before.end <= after.start + 1e-9 * line.step_time, (stream, before, after)


@every_family
@FEW
@given(data=st.data())
def test_exposed_spans_of_the_pace_setting_stage_are_the_terms(name, data):
    plan, workload = data.draw(cases(load_model(name)))
    plan = replace(plan, pp=1, vpp=1)
    prediction = predicted(name, plan, workload)
    line = simulate(prediction)
    leaves = {leaf.name: leaf.value for leaf in prediction.time.leaves()}
    for stream, kind in (("tp", "tensor_parallel"), ("cp", "context_parallel"), ("ep", "dispatch")):
        both = leaves.get(f"forward_{kind}", 0.0) + leaves.get(f"backward_{kind}", 0.0)
        assert seconds(line, 0, stream) == pytest.approx(both, rel=1e-9, abs=1e-12)
    host = sum(
        leaves.get(each, 0.0)
        for each in (
            "host_bound",
            "offload",
            "forward_wait",
            "straggler_time",
            "optimizer_host",
            "step_fixed",
        )
    )
    assert seconds(line, 0, "host") == pytest.approx(host, rel=1e-9)


@pytest.mark.parametrize("batch", [16, 24, 64])
@pytest.mark.parametrize("plan", [PIPE, replace(PIPE, vpp=1), replace(PIPE, overlap_p2p=False)])
def test_passes_follow_each_other_through_the_pipe(plan, batch):
    prediction = predicted("llama3-70b", plan, Workload(8192, batch))
    line = simulate(prediction)
    hop = prediction.values["pp_send_recv"]
    count = plan.num_microbatches(batch)
    # A pass ends where its last part does.
    ends, starts = defaultdict(float), {}
    kind = ""
    for span in line.spans:
        if span.microbatch < 0 or span.stream == "pp":
            continue
        kind = span.name if span.stream == "compute" else kind
        key = kind, span.chunk * plan.pp + span.stage, span.microbatch
        starts.setdefault(key, span.start)
        ends[key] = max(ends[key], span.end)
    assert len(starts) == 2 * count * plan.pp * plan.vpp
    last = plan.pp * plan.vpp - 1
    for (kind, place, microbatch), start in starts.items():
        if kind == FORWARD and place:
            assert start >= ends[FORWARD, place - 1, microbatch] + hop - 1e-9
        if kind == BACKWARD:
            other = (FORWARD, last) if place == last else (BACKWARD, place + 1)
            assert start >= ends[*other, microbatch] + (0 if place == last else hop) - 1e-9


@pytest.mark.parametrize(
    "plan",
    [
        PIPE,
        replace(PIPE, vpp=1),
        replace(PIPE, vpp_group_size=2 * PIPE.pp),
        Plan(tp=8, dp=8, sequence_parallel=True),
    ],
)
def test_memory_peaks_at_the_predicted_peak(plan):
    prediction = predicted("llama3-70b", plan, Workload(8192, 64))
    line = simulate(prediction)
    peaks = [max(size for _, size in curve) for curve in line.memory]
    assert max(peaks) == pytest.approx(prediction.peak_memory_bytes, rel=1e-12)
    assert peaks[0] == pytest.approx(prediction.values["memory_first"], rel=1e-12)
    assert peaks[-1] == pytest.approx(
        prediction.values["memory_last" if plan.pp > 1 else "memory_first"], rel=1e-12
    )
    for curve in line.memory:
        assert [second for second, _ in curve] == sorted(second for second, _ in curve)
        assert curve[-1][1] == pytest.approx(curve[0][1])  # what a step took it gave back
        assert curve[-1][0] <= line.step_time


@every_family
@FEW
@given(data=st.data())
def test_memory_never_leaves_the_bounds_of_the_formulas(name, data):
    """First and last stage: no more than the formula's peak at any time, and exactly that at the peak."""
    plan, workload = data.draw(cases(load_model(name)))
    prediction = predicted(name, plan, workload)
    line = simulate(prediction)
    for stage, formula in ((0, "first"), (-1, "last" if plan.pp > 1 else "first")):
        peak = max(size for _, size in line.memory[stage])
        if plan.pp == 2 and stage:
            formula = max(MEMORY_STAGES[1:], key=lambda each: prediction.values[f"memory_{each}"])
        assert peak == pytest.approx(prediction.values[f"memory_{formula}"], rel=1e-9), formula


def test_phases_divide_each_stage():
    line = simulate(predicted("llama3-70b", PIPE, Workload(8192, 64)))
    for stage, phases in enumerate(line.phases):
        assert 0 <= phases.warm_up <= phases.steady <= phases.flush <= line.step_time
        early = [
            span
            for span in line.spans
            if span.stage == stage and span.microbatch >= 0 and span.end <= phases.warm_up
        ]
        assert BACKWARD not in {span.name for span in early}
        late = [
            span
            for span in line.spans
            if span.stage == stage
            and span.stream == "compute"
            and span.microbatch >= 0
            and span.start > phases.steady
        ]
        assert FORWARD not in {span.name for span in late}
    assert line.phases[0].warm_up > line.phases[-1].warm_up
    assert line.phases[0].flush == max(phases.flush for phases in line.phases)


@pytest.mark.parametrize("most", [40, 200, 1000])
def test_a_compact_step_is_the_same_step(most):
    line = simulate(predicted("llama3-70b", replace(PIPE, overlap_p2p=False), Workload(8192, 256)))
    small = line.compact(most)
    assert len(small.spans) <= 2 * most
    assert len(small.spans) < len(line.spans)
    assert not small.whole
    assert max(span.end for span in small.spans) == pytest.approx(line.step_time, rel=1e-9)
    for stage in range(line.stages):
        for stream in ("tp", "cp", "dp", "host"):
            assert seconds(small, stage, stream) == pytest.approx(seconds(line, stage, stream), rel=1e-9)
        assert seconds(small, stage, "compute") >= seconds(line, stage, "compute") - 1e-9
        assert max(small.memory[stage], key=lambda point: point[1]) in line.memory[stage]
        assert max(size for _, size in small.memory[stage]) == max(size for _, size in line.memory[stage])
    assert line.compact(10**6).spans == line.spans


def test_totals_are_the_sums_of_the_spans():
    line = simulate(predicted("deepseek-v3", EXPERTS, Workload(4096, 256)))
    for stage, sums in enumerate(line.totals()):
        found = defaultdict(float)
        for span in line.spans:
            if span.stage == stage:
                found[span.stream, span.name] += span.duration
        assert sums == pytest.approx(dict(found), rel=1e-9)


def test_waiting_for_the_host_lies_in_the_passes_and_a_halting_host_waits_on_every_stage():
    """A small model on many stages: each micro-batch waits on the pace-setting one, and forward, as long, on others."""
    plan = Plan(pp=4, dp=8, ep=8)
    prediction = with_schedule(predict(load_model("qwen3-30b-a3b"), Workload(1024, 64), H100, plan))
    waits = {leaf.name: leaf for leaf in prediction.time.leaves()}["host_bound"]
    assert waits.value > 0
    line = simulate(prediction)
    found = {stage: seconds(line, stage, "host", waits.title) for stage in range(line.stages)}
    values, count = prediction.values, 64 / 8
    filling = 3 * values["host_halt"]
    assert found.pop(slowest(line)) == pytest.approx(waits.value - filling, rel=1e-9)
    assert list(found.values()) == pytest.approx(3 * [count * values["host_halt"]])
    # Capacities and overlapped exchanges let the host run ahead: the slowest stage's waits alone are counted.
    ahead = replace(plan, moe_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True, vpp=2)
    padded = with_schedule(predict(load_model("qwen3-30b-a3b"), Workload(1024, 64), H100, ahead))
    line = simulate(padded)
    found = {stage: seconds(line, stage, "host", waits.title) for stage in range(line.stages)}
    assert found.pop(slowest(line)) > 0
    assert not any(found.values())


def test_an_encoder_has_stages_of_its_own_in_front():
    encoder = Encoder(num_layers=32, hidden=1280, ffn_hidden=5120, num_heads=16, tokens=2048)
    model = replace(load_model("llama3-8b"), name="vision", encoder=encoder)
    plan = Plan(pp=2, dp=2, encoder_pp=1, encoder_tp=1)
    prediction = with_schedule(predict(model, Workload(4096, 16), H100, plan))
    titles = {term.name: term.title for term in prediction.time.parts}
    assert titles["vocabulary"].startswith("encoder, embedding, ")
    line = simulate(prediction)
    assert line.stages == 3
    assert line.names[0] == "encoder stage 0"
    assert line.memory[0] == ()
    assert max(span.end for span in line.spans) == pytest.approx(prediction.step_time_s, rel=1e-9)


def test_what_the_formula_counts_and_no_event_explains_has_a_name_of_its_own():
    """Two micro-batches on two stages: the slowest stage's waits for the host are partly hidden by the other one."""
    prediction = predicted("moonlight-16b-a3b", Plan(pp=2), Workload(2048, 2))
    line = simulate(prediction)
    named = [span.duration for span in line.spans if span.name == RESIDUAL]
    assert line.residual > 0.01 * line.step_time
    assert named == [line.residual] * line.stages
    # It is of the fill and the flush: no more of it with more micro-batches.
    longer = simulate(predicted("moonlight-16b-a3b", Plan(pp=2), Workload(2048, 64)))
    assert longer.residual == pytest.approx(line.residual, rel=0.01)
