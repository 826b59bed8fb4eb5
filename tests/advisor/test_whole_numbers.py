"""Counts as people type them: plain numbers, lengths with a K, and one line for what is neither."""

from __future__ import annotations

import importlib

import click
import pytest
from click.testing import CliRunner

from advisor.cli import COMMANDS, advisor
from advisor.whole_numbers import COUNT, TOKENS
from hardware_db.evidence import load_evidence

SETTING = ["predict", "--model", "8b", "--gpu", "h100", "--tp", "2", "--sequence-parallel"]


def run(*arguments: str):
    return CliRunner().invoke(advisor, [*SETTING, *arguments])


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        (TOKENS, "8192", 8192),
        (TOKENS, "128K", 131_072),
        (TOKENS, "128k", 131_072),
        (TOKENS, "1M", 2**20),
        (TOKENS, "1.5K", 1536),
        (TOKENS, "131,072", 131_072),
        (COUNT, "1_024", 1024),
        (COUNT, "1e3", 1000),
        (COUNT, "-1", -1),
        (COUNT, 64, 64),
    ],
)
def test_numbers_as_people_say_them(kind, text, number):
    assert kind.convert(text, None, None) == number


def test_a_length_with_a_k_is_that_of_its_tokens():
    done = run("--gpus", "8", "--seq-len", "8K")
    assert "8,192 tokens a sequence" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--seq-len", "128Q", "is not a whole number, of which a K is 1,024. Try --seq-len 8192."),
        ("--seq-len", "0.3", "is not a whole number, of which a K is 1,024. Try --seq-len 1."),
        ("--global-batch", "1k", "is not a whole number. Try --global-batch 1000, or 1024."),
        (
            "--global-batch",
            "4M",
            "is not a whole number of sequences: tokens over --seq-len. Try --global-batch 128.",
        ),
        ("--gpus", "64.5", "is not a whole number. Try --gpus 64."),
        ("--gpus", "many", "is not a whole number. Try --gpus 8."),
        ("--gpus", "1e99999", "is not a whole number. Try --gpus 8."),
    ],
)
def test_anything_else_is_one_line_with_the_way_out(option, given, said):
    """It was click's own text, which names no way out."""
    with pytest.raises(ValueError, match="is not a whole number") as refused:
        CliRunner().invoke(advisor, [*SETTING, option, given], catch_exceptions=False)
    assert str(refused.value) == f"{option} {given!r} {said}"


@pytest.mark.parametrize("command", ["explain", "predict", "check"])
def test_more_gpus_than_a_plan_has_are_told_the_limit_and_why(command):
    """A thousand million were answered with 8, and by other commands with a --dp that nobody gave."""
    given = [command, "--model", "8b", "--gpu", "h100", "--gpus", "1e9"]
    said = str(CliRunner().invoke(advisor, given).exception)
    largest = max(run.gpus for run in load_evidence())
    assert "is more than 1,048,576, the largest --dp of a plan" in said
    assert f"Try --gpus {largest}, or at most 1048576." in said


@pytest.mark.parametrize(
    "arguments",
    [
        "explain --top 2.5: '2.5' is not a whole number. Try --top 2.",
        "explain --top x: 'x' is not a whole number. Try --top 5.",
        "predict --lora-rank x: 'x' is not a whole number. Try --lora-rank 16.",
        "predict --length-cv x: 'x' is not a number. Try --length-cv 0.5.",
        "explain --days soon: 'soon' is not a number. Try --days 60.",
        "run --nodes x: 'x' is not a whole number. Try --nodes 2.",
        "run --node-rank x: 'x' is not a whole number. Try --node-rank 0.",
        "run --steps 0: '0' is not a whole number from 1 to 10000. Try --steps 1.",
        "run --steps 1e9: '1e9' is not a whole number from 1 to 10000. Try --steps 10000.",
        "run --steps many: 'many' is not a whole number from 1 to 10000. Try --steps 10.",
        "run --warmup 2.5: '2.5' is not a whole number from 0 to 1000. Try --warmup 2.",
        "dryrun --stage x: 'x' is not a whole number. Try --stage 0.",
        "dryrun --microbatches 0: '0' is not a whole number from 1. Try --microbatches 1.",
        "calibrate --time 1: '1' is not a number from 5 to 3600. Try --time 5.",
        "calibrate --time nan: 'nan' is not a number from 5 to 3600. Try --time 180.",
    ],
)
def test_bounds_and_other_numbers_are_told_alike(arguments):
    """They were click's own text: 'x' is not a valid integer range."""
    given, _, said = arguments.partition(": ")
    with pytest.raises(ValueError, match="is not a") as refused:
        CliRunner().invoke(advisor, given.split(), catch_exceptions=False)
    assert str(refused.value) == f"{given.split()[1]} {said}"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_number_is_left_to_click(name):
    command = importlib.import_module(f"advisor.commands.{name}").command
    numbers = [each for each in command.params if isinstance(each.type, (type(click.INT), type(click.FLOAT)))]
    left = [each.opts for each in numbers if type(each.type).__module__.startswith("click")]
    assert not left


@pytest.mark.parametrize(
    ("option", "given", "way"),
    [
        ("--lora-rank", "0", "1"),
        ("--mean-length", "9000", "8192"),
        ("--moe-imbalance", "nan", "1"),
        ("--global-batch", "0", "128"),  # it was 4096, the way out of a sequence length
        ("--global-batch", "99999999", "4194304"),
    ],
)
def test_what_a_workload_cannot_be_has_a_way_out(option, given, way):
    with pytest.raises(ValueError, match=f"Try {option} {way}\\.$"):
        CliRunner().invoke(
            advisor, [*SETTING, "--seq-len", "8192", "--gpus", "8", option, given], catch_exceptions=False
        )
