"""The command line: options follow the catalogue, errors are one line, help is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import COMMANDS, advisor
from advisor.commands.knobs import find_knobs
from advisor.options import flag, given_knobs, knob_options, plan_from_options, split_pairs, value_text
from advisor.sizes import SizesError
from costmodel.knobs import KNOBS
from costmodel.plan import Plan

small = st.integers(1, 8)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as a user starts it."""
    return subprocess.run(
        [sys.executable, "-c", "from advisor.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def built() -> list[str]:
    """Commands whose file is there."""
    names = []
    for name in COMMANDS:
        try:
            advisor.get_command(click.Context(advisor), name)
        except ModuleNotFoundError:
            continue
        names.append(name)
    return names


def test_python_m_advisor_is_the_program():
    """On a machine where the script is on no path."""
    words = [sys.executable, "-m", "advisor", "models", "tiny-gpt"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run("models", "tiny-gpt").stdout


def test_every_command_announced_is_there():
    assert built() == list(COMMANDS)


@pytest.mark.parametrize("name", built())
def test_help_reads_the_same_after_a_use_without_the_group(name):
    """click keeps the help option of a command's first context: pages of help depended on which tests ran before."""
    command = advisor.get_command(click.Context(advisor), name)
    assert command.make_context(name, [], resilient_parsing=True).help_option_names == ["-h", "--help"]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from advisor.cli import advisor; advisor.main(['--help'], standalone_mode=False); "
        "print([m for m in ('numpy', 'sympy', 'pydantic', 'torch', 'costmodel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", built())
def test_every_command_has_help_an_example_and_json(name):
    command = advisor.get_command(click.Context(advisor), name)
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert re.search(rf"^\s*advisor {name}\b", command.epilog, re.MULTILINE)
    assert COMMANDS[name].endswith(".")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explian"], "Did you mean explain?"),
        (["knobs", "model.cp_com_type"], "Did you mean cp_comm_type"),
        (["predict", "no-such-file.toml"], "No such file"),
        (["predict", "--model", "llama3-8b"], "no machine: give --gpu"),
        (["predict", "--model", "llama3-8b", "--gpu", "h100", "--tp", "x"], "--tp 'x' is not a whole number"),
        (["explain", "--model", "8b", "--gpus", "8"], "no machine: give --gpu"),
        (["explain", "--gpus", "8", "--gpu", "h100"], "model"),
        (["check", "--model", "8b", "--gpu", "h100", "--precision", "fp88"], "Did you mean"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says):
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_no_command_shows_the_help_as_it_is():
    """It came as an error, all of the help in one line."""
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["trace", "plan.toml"], "Missing option '-o'"),
        (["explain", "70b"], "Missing option '--model'. Try --model 70b."),
        (
            ["explain", "--model", "70b", "--days", "30"],
            "Try --gpus 8; with --tokens and --days any number does",
        ),
        (["dryrun", "plan.toml", "other.toml"], "unexpected extra argument"),
        (["diagnose"], "Missing argument"),
    ],
)
def test_an_error_about_options_tells_the_way_out(arguments, fault):
    done = run(*arguments)
    assert done.returncode == 2
    assert fault in done.stderr
    assert done.stderr.endswith(f"{arguments[0]} --help` tells what it takes.\n")


def test_an_option_without_its_value_tells_the_way_out():
    """It was click's own text, which names none."""
    said = "Error: Option '--stages' requires an argument. Write it behind the option, or leave the option out.\n"
    assert run("dryrun", "--stages").stderr == said


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_outputs_are_no_fault_of_the_command(closed):
    command = f"{sys.executable} -m advisor models tiny-gpt {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == ""


def options_command() -> click.Command:
    found: dict[str, object] = {}

    @click.command()
    @knob_options
    def command(**options: object) -> None:
        found.update(options)
        click.echo(json.dumps(given_knobs(options)))

    return command


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_every_knob_is_an_option(knob):
    other = {
        "int": str(max(knob.low, 2)),
        "float": str(knob.high),
        "text": "balanced",
        "bool": "",
        "choice": knob.choices[-1] if knob.choices else "",
        "list": ",".join(knob.choices),
    }[knob.kind]
    arguments = [flag(knob.name), other] if other else [flag(knob.name)]
    done = CliRunner().invoke(options_command(), arguments)
    assert json.loads(done.output).keys() == {knob.name}


def test_flags_can_be_turned_off_and_what_is_not_given_is_left_alone():
    done = CliRunner().invoke(options_command(), ["--no-overlap-p2p"])
    assert json.loads(done.output) == {"overlap_p2p": False}


@given(tp=small, pp=small, cp=small, dp=small)
def test_dp_follows_from_the_gpus(tp, pp, cp, dp):
    sizes = {"tp": tp, "pp": pp, "cp": cp}
    assert plan_from_options(sizes, tp * pp * cp * dp).dp == dp


def test_gpus_that_do_not_fit_are_refused_with_a_way_out():
    with pytest.raises(SizesError, match=r"not a multiple of tp x pp x cp = 64\.$") as refusal:
        plan_from_options({"tp": 8, "pp": 8}, 96)
    assert refusal.value.line(lambda changes: 0).endswith("Try --gpus 128, or --tp 6, or --pp 6.")
    with pytest.raises(ValueError, match="Leave out --dp"):
        plan_from_options({"tp": 2, "dp": 2}, 8)
    with pytest.raises(ValueError, match="--gpus 0"):
        plan_from_options({}, 0)


def test_fsdp_and_its_stage_follow_each_other():
    assert plan_from_options({"fsdp": True}, None).zero_stage == 3
    assert plan_from_options({"fsdp": False}, None, Plan(fsdp=True, zero_stage=3)) == Plan()


def test_pairs_part_at_commas_before_a_name():
    assert split_pairs("tp=4,recompute_modules=mlp,layernorm,pp=2") == [
        "tp=4",
        "recompute_modules=mlp,layernorm",
        "pp=2",
    ]


def test_values_read_as_people_write_them():
    assert [value_text(v) for v in (True, False, (), ("mlp", "layernorm"), 4)] == [
        "on",
        "off",
        "none",
        "mlp+layernorm",
        "4",
    ]


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_knobs_are_found_by_their_names_in_frameworks(knob):
    for name in (knob.name, flag(knob.name), knob.megatron_bridge, knob.megatron_lm.split(",")[0]):
        if name and "derived" not in name:
            assert knob in find_knobs(name)


def test_the_catalogue_prints_every_knob_as_text_and_json():
    text = CliRunner().invoke(advisor, ["knobs"]).output
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in KNOBS)
    record = json.loads(CliRunner().invoke(advisor, ["knobs", "--json"]).output)
    assert [knob["name"] for knob in record["knobs"]] == list(KNOBS)


def test_a_warm_explain_imports_no_sympy_and_no_pydantic():
    code = (
        "import sys; from advisor.cli import advisor; "
        "advisor.main('explain --model tiny-gpt --gpus 2 --gpu h100 --global-batch 8'.split(), standalone_mode=False); "
        "print([m for m in ('sympy', 'pydantic', 'tabulate', 'scipy', 'torch') if m in sys.modules])"
    )
    for _ in range(2):  # the first one may have to compile
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
