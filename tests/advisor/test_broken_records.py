"""A record that is torn, of another version, or cut in its warm-up: what it tells is read, the rest is one line."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.record import is_step, read_memory, read_steps
from executor.run import make_job, summarise

PLAN = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "2", "--sequence-parallel"]


def asked(*words) -> tuple[int, str]:
    """Exit code and the text, or the one line of the error."""
    result = CliRunner().invoke(advisor, [str(word) for word in words])
    if isinstance(result.exception, ValueError):
        assert type(result.exception) is ValueError, result.exc_info
        return 2, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


@pytest.fixture
def record(tmp_path):
    """The record of a run that ended well."""
    predicted = json.loads(asked("predict", *PLAN, "--json")[1])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "prediction.json").write_text(json.dumps(predicted))
    phases = {"forward": 0.3, "backward": 0.6, "communication": 0.05, "optimizer": 0.01}
    steps = [
        {"step": number, "loss": 5.0 - number, "seconds": 1.0, "phases": phases, "warmup": False}
        for number in range(5)
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (folder / "memory-0.json").write_text(json.dumps({"peak_bytes": 2**30, "base_bytes": 0}))
    measured, warnings = summarise(folder, Workload(**predicted["workload"]), predicted["gpus"])
    (folder / "comparison.json").write_text(
        json.dumps({"measured": measured, "rows": [], "warnings": warnings})
    )
    return folder


def whole_job(folder, wanted: int = 5) -> None:
    """What a run that can go on keeps beside its prediction."""
    plan, workload = Plan(dp=2, precision="fp32"), Workload(64, 4)
    job = make_job(plan, workload, load_model("tiny-gpt"), steps=wanted, warmup=0, cuda=False)
    (folder / "job.json").write_text(json.dumps(job | {"variables": None}))
    (folder / "requested.json").write_text(json.dumps(plan.to_dict()))


def change(path, **changes) -> None:
    """Some keys of a JSON file; None removes one."""
    kept = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in kept.items() if value is not None}))


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"{}", b"\xff\xfe"], ids=str)
def test_a_torn_memory_file_costs_its_row_alone(record, torn):
    (record / "memory-0.json").write_bytes(torn)
    assert read_memory(record) == []
    for command in ("diagnose", "compare"):
        code, text = asked(command, record)
        assert (code, "peak memory" in text) == (0, False)


@pytest.mark.parametrize(
    "line",
    [
        {"seconds": "x"},
        {"seconds": 0},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"step": "a"},
        {"phases": "x"},
    ],
    ids=str,
)
def test_a_line_that_tells_no_step_is_left_out(record, line):
    lines = (record / "steps.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert is_step(first)
    torn = "\n".join([json.dumps(first | line), *lines[1:]])
    (record / "steps.jsonl").write_bytes(b"\xff\n" + torn.encode())
    assert [step["step"] for step in read_steps(record)] == [1, 2, 3, 4]
    assert asked("diagnose", record)[0] == 0


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("prediction.json", {"interval": None}, "'interval' is missing"),
        ("comparison.json", {"measured": {"step_time_s": 0.0, "spread": 0.0}}, "a step of 0.0 s"),
        ("prediction.json", {"knobs": {"of_tomorrow": 1}}, "of_tomorrow"),
    ],
)
def test_a_record_of_another_version_is_refused_in_one_line(record, name, changes, said):
    change(record / name, **changes)
    for command in ("diagnose", "compare"):
        code, text = asked(command, record)
        assert code == 2
        assert "is a run record of another form or version" in text
        assert said in text


def test_a_run_that_was_cut_in_its_warm_up_says_how_to_go_on(record):
    (record / "comparison.json").unlink()
    lines = (record / "steps.jsonl").read_text().splitlines()
    warm = [json.dumps(json.loads(line) | {"warmup": True}) for line in lines]
    (record / "steps.jsonl").write_text("\n".join(warm))
    for command in ("diagnose", "compare"):
        told = asked(command, record)[1]  # without its job, which --resume-measure needs
        assert "--resume-measure" not in told
        assert "Run the plan again." in told
    whole_job(record)
    for command in ("diagnose", "compare"):
        assert f"`advisor run --resume-measure {record}` goes on" in asked(command, record)[1]


def test_a_complete_record_is_not_told_to_go_on(record):
    """`trace` told it of every record without a timeline, and `run` then that the record is complete."""
    whole_job(record)
    trace = ("trace", "--record", record, "-o", record / "trace.json")
    assert asked(*trace)[1].endswith("Run the plan again.")
    whole_job(record, wanted=9)
    assert asked(*trace)[1].endswith(f"`advisor run --resume-measure {record}` goes on.")


@pytest.mark.parametrize("command", ["diagnose", "compare"])
def test_a_folder_that_is_no_record_is_not_told_to_go_on(tmp_path, command):
    """`run --resume-measure` refused the folder that it was to take."""
    folder = tmp_path / "my run's"
    folder.mkdir()
    code, text = asked(command, folder)
    assert code == 2
    assert "is no run record: it holds no" in text
    assert "--resume-measure" not in text
    (folder / "job.json").write_text("{}")  # of no use to --resume-measure either
    assert "--resume-measure" not in asked(command, folder)[1]
    whole_job(folder)
    (folder / "prediction.json").write_text('{"interval": {}}')
    if command == "diagnose":
        assert (
            f"`{shlex.join(['advisor', 'run', '--resume-measure', str(folder)])}` goes on"
            in asked(command, folder)[1]
        )


def test_a_record_is_no_plan_file(record):
    (record / "job.json").write_text("{}")
    code, text = asked("predict", record)
    assert code == 2
    assert f"is the record of a run, not a plan file. `advisor compare {record}`" in text
