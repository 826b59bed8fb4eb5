"""One contract for all commands: 1 for a plan that does not hold, 2 for bad input; each in one line."""

from __future__ import annotations

import os
import sys

import click
import pytest

from advisor.cli import COMMANDS, advisor, main

SETTING = ("--model", "llama3-8b", "--gpus", "8", "--gpu", "h100")
PLAN = """schema = 1
[model]
name = "llama3-8b"
[workload]
seq_len = 8192
global_batch = {batch}
[cluster]
name = "{cluster}"
gpus = {gpus}
[knobs]
dp = 8
zero_stage = 3
fsdp = true
precision = "{precision}"
"""
# What breaks a rule and leaves nothing to predict, with a word of the line.
FAULTS = {
    "batch": ({"batch": 12}, "not a multiple of micro_batch x dp"),
    "format": ({"cluster": "dgx-a100", "precision": "fp8-cs"}, "A100"),
}


def plan_file(folder, name="plan.toml", **values):
    path = folder / name
    given = {"batch": 128, "cluster": "dgx-h100", "gpus": 8, "precision": "bf16"} | values
    path.write_text(PLAN.format(**given))
    return str(path)


def ends(monkeypatch, capsys, *words):
    """Exit code, output and error of the program."""
    monkeypatch.setattr(sys, "argv", ["advisor", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "command", ["check", "predict", "whatif", "report", "trace", "export", "dryrun", "compare", "run"]
)
def test_a_plan_that_breaks_a_rule_ends_with_1(command, fault, tmp_path, monkeypatch, capsys):
    values, word = FAULTS[fault]
    path = plan_file(tmp_path, **values)
    more = {
        "report": ["-o", str(tmp_path / "plan.html")],
        "trace": ["-o", str(tmp_path / "plan.json")],
        "export": ["--to", "megatron-lm"],
        "compare": [plan_file(tmp_path, "other.toml")],
        "run": ["--slurm", "--print-only"],
    }
    code, out, error = ends(monkeypatch, capsys, command, path, *more.get(command, []))
    assert code == 1, error
    assert word in out + error
    if command not in ("check", "export"):
        assert error.count("\n") == 1, error
    assert not (tmp_path / "plan.html").exists()
    assert not (tmp_path / "plan.json").exists()


def test_what_no_rule_forbids_and_cannot_be_told_is_bad_input(monkeypatch, capsys):
    code, _, error = ends(monkeypatch, capsys, "predict", *SETTING, "--stack", "nemo-99.99")
    assert code == 2, error


@pytest.mark.parametrize(("gpus", "ranks"), [(7, "7 with --global-batch 133"), (16, "16")])
def test_dryrun_of_a_layout_on_other_gpus_than_there_are_is_refused(
    gpus, ranks, tmp_path, monkeypatch, capsys
):
    """What was given, the rule, the way out: it said "agrees", of ranks that nobody has."""
    code, out, error = ends(monkeypatch, capsys, "dryrun", plan_file(tmp_path, gpus=gpus))
    assert code == 1, error
    assert not out
    assert f"= 8 GPUs, but there are {gpus}. Set dp = {ranks}, or --gpus 8." in error
    assert error.count("\n") == 1


def test_a_page_of_a_plan_for_other_gpus_says_that_it_does_not_hold(tmp_path, monkeypatch, capsys):
    """It ended with 1 after "Open it in a browser." alone, and its head had the GPUs of the sizes."""
    page = tmp_path / "plan.html"
    code, out, _ = ends(monkeypatch, capsys, "report", plan_file(tmp_path, gpus=16), "-o", str(page))
    assert code == 1
    assert "The plan does not hold: `advisor check` tells why, and the way out." in out
    assert "16 x H100 SXM5 80GB (dgx-h100), of which its sizes take 8" in page.read_text()


# Options that name a file or folder, by what their help calls it; NAME is of catalogues, which know no empty name.
PATHS = {"FILE", "DIR", "PROFILE", "RECORD", "PREFIX", "PLAN"}
NAMED = [
    (command, max(option.opts, key=len))
    for command in COMMANDS
    for option in advisor.get_command(click.Context(advisor), command).params
    if isinstance(option, click.Option) and option.metavar in PATHS and option.type.name == "text"
]
ARGUMENTS = [
    command
    for command in COMMANDS
    for option in advisor.get_command(click.Context(advisor), command).params
    if isinstance(option, click.Argument)
]


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize(("command", "option"), NAMED)
def test_an_empty_path_is_one_line(command, option, blank, tmp_path, monkeypatch, capsys):
    """As of an unset variable: `calibrate -o ''` wrote over the machine's own profile, `--save ''` saved nothing."""
    monkeypatch.chdir(tmp_path)
    words = {"export": ["--to", "nemo"], "diagnose": ["train.log"], "compare": ["train.log"]}
    if command in ("report", "trace") and option == "--record":
        words[command] = ["-o", "there.html"]
    code, out, error = ends(monkeypatch, capsys, command, *words.get(command, []), option, blank)
    assert code == 2, error
    assert f"{option} is empty" in error
    assert error.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("command", sorted(set(ARGUMENTS)))
def test_an_empty_argument_is_one_line(command, blank, tmp_path, monkeypatch, capsys):
    """`compare '' ''` told of a folder "." which nobody had named."""
    monkeypatch.chdir(tmp_path)
    words = {"export": ["--to", "nemo"], "report": ["-o", "there.html"], "trace": ["-o", "there.json"]}
    code, out, error = ends(monkeypatch, capsys, command, blank, *words.get(command, []))
    assert code == 2, error
    assert error.count("\n") == 1
    assert "is empty" in error or "is no" in error or f"is {blank!r}: it names" in error
    assert not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["compare", "plan.toml", ""], "B"),
        (["calibrate", "--from", ""], "--from"),
        (["calibrate", "--from", "run", ""], "RECORD"),
        (["explain", *SETTING, "--profile", ""], "--profile"),
        (["explain", *SETTING, "--stack", ""], "--stack"),
        (["predict", *SETTING, "--stack", " "], "--stack"),
        (["calibrate", "--from", "run", "--stack", ""], "--stack"),
        (["predict", *SETTING, "--term", ""], "--term"),
        (["export", *SETTING, "--to", "nemo", "--target-version", ""], "--target-version"),
    ],
    ids=str,
)
def test_an_empty_name_is_one_line(words, given, tmp_path, monkeypatch, capsys):
    """`--stack ''` was answered for the newest release, and `--profile ''` told to calibrate -o nothing."""
    monkeypatch.chdir(tmp_path)
    code, out, error = ends(monkeypatch, capsys, *words)
    assert code == 2, error
    assert error.startswith(f"Error: {given} is empty: it names ")
    assert error.count("\n") == 1
    assert not out


def test_the_list_of_empty_paths_has_every_command_that_writes():
    assert {command for command, option in NAMED if option in ("--output", "--save")} == {
        "calibrate",
        "check",
        "explain",
        "export",
        "predict",
        "report",
        "trace",
    }


def test_a_folder_that_takes_no_files_is_told_with_the_files_name(tmp_path, monkeypatch, capsys):
    if not os.path.isdir("/proc/self"):
        pytest.skip("no /proc")
    code, _, error = ends(monkeypatch, capsys, "check", plan_file(tmp_path), "--save", "/proc/new-plan.toml")
    assert code == 2
    assert error.startswith("Error: /proc/new-plan.toml: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trace --record RUN --tp 2 -o t.json", "--tp beside --record"),
        ("trace --record RUN --gpus 8 --set bucket_size=1 -o t.json", "--gpus, --set beside --record"),
        (
            "calibrate --from RUN --gpus 4 --time 9 --refuse-noise",
            "--time, --gpus, --refuse-noise beside --from",
        ),
        ("dryrun PLAN --stage 0 --stages all", "--stage 0 and --stages all both say"),
        ("run PLAN --recalibrate --profile mine.toml", "--recalibrate measures this machine's own profile"),
    ],
)
def test_an_option_that_nothing_would_be_done_with_is_refused(words, says, tmp_path, monkeypatch, capsys):
    """Left aside without a word, another question than that asked was answered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("")
    path = plan_file(tmp_path)
    asked = words.replace("PLAN", path).split()
    code, out, error = ends(monkeypatch, capsys, *asked)
    assert (code, out) == (2, "")
    assert says in error
    assert error.count("\n") == 1
