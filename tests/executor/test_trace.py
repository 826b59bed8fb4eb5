"""Traces: what the format asks for, tracks without overlaps, and spans as long as the step."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule
from costmodel.timeline import FORWARD, STREAMS, simulate
from costmodel.workload import Workload
from executor.record import read_steps
from executor.run import execute, missing_software
from executor.trace import TITLES, Trace, write_trace
from executor.trace_measured import BESIDE, PREDICTED, TIMELINE, measured_trace, record_trace
from executor.trace_predicted import STAGES, predicted_trace
from hardware_db import resolve

H100 = resolve("h100", None)[0]
PLANS = {
    "interleaved": ("llama3-70b", Plan(tp=4, pp=4, vpp=5, dp=2, cp=2, sequence_parallel=True), 32),
    "plain pipe": ("llama3-70b", Plan(tp=4, pp=4, dp=4, sequence_parallel=True), 32),
    "experts": ("qwen3-30b-a3b", Plan(pp=2, dp=8, ep=8), 64),
    "fsdp": ("llama3-8b", Plan(dp=8, fsdp=True, zero_stage=3), 16),
    "one gpu": ("tiny-gpt", Plan(), 4),
}
KNOWN = {
    "X": {"cat", "dur", "tid"},
    "M": {"args", "tid"},
    "C": {"args"},
    "s": {"id", "cat"},
    "f": {"id", "bp"},
}


def prediction_of(name: str) -> Prediction:
    model, plan, batch = PLANS[name]
    return with_schedule(predict(load_model(model), Workload(4096, batch), H100, plan))


def assert_is_a_trace(record: dict) -> None:
    """What the trace event format asks for, and what a viewer needs to draw a track without nesting."""
    assert set(record) == {"displayTimeUnit", "otherData", "traceEvents"}
    tracks, names, starts = defaultdict(list), {}, {}
    for event in record["traceEvents"]:
        assert KNOWN[event["ph"]] <= set(event), event
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0  # 0 is the idle process of viewers
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            names[event["pid"], event["tid"], event["name"]] = event["args"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "s":
            starts[event["id"]] = event
        elif event["ph"] == "f":
            assert starts.pop(event["id"])["ts"] <= event["ts"]
    assert not starts
    for (pid, track), events in tracks.items():
        assert (pid, 0, "process_name") in names
        assert (pid, track, "thread_name") in names
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-4, (before, after)


def test_threads_have_names_that_a_stranger_reads():
    assert set(TITLES) < set(STREAMS)
    trace = Trace()
    for thread in ("compute", "tp", "tp", "host"):
        trace.slice(1, thread, "x", 0.0, 1.0, "predicted")
    named = [each["args"]["name"] for each in trace.events if each["name"] == "thread_name"]
    assert named == ["compute", "tensor parallel (tp)", "tensor parallel (tp) 2", "host and waiting"]


def end(record: dict, pid: int | None = None) -> float:
    """When the last slice ends. [s]"""
    slices = [each for each in record["traceEvents"] if each["ph"] == "X" and pid in (None, each["pid"])]
    return max(each["ts"] + each["dur"] for each in slices) / 1e6


@pytest.mark.parametrize("name", PLANS)
def test_a_predicted_trace_is_a_trace_as_long_as_the_step(name):
    prediction = prediction_of(name)
    record = predicted_trace(prediction)
    assert_is_a_trace(record)
    assert end(record) == pytest.approx(prediction.step_time_s, abs=1e-9)
    for stage in range(prediction.plan.pp):
        assert end(record, STAGES + stage) == pytest.approx(prediction.step_time_s, abs=1e-9)
    assert record["otherData"]["step_time_s"] == prediction.step_time_s
    assert Plan(**record["otherData"]["plan"]) == prediction.plan


@pytest.mark.parametrize("name", PLANS)
def test_slices_are_the_spans(name):
    prediction = prediction_of(name)
    sums = defaultdict(float)
    for event in predicted_trace(prediction)["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "predicted" and event["pid"] >= STAGES:
            sums[event["pid"] - STAGES, event["name"]] += event["dur"] / 1e6
    for stage, totals in enumerate(simulate(prediction).totals()):
        expected = defaultdict(float)
        for (_, title), seconds in totals.items():
            expected[title] += seconds
        for title, seconds in expected.items():
            assert sums[stage, title] == pytest.approx(seconds, rel=1e-5, abs=1e-6), title


def test_memory_is_a_counter_that_reaches_the_peak():
    prediction = prediction_of("interleaved")
    counted = [e["args"]["GiB"] for e in predicted_trace(prediction)["traceEvents"] if e["ph"] == "C"]
    assert max(counted) == pytest.approx(prediction.peak_memory_bytes / 2**30, abs=1e-4)


def test_every_message_points_to_the_pass_that_it_feeds():
    record = predicted_trace(prediction_of("interleaved"))
    plan, count = PLANS["interleaved"][1], 32 // 2
    arrows = [each for each in record["traceEvents"] if each["ph"] == "f"]
    assert len(arrows) == 2 * count * (plan.pp * plan.vpp - 1)


def test_a_long_step_is_drawn_several_passes_at_once():
    prediction = prediction_of("interleaved")
    record = predicted_trace(prediction, 200)
    assert_is_a_trace(record)
    assert len(record["traceEvents"]) < len(predicted_trace(prediction)["traceEvents"]) / 2
    assert end(record) == pytest.approx(prediction.step_time_s, abs=1e-9)
    assert record["otherData"]["passes_drawn_as_one"] != [1, 1]


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_file_reads_back(tmp_path, ending):
    record = predicted_trace(prediction_of("one gpu"))
    path = tmp_path / f"trace.{ending}"
    write_trace(path, record)
    text = gzip.decompress(path.read_bytes()) if ending.endswith("gz") else path.read_bytes()
    assert json.loads(text) == json.loads(json.dumps(record))


JOB = {
    "plan": Plan(pp=2).to_dict(),
    "model": {"name": "tiny-gpt"},
    "workload": {"seq_len": 256, "global_batch": 2},
    "num_microbatches": 2,
}
SPANS = [
    ["", "forward", 0.1, 0.4],
    ["", "forward", 0.6, 0.4],
    ["", "backward", 1.1, 0.6],
    ["", "backward", 2.0, 0.5],
    ["", "optimizer", 2.6, 0.9],
    ["tp", "all_reduce", 0.2, 0.1],
    ["pp", "wait", 0.5, 0.1],
    ["mp", "all_reduce", 2.7, 0.1],
    ["dp", "reduce_scatter_tensor", 3.0, 0.1],
]


@pytest.fixture
def run(tmp_path):
    ranks = [{"rank": rank, "stage": rank, "spans": SPANS} for rank in (0, 1)]
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / TIMELINE).write_text(json.dumps({"step": 7, "seconds": 3.4, "ranks": ranks}))
    return tmp_path


def test_a_measured_trace_has_the_form_of_a_predicted_one(run):
    record = measured_trace(run)
    assert_is_a_trace(record)
    assert end(record) == pytest.approx(3.4)  # what ran on after the step is cut off
    assert record["otherData"]["measured_step_s"] == 3.4
    passes = [e for e in record["traceEvents"] if e["ph"] == "X" and e["name"] == FORWARD and e["pid"] == 2]
    assert [e["args"] for e in passes] == [{"micro-batch": 0, "chunk": 0}] * 2 + [
        {"micro-batch": 1, "chunk": 0}
    ]
    # The wait inside the first pass stands on its own thread, and the pass on both sides of it.
    assert [(e["ts"], e["dur"]) for e in passes[:2]] == [(1e5, pytest.approx(1e5)), (3e5, pytest.approx(2e5))]
    named = {e["name"] for e in record["traceEvents"] if e["ph"] == "X"}
    assert {"all_reduce, mp", "optimizer step"} <= named


def test_measured_stands_beside_predicted(run):
    prediction = with_schedule(predict(load_model("tiny-gpt"), Workload(256, 2), H100, Plan(pp=2)))
    write_trace(run / PREDICTED, predicted_trace(prediction))
    record = record_trace(run)
    assert_is_a_trace(record)
    assert record["otherData"]["step_time_s"] == prediction.step_time_s
    assert record["otherData"]["measured_step_s"] == 3.4
    beside = {event["pid"] for event in record["traceEvents"] if event["pid"] > BESIDE}
    assert len(beside) == 3
    assert end(record, min(beside)) == pytest.approx(3.4)
    assert end(record, 1) == pytest.approx(prediction.step_time_s, abs=1e-9)
    # It is one step, not the median that `compare` tells, and has the number that `advisor run` told it by.
    said = CliRunner().invoke(advisor, ["trace", "--record", str(run), "-o", str(run / "trace.json")]).output
    assert "predicted and of step 8 as measured, 3.400 s, near the median." in " ".join(said.split())
    assert "step 8" in json.dumps(record)


@pytest.mark.launch
@pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core")
def test_a_run_keeps_the_spans_of_a_typical_step(tmp_path):
    """Two stages, three micro-batches: every rank's passes, and its waits for the other stage, inside the step."""
    plan, load, model = Plan(pp=2, precision="fp32"), Workload(64, 3), load_model("tiny-gpt")
    prediction = predict(model, load, H100, replace(plan, precision="bf16"))
    execute(
        plan,
        load,
        model,
        predicted=prediction.to_dict(),
        steps=3,
        warmup=1,
        out=tmp_path,
        progress=lambda _: None,
    )
    record = measured_trace(tmp_path)
    assert_is_a_trace(record)
    steps = {step["step"]: step for step in read_steps(tmp_path)}
    chosen = steps[record["otherData"]["step"]]
    assert not chosen["warmup"]
    assert end(record) == pytest.approx(chosen["seconds"], abs=1e-6)
    told = [rank["spans"] for rank in json.loads((tmp_path / TIMELINE).read_text())["ranks"]]
    for spans in told:
        assert sorted(name for group, name, _, _ in spans if not group) == sorted(
            ["forward"] * 3 + ["backward"] * 3 + ["optimizer"]
        )
        assert {group for group, _, _, _ in spans} >= {"", "pp"}
    # The same marks as the seconds of the step by group, of which the record holds the mean.
    means = {
        group: sum(seconds for spans in told for name, _, _, seconds in spans if name == group) / 2
        for group in chosen["exposed"]
    }
    assert means == pytest.approx(chosen["exposed"], rel=1e-6)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "job.json").unlink(), "no record of a run"),
        (lambda folder: (folder / TIMELINE).unlink(), "did not reach its end"),
        (lambda folder: (folder / TIMELINE).write_text("{"), "is not JSON"),
        (lambda folder: (folder / TIMELINE).write_text("[]"), "holds no record"),
        (lambda folder: (folder / TIMELINE).write_text('{"step": 1}'), "of another form"),
        (
            lambda folder: (folder / TIMELINE).write_text(
                '{"step": 1, "seconds": 1, "ranks": [{"rank": 0}]}'
            ),
            "of another form",
        ),
    ],
)
def test_a_broken_record_is_one_line(run, spoil, says):
    spoil(run)
    with pytest.raises(ValueError, match=says) as error:
        record_trace(run)
    assert "\n" not in str(error.value)
