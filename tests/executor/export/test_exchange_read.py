"""Lists of cp_comm_type, a word for each layer, read back from every target: alike, mixed, and of a wrong length."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from executor.export import megatron_bridge, megatron_lm, nemo
from executor.export.exported import Reading

SIZES = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32}
SIZES |= {"num_query_groups": 8, "vocab_size": 128256, "context_parallel_size": 4}


def lm(words: list[str]) -> str:
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SIZES.items())
    return f"{flags} --group-query-attention --swiglu --bf16 --cp-comm-type {' '.join(words)}"


def bridge_dump(words: list[str]) -> str:
    sizes = "".join(f"  {name}: {value}\n" for name, value in SIZES.items())
    return f"model:\n  _target_: megatron.bridge.models.llama.LlamaModelProvider\n{sizes}  cp_comm_type: {words}\n"


def bridge_lines(words: list[str]) -> str:
    return " ".join(f"model.{name}={value}" for name, value in SIZES.items()) + (
        f" model.cp_comm_type=[{','.join(words)}]"
    )


def nemo_code(words: list[str]) -> str:
    sizes = "".join(f"recipe.model.config.{name} = {value}\n" for name, value in SIZES.items())
    return (
        "from nemo.collections import llm\nrecipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n"
        f"{sizes}recipe.model.config.cp_comm_type = {words}\n"
    )


WRITERS = {
    lm: megatron_lm.read,
    bridge_dump: megatron_bridge.read,
    bridge_lines: megatron_bridge.read,
    nemo_code: nemo.read,
}
every_writer = pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)


def told(reading: Reading) -> list[str]:
    return [line for line in reading.otherwise if "cp_comm_type" in line]


@every_writer
def test_a_list_of_one_word_is_that_word(write):
    found = WRITERS[write](write(["a2a"] * 32))
    assert found.knobs["cp_comm_type"] == "a2a"
    assert told(found) == []


@every_writer
def test_of_a_mixed_list_the_word_of_most_layers_is_read_and_told(write):
    found = WRITERS[write](write(["p2p", "a2a", "a2a", "a2a"] * 8))
    assert found.knobs["cp_comm_type"] == "a2a"
    (line,) = told(found)
    assert "a2a for 24 and p2p for 8 of 32 layers" in line
    assert "--cp-comm-type p2p" in line


@every_writer
def test_another_number_of_words_than_layers_is_one_line(write):
    with pytest.raises(ValueError, match=r"names 3 exchanges for 32 layers.*Try p2p alone"):
        WRITERS[write](write(["p2p", "a2a", "p2p"]))


@pytest.mark.parametrize(
    ("written", "word"), [('["a2a"] * 32', "a2a"), ('["p2p"] * 30 + ["a2a"] * 2', "p2p")]
)
def test_lists_that_python_multiplies_are_read(written, word):
    found = nemo.read(nemo_code([]).replace("cp_comm_type = []", f"cp_comm_type = {written}"))
    assert found.knobs.get("cp_comm_type", "p2p") == word
    assert bool(told(found)) == ("+" in written)


def test_a_list_that_no_model_has_is_not_built():
    with pytest.raises(ValueError, match="is not one of p2p, all_gather"):
        nemo.read(nemo_code([]).replace("cp_comm_type = []", 'cp_comm_type = ["a2a"] * 10**9'))


def test_check_tells_people_what_was_read():
    asked = ["check", "--from", "megatron-lm", lm(["p2p", "a2a"] * 16), "--gpu", "h100"]
    text = " ".join(CliRunner().invoke(advisor, asked).output.split())
    assert "cp_comm_type p2p for 16 and a2a for 16 of 32 layers" in text
