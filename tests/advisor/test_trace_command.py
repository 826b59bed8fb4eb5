"""advisor trace: what it writes, and bad input in one line."""

from __future__ import annotations

import gzip
import json
import re

import pytest
import tomli_w
from click.testing import CliRunner

from advisor.cli import advisor
from costmodel.model_file import to_mapping
from costmodel.model_registry import load_model

PLAN = "--model tiny-gpt --gpus 4 --gpu h100 --pp 2 --global-batch 16"


def trace(arguments: str) -> tuple[int, str, object]:
    done = CliRunner().invoke(advisor, ["trace", *arguments.split()])
    return done.exit_code, done.output, done.exception


def test_a_trace_of_options_is_written_and_told(tmp_path):
    path = tmp_path / "trace.json"
    code, output, _ = trace(f"{PLAN} -o {path}")
    assert code == 0
    record = json.loads(path.read_text())
    step = record["otherData"]["step_time_s"]
    assert max(e["ts"] + e["dur"] for e in record["traceEvents"] if e["ph"] == "X") == pytest.approx(
        step * 1e6, abs=1e-3
    )
    assert "slices" in output
    assert "perfetto" in output


def test_the_step_is_the_one_that_predict_tells(tmp_path):
    path = tmp_path / "trace.json.gz"
    _, output, _ = trace(f"{PLAN} -o {path} --json")
    told = json.loads(output)
    predicted = json.loads(CliRunner().invoke(advisor, ["predict", *PLAN.split(), "--json"]).output)
    assert told["step_time_s"] == predicted["step_time_s"]
    assert told["plan"] == predicted["knobs"]
    assert told["slices"] == sum(
        event["ph"] == "X" for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    )


@pytest.mark.parametrize(
    "fault", ["--micro-batch 8 --global-batch 32 --vpp 2 --offload-layers 2", "--model 70b"]
)
def test_a_plan_that_does_not_hold_is_drawn_and_exits_1(tmp_path, fault):
    """As predict, report and compare do: one breaks a rule, one does not fit."""
    path = tmp_path / "trace.json"
    code, output, _ = trace(f"{PLAN} {fault} -o {path}")
    assert code == 1
    assert "does not hold" in output
    assert path.exists()
    assert trace(f"{PLAN} {fault} -o {path} --json")[0] == 1
    assert "does not hold" not in trace(f"{PLAN} -o {path}")[1]


def test_a_hostile_name_stays_text(tmp_path):
    name = '"}]} </script><img src=x> \u202e'
    spec = tmp_path / "model.toml"
    mapping = to_mapping(load_model("tiny-gpt")) | {"name": name}
    spec.write_text(tomli_w.dumps({k: v for k, v in mapping.items() if v is not None}), encoding="utf-8")
    path = tmp_path / "trace.json"
    code, output, _ = trace(f"--model {spec} --gpus 4 --gpu h100 --pp 2 --global-batch 16 -o {path}")
    assert code == 0, output
    assert json.loads(path.read_text())["otherData"]["model"] == name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"{PLAN} -o no/such/folder/trace.json", "No such file|does not exist"),
        ("plan.toml --record runs/x -o trace.json", "a record has its own plan"),
        ("--record no-such-run -o trace.json", "no record of a run"),
        (f"{PLAN} --pp 3 -o trace.json", "--gpus 4 does not fit"),
        (f"{PLAN} --max-spans 3 -o trace.json", "max-spans"),
        (PLAN, "Missing option"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, output, error = trace(arguments)
    assert code != 0
    assert re.search(says, str(error) + output)
    assert list(tmp_path.iterdir()) == []
