"""Runs beside the plan of a page: logs, whose plan is the page's, whatever they show of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from click.testing import CliRunner

from advisor.cli import advisor

sys.path.insert(0, str(Path(__file__).parents[2] / "executor" / "logs"))
from written import megatron_log

SETTING = (
    "--model",
    "llama3-8b",
    "--gpus",
    "8",
    "--gpu",
    "h100",
    "--seq-len",
    "8192",
    "--global-batch",
    "64",
)


def test_a_log_is_taken_for_a_run_of_the_plan(tmp_path, monkeypatch):
    """Every log was refused: one with arguments for want of a machine, one without for want of a plan."""
    monkeypatch.chdir(tmp_path)
    steps = [(step, 6.0) for step in range(1, 12)]
    Path("shown.log").write_text(megatron_log(steps, dump="llama3-8b-tp2-pp2-vpp2-dp4"))
    Path("bare.log").write_text(megatron_log(steps))
    told = CliRunner().invoke(
        advisor, ["predict", *SETTING, "--tp", "2", "--sequence-parallel", "--save", "p.toml"]
    )
    assert told.exit_code == 0, told.output
    told = CliRunner().invoke(
        advisor, ["report", "p.toml", "-o", "p.html", "--record", "shown.log", "--record", "bare.log"]
    )
    assert not told.exception or isinstance(told.exception, SystemExit), told.exception
    assert "Wrote p.html" in told.output
    page = Path("p.html").read_text()
    assert page.count("measured steps on dgx-h100") == 2
    assert "the log shows another plan: pp 2 (plan: 1)" in page
    assert "It ran, and is predicted here, with" not in page


def test_a_run_without_features_of_the_plan_says_which(tmp_path, monkeypatch):
    """The page had two predictions of what it called one plan: of the plan, and of what its machine could run of it."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    asked = ["predict", *SETTING, "--tp", "2", "--sequence-parallel", "--save", "p.toml"]
    assert CliRunner().invoke(advisor, asked).exit_code == 0
    resolved = CliRunner().invoke(advisor, ["predict", "p.toml", "--no-rope-fusion", "--json"])
    (run / "prediction.json").write_text(resolved.stdout)
    phases = {"forward": 1.0, "backward": 2.0, "communication": 0.1, "optimizer": 0.1}
    step = {"step": 0, "seconds": 4.0, "warmup": False, "loss": 1.0, "phases": phases}
    (run / "steps.jsonl").write_text(json.dumps(step) + "\n")
    told = CliRunner().invoke(advisor, ["report", "p.toml", "-o", "p.html", "--record", "run"])
    assert told.exit_code == 0, told.output
    page = Path("p.html").read_text()
    assert "It ran, and is predicted here, with rope_fusion off instead of on." in page
