"""--profile: every command that predicts takes what `advisor calibrate` wrote; errors are one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tomli_w
from click.testing import CliRunner

import hardware_db
from advisor.cli import COMMANDS, advisor
from executor.calibrate import base_document
from executor.calibrate_tables import Leaf

PLAN = ["--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--global-batch", "128", "--seq-len", "4096"]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A profile named slow: an H100 whose products run at half the usual rate in a step."""
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    document = base_document(hardware_db.resolve("h100", None)[0])
    document["calibration"] = {"step": {"gemm_rate": Leaf("made up for this test")(0.4, "1")}}
    path = tmp_path / "profiles" / "slow.toml"
    path.parent.mkdir()
    path.write_text(tomli_w.dumps(document))
    return path


def run(*words: str) -> tuple[int, str, str]:
    """Exit code, output and error of a command; a ValueError is what the entry point tells in one line."""
    result = CliRunner().invoke(advisor, [str(word) for word in words])
    if isinstance(result.exception, ValueError):
        return 2, result.output, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output, ""


def step(*words: str) -> float:
    """Step time of a plan. [s]"""
    return json.loads(run("predict", *PLAN, "--json", *words)[1])["step_time_s"]


def test_a_profile_by_name_and_by_path_is_the_machine(slow):
    usual = step("--gpu", "h100")
    by_name, by_path = step("--profile", "slow"), step("--profile", slow)
    assert by_name == by_path > 1.3 * usual
    # Naming the same machine as well says nothing new.
    assert step("--gpu", "h100", "--profile", "slow") == by_name
    assert step("--cluster", "dgx-h100", "--profile", "slow") == by_name


def test_commands_that_predict_take_a_profile(slow):
    for name in COMMANDS:
        words = run(name, "--help")[1]
        takes_a_machine = "--gpu NAME" in words or "--gpu TEXT" in words
        assert not takes_a_machine or "--profile" in words, name


def test_a_plan_file_is_predicted_with_a_profile(slow, tmp_path):
    plan = tmp_path / "plan.toml"
    run("predict", *PLAN, "--gpu", "h100", "--save", plan)
    usual, own = (
        json.loads(run("predict", plan, "--json", *more)[1])["step_time_s"]
        for more in ([], ["--profile", "slow"])
    )
    assert own > 1.3 * usual


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "slwo"], "Did you mean slow"),
        (["--profile", "./no.toml"], "does not exist"),
        (["--profile", "/"], "/ is a folder"),
        (["--gpu", "b200", "--profile", "slow"], "disagree"),
        (["--cluster", "dgx-b200", "--profile", "slow"], "disagree"),
    ],
)
def test_what_is_wrong_with_a_profile_is_told_in_one_line(slow, words, said):
    code, _, error = run("predict", *PLAN, *words)
    assert code == 2
    assert said in error
    assert "\n" not in error


def test_calibrate_tells_what_it_needs(slow, tmp_path):
    code, _, error = run("calibrate", "--from", tmp_path)
    assert code == 2
    assert "no job.json" in error
    code, _, error = run("calibrate", "--gpu", "h100")
    assert code == 2
    assert "--from" in error
    code, _, error = run("calibrate", "--gpus", "1000")
    assert code == 2
    assert "1000 processes" in error


def test_a_profile_of_other_processes_says_so(tmp_path, monkeypatch):
    """Four processes on two cores were told to be twice as quick as two, without a word."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "executor"))
    from planted_machine import planted

    from advisor.run_plan import machine
    from executor.local_profile import profile, write_profile
    from executor.resolve import Here

    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    mine = tmp_path / "mine.toml"
    write_profile(mine, profile(planted(), 2))
    said = "was measured with 2 processes, and 4 share its cores"
    tiny = ["--model", "tiny-gpt", "--global-batch", "8", "--seq-len", "256", "--precision", "fp32"]
    for command in ("predict", "explain"):
        for gpus, told in ((4, True), (2, False)):
            out = run(command, *tiny, "--gpus", gpus, "--profile", mine)[1]
            assert (said in " ".join(out.split())) == told, (command, gpus)
            assert "65536" not in out  # GPUs that share one fast domain, of a machine that has none
    options = {"profile": str(mine), "nodes": None}
    assert said in machine(4, options, Here(), print)[1][0]
    assert machine(4, options | {"nodes": 2}, Here(), print)[1] == []
