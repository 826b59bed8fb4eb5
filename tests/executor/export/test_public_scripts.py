"""Habits of Megatron-LM's public scripts: flags quoted with their values, an environment in YAML, a parser's repairs.

The scripts are written from memory of examples/llama and tests/functional_tests of Megatron-LM.
"""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from executor.export import megatron_lm
from executor.export.shell_words import read_flags

SIZES = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --position-embedding-type rope --untie-embeddings-and-output-weights "
    "--disable-bias-linear --bf16 --seq-length 8192 --micro-batch-size 1 --global-batch-size 128 "
    "--use-distributed-optimizer"
)
LLAMA3_FP8 = f"""
TP_SIZE=1
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-param-gather"
    )
fi
DATA_ARGS_LIST+=(
    "--mock-data"
    "--tokenizer-type NullTokenizer"
    "--vocab-size 128256"
    "--split '99,1,0'"
)
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {SIZES} --rotary-base 1000000 \\
    --tensor-model-parallel-size $TP_SIZE --sequence-parallel ${{DTYPE_ARGS[@]}} ${{DATA_ARGS_LIST[@]}}
"""


def test_a_flag_and_its_value_in_one_pair_of_quotes_are_two_words():
    """The script of Llama 3 8B in FP8 was read as Mistral 7B in BF16: its format and vocabulary stand so."""
    given = read_flags(LLAMA3_FP8).given
    assert given["--fp8-format"] == ["hybrid"]
    assert given["--split"] == ["99,1,0"]
    assert given["--vocab-size"] == ["128256"]
    found = megatron_lm.read(LLAMA3_FP8)
    assert found.model == "llama3-8b"
    assert found.knobs["precision"] == "fp8-delayed"
    assert found.knobs["fp8_param_gather"]


@pytest.mark.parametrize(
    "quoted", ["'--moe-layer-freq=([0]*3 + [1]*58)'", '--moe-layer-freq "([0]*3 + [1]*58)"']
)
def test_a_value_with_blanks_stays_one_word(quoted):
    assert read_flags(f"run --num-layers 61 {quoted} --bf16").given["--moe-layer-freq"] == [
        "([0]*3 + [1]*58)"
    ]


@pytest.mark.parametrize(
    "script",
    [
        "A=()\nA+=(\n --fp16\n)\nrun --num-layers 8 --sequence-parallel ${A[@]}",
        "A=(--fp16 --tensor-model-parallel-size 2)\nrun --num-layers 8 --sequence-parallel ${A[@]}",
        'A="--fp16"\nrun --num-layers 8 --sequence-parallel $A',
    ],
)
def test_arguments_put_in_behind_a_switch_are_not_its_value(script):
    given = read_flags(script).given
    assert given["--sequence-parallel"] == []
    assert given["--fp16"] == []


def checked(text: str, *options: str) -> tuple[int, str]:
    got = CliRunner().invoke(advisor, ["check", "--from", "megatron-lm", text, "--gpu", "h100", *options])
    return got.exit_code, re.sub(r"\s+", " ", got.output)


def test_the_parser_switches_sequence_parallel_off_without_tensor_parallelism():
    """It was told as an ERROR, though the run starts; with --tp 2 it counts as the script says."""
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --sequence-parallel"
    code, told = checked(text, "--recompute", "full")
    assert code == 0
    assert "its parser switches sequence_parallel off" in told
    assert "sequence_parallel_needs_tp" not in told
    _, two = checked(text, "--tp", "2")
    assert "switches sequence_parallel off" not in two
    assert "tp_without_sequence_parallel" not in two
    code, asked = checked(text, "--sequence-parallel")
    assert code == 1
    assert "sequence_parallel_needs_tp" in asked


TESTS = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
  NCCL_NVLS_ENABLE: 1
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:False
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --bf16: true
  --recompute-granularity: selective
  --recompute-modules: {modules}
"""


@pytest.mark.parametrize(
    "modules", ["[mlp, layernorm]", '"[mlp,layernorm]"', "mlp layernorm", '"[mlp layernorm]"']
)
def test_the_environment_and_lists_of_functional_tests_are_read(modules):
    """The variables were told as flags that nothing here knows, and a list in quotes as a module."""
    pytest.importorskip("yaml")
    found = megatron_lm.read(TESTS.format(modules=modules))
    assert found.unread == ()
    assert found.knobs["max_connections"] == 1
    assert found.knobs["nvls"]
    assert not found.knobs["expandable_segments"]
    assert set(found.knobs["recompute_modules"]) == {"mlp", "layernorm"}


def test_a_padded_size_that_is_the_models_own_number_is_no_other_vocabulary():
    """It was told that the model has 128,256 tokens, the configuration 128,256, and that the model's are counted."""
    text = f"{SIZES} --padded-vocab-size 128256 --tensor-model-parallel-size 4 --sequence-parallel"
    found = megatron_lm.read(text)
    assert (found.model, found.vocab) == ("llama3-8b", 0)
