"""Task and tokens as people write them."""

import json

import pytest
from click.testing import CliRunner

from advisor.cli import advisor

CASE = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100"]


def answer(*arguments):
    return CliRunner().invoke(advisor, [*arguments, "--json"], catch_exceptions=False)


@pytest.mark.parametrize("said", ["15T", "15e12", "15,000B", "15_000_000m", "1.5e10k"])
def test_tokens_are_read_as_people_say_them(said):
    asked = json.loads(answer("explain", *CASE, "--tokens", said).output)
    assert asked["cost"]["tokens"] == pytest.approx(15e12)


@pytest.mark.parametrize("said", ["1 trillion", "1,5T", "T", "1.2.3", ""])
def test_tokens_of_no_number_are_refused_with_a_way_out(said):
    """1,5 may be a decimal comma: ten times as many tokens would be a bad guess."""
    with pytest.raises(ValueError, match=f"--tokens '{said}' is not a number of tokens"):
        answer("explain", *CASE, "--tokens", said)


def test_a_task_is_known_in_any_case():
    asked = [json.loads(answer("predict", *CASE, "--task", said).output) for said in ("LoRA", "lora")]
    assert asked[0]["step_time_s"] == asked[1]["step_time_s"]
