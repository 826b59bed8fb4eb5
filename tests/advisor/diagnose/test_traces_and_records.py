"""Diagnosis of traces, alone and beside a log, and of the records of `advisor run`."""

from __future__ import annotations

import json

import pytest
from log_cases import log_as_predicted
from written import megatron_line, memory_line, timers

from executor.diagnose import table


def test_a_trace_alone_and_beside_a_log(ask, tmp_path, predicted):
    trace = tmp_path / "trace.json"
    step = predicted["step_time_s"] * 1e6
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "ts": 0, "dur": step, "args": {}}
    ]
    for name, at, dur, stream, group in (
        ("nvjet_tst_1", 0.0, 0.6, 7, ""),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING", 0.55, 0.3, 20, "DATA_PARALLEL_GROUP_WITH_CP"),
        ("void layer_norm_kernel", 0.85, 0.1, 7, ""),
    ):
        args = {"device": 0, "stream": stream} | ({"Process Group Description": group} if group else {})
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": at * step, "dur": dur * step, "args": args}
        )
    trace.write_text(json.dumps({"traceEvents": events}))
    code, text = ask("diagnose", str(trace))
    assert code == 0
    assert "exposed communication 25.0 %" in " ".join(text.split())
    log = log_as_predicted(predicted, tmp_path)
    _, text = ask("diagnose", str(log), "--gpu", "h100", "--trace", str(trace), "--json")
    first = json.loads(text)["findings"][0]
    assert first["id"] == "dp_overlap_failed"
    assert first["ceiling_share"] == pytest.approx(0.25, abs=0.01)


def test_a_trace_without_marks_is_counted_by_its_log(ask, tmp_path, predicted):
    """Alone its window is taken as one step, which is said; beside a log its steps are known."""
    step = predicted["step_time_s"]
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at * step * 1e6, "dur": step * 9e5, "args": {}}
        for at in range(3)
    ]
    trace, plan = tmp_path / "trace.json", tmp_path / "plan.toml"
    trace.write_text(json.dumps({"traceEvents": events}))
    ask(
        *("explain", "--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--global-batch", "32"),
        *("--save", str(plan)),
    )
    alone = json.loads(ask("compare", str(plan), str(trace), "--json")[1])
    assert "But the trace marks no steps" in alone["text"]
    assert alone["blame"] is None
    words = ("compare", str(log_as_predicted(predicted, tmp_path)), "--gpu", "h100", "--trace", str(trace))
    beside = json.loads(ask(*words, "--json")[1])
    kernels = {row["name"]: row["measured"] for row in beside["trace_rows"]}
    assert kernels["linear kernels"] == pytest.approx(0.9 * step)
    assert any("its window holds 3" in note for note in beside["notes"])
    assert not any("not the same run" in text for text in beside["warnings"])
    trace.write_text(json.dumps({"traceEvents": [events[2] | {"dur": step * 3e5}]}))
    found = json.loads(ask(*words, "--json")[1])
    assert any("likely not the same run" in text for text in found["warnings"])


def test_the_record_of_a_run(ask, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    steps = [
        {
            "step": step,
            "seconds": 0.5 + (0.4 if step < 3 else 0.0),
            "loss": 6.0,
            "warmup": step < 3,
            "phases": {},
        }
        for step in range(20)
    ]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)) + '\n{"step": 20, "sec')
    code, text = ask("diagnose", str(folder), "--json")
    found = json.loads(text)
    assert code == 0
    assert found["framework"] == "advisor run"
    assert found["step_time_s"] == 0.5


def test_a_record_tells_what_its_ranks_waited_for(ask, predicted, tmp_path):
    """Waiting for cores and for other ranks are findings of their own; one step time and the record's warnings."""
    folder, seconds = tmp_path / "run", [1.5, 1.6, 1.7, 1.8]
    folder.mkdir()
    steps = [{"step": number, "warmup": False, "seconds": each} for number, each in enumerate(seconds)]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    (folder / "prediction.json").write_text(json.dumps(predicted))
    measured = {
        "step_time_s": 1.6,  # the lower of the two in the middle, whose phases are told
        "spread": 0.07,
        "num_steps": 4,
        "tokens_per_second_per_gpu": 5000.0,
        "phases": {"forward": 0.3, "backward": 0.5, "communication": 0.7, "optimizer": 0.02},
        "queued_s": 0.48,
        "peak_memory_bytes": [],
    }
    comparison = {"measured": measured, "warnings": ["ranks waited for a core 30% of a step"]}
    (folder / "comparison.json").write_text(json.dumps(comparison))
    _, text = ask("diagnose", str(folder), "--json")
    found = json.loads(text)
    ids = {each["id"]: each for each in found["findings"]}
    assert ids["cores_shared"]["ceiling_share"] == pytest.approx(0.3)
    assert "30.0 % of the step of 1.6 s" in ids["cores_shared"]["evidence"]
    assert "take 700 ms of a step of 1.6 s" in ids["ranks_wait"]["evidence"]
    assert "The step takes 1.6 s" in ids["slower_than_predicted"]["evidence"]
    assert "ranks waited for a core 30% of a step" in found["warnings"]
    assert "warning: ranks waited for a core 30%" in ask("compare", str(folder))[1]


def test_no_rule_waits_for_a_fact_that_nothing_gives(tmp_path, predicted):
    """Facts of a rich log, of traces and of a prediction are all that the rules ask for."""
    from advisor.diagnosis import facts_of
    from advisor.measured import read_measured

    log = log_as_predicted(predicted, tmp_path)
    detector = "MnRtt/Rnk: 3021.11ms/4 | MxRtt/Rnk: 3444.20ms/11 | MnClk/Rnk: 1305.00MHz/11 | MxClk/Rnk: 1980.00MHz/0"
    names = ("batch-generator", "params-all-gather", "forward-recv", "save-checkpoint")
    memory = memory_line(0, 60, 1.0, 2.0, 3.0) + " | total device memory used: 4000.00"
    queues = "CUDA_DEVICE_MAX_CONNECTIONS=1"
    lines = [
        megatron_line(60, 1.0, nan=1),
        queues,
        *timers(dict.fromkeys(names, (0.1, 0.2))),
        detector,
        memory,
    ]
    text = log.read_text() + "\n".join([*lines, megatron_line(61, 1.0)])
    log.write_text(text)
    traces = []
    for rank in range(2):
        events = [
            {"ph": "X", "cat": "cuda_runtime", "name": "l", "ts": 0, "dur": 1, "args": {"correlation": 1}},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "ts": 0, "dur": 50, "args": {}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "ts": 2,
                "dur": 9 + rank,
                "args": {"correlation": 1},
            },
        ]
        traces.append(tmp_path / f"{rank}.json")
        traces[-1].write_text(json.dumps({"traceEvents": events}))
    found = read_measured(str(log), [str(each) for each in traces], None, {"gpu": "h100"})
    assert found.case is not None
    found.run = {"step_time_s": 1.0, "queued_s": 0.1, "phases": {"communication": 0.2}}
    missing = set(table()["facts"]) - {name for name, known in facts_of(found).items() if known is not None}
    assert not missing
