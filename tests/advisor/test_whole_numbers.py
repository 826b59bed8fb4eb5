"""Counts as people type them: plain numbers, lengths with a K, and one line for what is neither."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.whole_numbers import COUNT, TOKENS

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
