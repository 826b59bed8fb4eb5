"""Task and tokens as people write them."""

import json

import pytest
from click.testing import CliRunner

from advisor.cli import advisor

CASE = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100"]

SCRIPT = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 4096 --global-batch-size 64 --bf16 "
    "--tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer"
)


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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["--lora-rank", "64"],
            "--lora-rank 64 is of the adapters of --task lora, and the task is pretrain. Add",
        ),
        (
            ["--lora-targets", "qkv", "--task", "sft"],
            "--lora-targets qkv is of the adapters of --task lora, and",
        ),
        (
            ["--moe-imbalance", "2"],
            "--moe-imbalance 2.0 is of experts, and llama3-8b has none. Leave it out.",
        ),
        (["--moe-adjacent"], "--moe-adjacent is of experts, and llama3-8b has none."),
        (
            ["--length-cv", "0.5"],
            "--length-cv 0.5 spreads lengths around --mean-length, which is not given. Add it",
        ),
        (["--no-packed"], "--no-packed pads documents of --mean-length, which is not given, and the task"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "predict", "check"])
def test_what_would_change_nothing_is_refused(command, given, says):
    """They ran, and gave the same numbers as without."""
    with pytest.raises(ValueError) as refusal:
        answer(command, *CASE, *given)
    assert str(refusal.value).startswith(says)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("given", [["--lora-rank", "8"], ["--moe-imbalance", "1.4"], ["--no-packed"]])
def test_a_script_that_is_read_refuses_it_too(given):
    with pytest.raises(ValueError, match=f"^{given[0]}.*(task is pretrain|has none)"):
        answer("check", "--from", "megatron-lm", SCRIPT, "--gpu", "h100", *given)
    assert answer("check", "--from", "megatron-lm", SCRIPT, "--gpu", "h100", "--packed").exit_code == 0


def test_what_acts_or_is_true_anyway_is_taken():
    for given in (
        ["--packed"],
        ["--no-packed", "--task", "sft"],
        ["--task", "lora", "--lora-rank", "64"],
        ["--moe-imbalance", "1", "--moe-spread", "--length-cv", "0"],
        ["--mean-length", "2048", "--length-cv", "0.5"],
    ):
        assert json.loads(answer("predict", *CASE, *given).output)["step_time_s"] > 0


def test_what_a_plan_file_holds_for_another_task_is_no_option_that_was_given(tmp_path):
    path = str(tmp_path / "lora.toml")
    answer("predict", *CASE, "--task", "lora", "--lora-rank", "64", "--save", path)
    assert json.loads(answer("predict", path, "--task", "sft").output)["step_time_s"] > 0
    assert json.loads(answer("predict", path, "--lora-rank", "32").output)["step_time_s"] > 0
