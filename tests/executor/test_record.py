"""Records of runs read after a kill, and never overwrite each other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.job_file import plan_of
from executor.logs.run_record import log_of_run
from executor.logs.summary import steady
from executor.record import alone, environment, new_record, read_memory, read_steps, write_json
from executor.run import make_job, resume, summarise


def step(number: int, seconds: float = 1.0, loss: float | None = 5.0, warmup: bool = False) -> dict:
    """One line of steps.jsonl."""
    return {
        "step": number,
        "warmup": warmup,
        "seconds": seconds,
        "loss": loss,
        "grad_norm": 1.0,
        "phases": {"forward": seconds / 2},
    }


@given(st.integers(1, 8), st.data())
def test_a_cut_line_is_left_out(tmp_path_factory, num_steps, data):
    folder = tmp_path_factory.mktemp("record")
    lines = [json.dumps(step(number)) + "\n" for number in range(num_steps)]
    text = "".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    (folder / "steps.jsonl").write_text(text[:cut])
    whole = (text[:cut] + "\n").count("}}\n")
    assert read_steps(folder) == [step(number) for number in range(whole)]


def test_a_torn_line_hides_none_of_those_after_it(tmp_path):
    lines = [json.dumps(step(0)), "garbage", "3", '{"x": 1}', json.dumps(step(1))]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    assert read_steps(tmp_path) == [step(0), step(1)]


@pytest.mark.parametrize("job", ["{}", "[3]", '{"wanted": 3, "plan": {"tp": 2}, "workload": {}}', "", None])
def test_a_record_that_is_not_whole_cannot_go_on(tmp_path, job):
    """One line before anything runs, whatever is missing."""
    if job is not None:
        (tmp_path / "job.json").write_text(job)
    said = {None: "is no record of a run", "": "job.json cannot be read"}.get(job, "its record is not whole")
    with pytest.raises(ValueError, match=said) as refused:
        resume(tmp_path, print)
    assert "\n" not in str(refused.value)


def test_no_steps_yet(tmp_path):
    assert read_steps(tmp_path) == []
    assert read_memory(tmp_path) == []


def test_records_never_share_a_folder(tmp_path):
    folders = [new_record(tmp_path, "a/b ../c") for _ in range(5)]
    assert len(set(folders)) == 5
    assert all(folder.parent == tmp_path / "runs" for folder in folders)


def test_json_is_written_whole(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_environment_is_plain():
    kept = environment()
    assert json.loads(json.dumps(kept)) == kept
    assert "numpy" in kept["versions"]


def test_summary_leaves_warm_up_out_and_takes_medians(tmp_path):
    steps = [step(0, 9.0, 9.0, True), step(1, 1.0, 8.0), step(2, 1.1, 7.0), step(3, 1.05, 6.0)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))
    for rank, peak in enumerate((300, 500)):
        write_json(tmp_path / f"memory-{rank}.json", {"peak_bytes": peak, "base_bytes": 100})
    measured, warnings = summarise(tmp_path, Workload(128, 4), 2)
    assert measured["step_time_s"] == 1.05
    assert measured["step_time_min_s"] == 1.0
    assert measured["tokens_per_second_per_gpu"] == 128 * 4 / 1.05 / 2
    assert measured["peak_memory_bytes"] == [200, 400]
    assert (measured["first_loss"], measured["last_loss"]) == (9.0, 6.0)
    assert warnings == []


def test_summary_warns_of_scatter_and_of_a_loss_that_does_not_fall(tmp_path):
    steps = [step(0, 1.0, 5.0), step(1, 2.0, 6.0)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))
    _, warnings = summarise(tmp_path, Workload(128, 4), 1)
    assert len(warnings) == 2
    assert "scatter" in warnings[0]
    assert "loss" in warnings[1]


def test_one_loss_says_nothing_of_its_fall(tmp_path):
    (tmp_path / "steps.jsonl").write_text(json.dumps(step(0, 1.0, 9.0)) + "\n")
    assert summarise(tmp_path, Workload(128, 4), 1)[1] == []


def test_a_summary_and_a_diagnosis_tell_one_scatter_and_slow_steps_apart(tmp_path):
    times = [0.528, 0.521, 0.518, 0.522, 0.520, 0.536, 0.698, 0.650, 0.642, 0.539]
    steps = [step(number, seconds, 9.0 - number) for number, seconds in enumerate(times)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))
    measured, warnings = summarise(tmp_path, Workload(128, 4), 2)
    assert measured["spread"] == steady(log_of_run(tmp_path)).scatter
    assert len(warnings) == 1
    assert warnings[0].startswith("3 of 10 steps stand far above the median, up to 0.698 s")


@pytest.mark.parametrize("shared", [1, 2])
def test_what_a_shared_gpu_holds_is_no_ranks_memory(tmp_path, shared):
    memory = {"device": [300, 300], "peak_allocated": [100, 120]}
    steps = [step(number, 1.0, 9.0 - number) | {"memory": memory} for number in range(4)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))
    ranks = [{"rank": rank, "host": "a", "ranks_on_device": shared} for rank in range(2)]
    write_json(tmp_path / "ranks.json", {"ranks": ranks})
    measured, warnings = summarise(tmp_path, Workload(128, 4), 2)
    assert measured["peak_memory_bytes"] == ([300, 300] if shared == 1 else [])
    assert measured["peak_allocated_bytes"] == [100, 120]
    assert any("seconds say nothing" in warning for warning in warnings) == (shared > 1)


@pytest.mark.parametrize(("processes", "told"), [(2, True), (4, False)])
def test_waiting_for_a_core_is_blamed_on_other_work_only_where_ranks_have_cores(tmp_path, processes, told):
    steps = [step(number, 1.0, 9.0 - number) | {"queued": 0.4} for number in range(4)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))
    write_json(tmp_path / "environment.json", {"cores": 2})
    write_json(tmp_path / "ranks.json", {"ranks": [{"rank": rank, "host": "a"} for rank in range(processes)]})
    measured, warnings = summarise(tmp_path, Workload(128, 4), processes)
    assert any("other work held it" in warning for warning in warnings) == told
    assert measured.get("shared_cores") == (None if told else 2)


def test_the_wait_for_a_core_is_one_share_of_the_step(tmp_path):
    """The warning divided by another median than the page: 36 % here and 37 % there."""
    steps = [
        step(number, seconds, 5.0 - number) | {"queued": 0.4} for number, seconds in enumerate((1.0, 1.2))
    ]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in steps))
    measured, warnings = summarise(tmp_path, Workload(128, 4), 2)
    share = measured["queued_s"] / measured["step_time_s"]
    assert any(f"ranks waited for a core {100 * share:.0f} % of a step" in warning for warning in warnings)


def test_a_record_is_written_by_one_run_at_a_time(tmp_path):
    write_json(tmp_path / "job.json", {})
    refused = pytest.raises(ValueError, match=r"is being written by another `advisor run`. Wait")
    with alone(tmp_path), refused, alone(tmp_path):
        pass
    with alone(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_a_run_that_goes_on_twice_at_once_is_refused(tmp_path):
    plan, workload = Plan(dp=2, precision="fp32"), Workload(64, 4)
    job = make_job(plan, workload, load_model("tiny-gpt"), steps=3, warmup=0, cuda=False) | {
        "variables": None
    }
    predicted = {"interval": {}, "terms": {}, "memory": {}}
    files = {"job.json": job, "prediction.json": predicted, "requested.json": plan.to_dict()}
    for name, content in files.items():
        write_json(tmp_path / name, content)
    with alone(tmp_path), pytest.raises(ValueError, match="another `advisor run`"):
        resume(tmp_path, print)
    assert json.loads((tmp_path / "job.json").read_text()) == json.loads(json.dumps(job))


def test_a_record_from_before_a_knob_is_read_as_it_ran():
    # Checks for NaN are on unless a plan says otherwise; such records ran with Megatron-Core's own default.
    plan = {name: value for name, value in Plan().to_dict().items() if name != "check_for_nan_in_grad"}
    assert not plan_of({"plan": plan, "megatron": {"ddp": {}}}).check_for_nan_in_grad
    assert plan_of({"plan": Plan().to_dict(), "megatron": {"ddp": {}}}).check_for_nan_in_grad
