"""What a log of Megatron-LM leaves open of its model and software: read where a line tells, said where none does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import advisor

sys.path.insert(0, str(Path(__file__).parents[1] / "executor" / "logs"))
from written import megatron_log

DUMP = "llama3-8b-tp2-pp2-vpp2-dp4"
SIZES = {
    "num_layers": 80,
    "hidden_size": 8192,
    "ffn_hidden_size": 28672,
    "num_attention_heads": 64,
    "num_query_groups": 8,
    "vocab_size": None,
}
LINE = " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n"
UNSAID = "The vocabulary is not said: llama2-70b or llama3-70b"
STACK = "mcore-26.05: the newest Megatron-LM on file"


def told(*words: str) -> str:
    """What a command prints, on one line."""
    found = CliRunner().invoke(advisor, list(words))
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def log_of(path: Path, sizes: dict[str, object], line: str = "") -> str:
    """A log whose dump has these sizes, and one line more before its first step."""
    text = megatron_log([(step, 9.0) for step in range(1, 12)], dump=DUMP)
    for name, value in sizes.items():
        text = re.sub(rf"(?m)^(  {name} \.+ ).*$", rf"\g<1>{value}", text)
    path.write_text(text.replace(" > number of", f"{line} > number of", 1))
    return str(path)


@pytest.mark.parametrize("command", ["diagnose", "compare"])
def test_the_line_of_the_padded_vocabulary_tells_the_model(tmp_path, command):
    """A tokenizer of Hugging Face leaves --vocab-size out: Llama 3 was diagnosed as Llama 2 without a word."""
    said = told(command, log_of(tmp_path / "said.log", SIZES, LINE), "--gpu", "h100")
    assert "llama3-70b: the model" in said
    assert "not said" not in said
    near = log_of(tmp_path / "near.log", SIZES, LINE.replace("128256", "128002", 1))
    assert "The vocabulary of llama3-70b is 128,256, the configuration says 128,002" in told(
        command, near, "--gpu", "h100"
    )
    unsaid = told(command, log_of(tmp_path / "unsaid.log", SIZES), "--gpu", "h100")
    assert UNSAID in unsaid
    assert UNSAID not in told(command, str(tmp_path / "unsaid.log"), "--gpu", "h100", "--model", "llama3-70b")


@pytest.mark.parametrize(("tp", "padded"), [(2, 128256), (8, 129024)])
def test_the_padded_vocabulary_of_the_dump_tells_the_model(tmp_path, tp, padded):
    """Llama 3's 128,256 tokens pad to 129,024 rows at TP8; the dump's number was dropped as derived."""
    sizes = SIZES | {"tensor_model_parallel_size": tp, "padded_vocab_size": padded}
    said = told("diagnose", log_of(tmp_path / "padded.log", sizes), "--gpu", "h100")
    assert "llama3-70b: the model" in said
    assert "not said" not in said
    assert "the configuration says" not in said
    more = sizes | {"padded_vocab_size": padded + 128 * tp}
    said = told("diagnose", log_of(tmp_path / "more.log", more), "--gpu", "h100")
    assert f"The vocabulary of llama3-70b is 128,256, the configuration says {padded + 128 * tp:,}" in said


def test_two_logs_side_by_side_tell_it_too(tmp_path):
    paths = [log_of(tmp_path / "a.log", SIZES), log_of(tmp_path / "b.log", SIZES, LINE)]
    said = told("compare", *paths, "--gpu", "h100")
    assert f"A: {UNSAID}" in said
    assert f"B: {UNSAID}" not in said
    assert f"B: {STACK}" in said


def test_what_is_read_otherwise_is_told_of_a_log_and_its_defaults_are_not(tmp_path):
    said = told("diagnose", log_of(tmp_path / "a.log", {"optimizer": "lion"}), "--gpu", "h100")
    assert "Read otherwise than it is said: optimizer lion" in said
    assert "Not read" not in said


def memory(*words: str) -> float:
    """What is predicted. [GiB]"""
    return json.loads(told("compare", *words, "--json"))["prediction"]["memory"]["worst_rank_gib"]


def test_a_log_of_megatron_lm_is_predicted_with_its_own_loss(tmp_path):
    """With a plan beside it that names no software too; what names one is left as it is."""
    native = log_of(tmp_path / "native.log", {})
    te = log_of(tmp_path / "te.log", {"cross_entropy_fusion_impl": "te"})
    assert STACK in told("diagnose", native, "--gpu", "h100")
    assert "mcore-26.03" in told("diagnose", te, "--gpu", "h100")
    asked = ["--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--tp", "2", "--pp", "2", "--vpp", "2"]
    asked += ["--seq-len", "8192", "--global-batch", "32", "--sequence-parallel"]
    for name, stack in (("none", []), ("nemo", ["--stack", "nemo-26.06"])):
        CliRunner().invoke(advisor, ["predict", *asked, *stack, "--save", str(tmp_path / f"{name}.toml")])
    plan = str(tmp_path / "none.toml")
    assert STACK in told("compare", plan, native)
    assert memory(plan, native) == memory(plan, native, "--stack", "mcore-26.05")
    assert "mcore" not in told("compare", plan, native, "--stack", "nemo-26.06")
    assert "mcore" not in told("compare", str(tmp_path / "nemo.toml"), native)
