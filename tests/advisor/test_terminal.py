"""What a person sees: 80 columns, no colours where nobody sees them, help with examples that run, completion."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys

import click
import pytest

from advisor.cli import COMMANDS, advisor

ADVISOR = [sys.executable, "-c", "import sys; sys.argv[0] = 'advisor'; from advisor.cli import main; main()"]
ESCAPE = "\x1b"
PLAN = "--model llama3-70b --gpus 64 --gpu b200 --tp 4 --pp 4 --vpp 5 --sequence-parallel"
# Commands that a person reads, with the folder's plan.toml and other.toml; (command, exit code).
READ = [
    ("explain --model 8b --gpus 8 --gpu h100 --why-not tp=8 --tokens 1e12", 0),
    ("explain --model 405b --gpus 8 --gpu h100", 1),
    ("predict plan.toml", 0),
    ("predict plan.toml --formulas", 0),
    ("predict plan.toml --term pipeline_bubble", 0),
    (f"predict {PLAN}", 0),
    ("whatif plan.toml --knob tp --knob recompute --knob tp_overlap_splits --all", 0),
    ("compare plan.toml other.toml", 0),
    ("check plan.toml", 0),
    ("check --model 70b --gpus 64 --gpu h100 --pp 64", 1),
    ("export plan.toml --to megatron-lm", 0),
    ("export other.toml --to nemo -o out", 0),
    ("trace plan.toml -o trace.json", 0),
    ("knobs", 0),
    ("knobs tp", 0),
    ("knobs avoid_record_streams", 0),
    ("models", 0),
    ("models deepseek-v3", 0),
    ("hardware", 0),
    ("hardware b200", 0),
    ("hardware gb200-nvl72", 0),
]


def start(arguments: str, folder, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program as a pipe sees it, on a page of 80 columns."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    return subprocess.run(
        [*ADVISOR, *shlex.split(arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        env=environment | {"ADVISOR_HOME": str(folder / "home")} | variables,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two plans by the names that examples use."""
    made = tmp_path_factory.mktemp("terminal")
    for name, plan in (
        ("plan", PLAN),
        ("other", "--model qwen3-30b-a3b --gpus 64 --gpu h100 --pp 4 --ep 16"),
    ):
        start(f"predict {plan} --save {name}.toml", made)
        assert (made / f"{name}.toml").is_file()
    return made


@pytest.mark.parametrize(("arguments", "code"), READ)
def test_every_line_fits_80_columns_and_is_plain(folder, arguments, code):
    done = start(arguments, folder)
    assert done.returncode == code, done.stderr
    assert "\r" not in done.stderr  # no progress where nobody watches
    assert ESCAPE not in done.stdout + done.stderr
    script = arguments.startswith("export") and "-o" not in arguments
    too_long = [line for line in done.stdout.splitlines() if len(line) > 80 and not script]
    assert too_long == []


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_80_columns_and_ends_with_examples(tmp_path, name):
    done = start(f"{name} --help", tmp_path)
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    if name:
        after = done.stdout.partition("\n  Examples:\n")[2]
        assert re.search(rf"^  advisor {name}\b", after, re.MULTILINE)
        assert "\n  -" not in after  # no option stands below them


def on_terminal(arguments: str, folder, **variables: str) -> str:
    """What the program writes on a terminal of 80 columns, standard error too."""
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen(
        [*ADVISOR, *shlex.split(arguments)],
        stdout=follower,
        stderr=follower,
        cwd=folder,
        env=environment | {"TERM": "xterm", "COLUMNS": "80"} | variables,
    )
    os.close(follower)
    found = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the program has closed its end
            break
        if not part:
            break
        found += part
    os.close(leader)
    assert child.wait(60) == 0
    return found.decode()


def test_a_terminal_gets_bold_heads_and_dim_small_print_that_any_background_shows(folder):
    shown = on_terminal("predict plan.toml", folder)
    assert f"{ESCAPE}[1m" in shown
    # Bold and dim keep the terminal's own colours: nothing that a light or a dark background swallows.
    assert set(re.findall(rf"{ESCAPE}\[([0-9;]*)m", shown)) <= {"0", "1", "2"}


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_are_honoured(folder, variables):
    assert ESCAPE not in on_terminal("predict plan.toml", folder, **variables)


def test_a_terminal_and_a_pipe_read_the_same(folder):
    shown = re.sub(rf"{ESCAPE}\[[0-9;]*m", "", on_terminal("check plan.toml", folder)).replace("\r\n", "\n")
    assert shown == start("check plan.toml", folder).stdout


def examples() -> list[tuple[str, str]]:
    """Every example of every command's help, lines that go on joined."""
    found = []
    for name in COMMANDS:
        command = advisor.get_command(click.Context(advisor), name)
        text = (command.epilog or "").replace("\\\n", " ")
        found += [
            (name, re.split(r"\s{2,}(?!-)", line)[0]) for line in text.splitlines() if "advisor " in line
        ]
    return found


# Examples that need GPUs, other hosts, a log, a record or minutes; they are parsed.
SLOW = ("run", "calibrate", "dryrun", "diagnose", "validate", "doctor", "report")
MISSING = re.compile(r"train\.log|runs/|b\.toml|\.csv|--from|--logs|trace\.json\b(?<!-o trace\.json)")


@pytest.mark.parametrize(("name", "line"), examples())
def test_examples_of_the_help_run(folder, name, line):
    words = shlex.split(line)
    assert words[:2] == ["advisor", name]
    if name in SLOW or MISSING.search(line):
        command = advisor.get_command(click.Context(advisor), name)
        group = click.Context(advisor, **advisor.context_settings)
        with click.Context(command, parent=group) as context:
            command.parse_args(context, words[2:])
        return
    done = start(shlex.join(words[1:]), folder)
    assert done.returncode in (0, 1), done.stderr  # 1: a plan that does not hold is an answer
    assert done.stdout


def completed(words: str, folder) -> list[str]:
    """What bash offers for the last word of a line."""
    count = len(words.split()) - (not words.endswith(" "))
    variables = {"_ADVISOR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = start("", folder, **variables)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")]


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("advisor expl", ["explain"]),
        ("advisor explain --model llama3-7", ["llama3-70b"]),
        ("advisor explain --gpu gb3", ["gb300"]),
        ("advisor predict --precision nv", ["nvfp4"]),
        ("advisor predict --cp-comm-type a2", ["a2a", "a2a+p2p"]),
        ("advisor explain --pin cp_comm", ["cp_comm_type="]),
        ("advisor explain --pin sequence_parallel=", ["sequence_parallel=on", "sequence_parallel=off"]),
        ("advisor explain --objective m", ["memory"]),
        ("advisor knobs cp_comm", ["cp_comm_type"]),
        ("advisor completion z", ["zsh"]),
        ("advisor hardware gb200-nvl7", ["gb200-nvl72"]),
        ("advisor predict --micro-b", ["--micro-batch"]),
    ],
)
def test_a_shell_completes_commands_models_machines_and_knobs(folder, words, offers):
    assert completed(words, folder) == offers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_a_shell_reads(tmp_path, shell):
    script = start(f"completion {shell}", tmp_path).stdout
    assert "_ADVISOR_COMPLETE" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "completion tcsh",
            "'tcsh' is not a shell that completes advisor's words. Known are bash, zsh, fish.",
        ),
        ("completion BASH", "advisor's words. Did you mean bash?"),
        ("completion", "no shell named; known are bash, zsh, fish. Try advisor completion bash."),
        ("models nosuch", "Error: 'nosuch' is not a known model or file."),
    ],
)
def test_words_that_are_no_option_are_refused_as_given(tmp_path, words, says):
    refused = start(words, tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert says in refused.stderr
    assert refused.stderr.count("\n") == 1
