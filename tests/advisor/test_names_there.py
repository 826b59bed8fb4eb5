"""advisor check --from: what the ways out name is told in the words of the configuration that was read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.names_there import names_section

TORCHTITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
[float8]
enable_fsdp_float8_all_gather = true
"""
MEGATRON = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 "
    "--micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer --no-rope-fusion "
    "--attention-dropout 0 --hidden-dropout 0"
)


def check(source: str, text: str, *more: str) -> str:
    return CliRunner().invoke(advisor, ["check", "--from", source, text, "--gpu", "h100", *more]).output


def test_torchtitan_is_told_its_own_switches(tmp_path: Path):
    """It was told to add --rope-fusion, which it does not know: what fuses there is torch.compile."""
    (tmp_path / "job.toml").write_text(TORCHTITAN)
    page = check("torchtitan", str(tmp_path / "job.toml"), "--gpus", "256")
    assert "--rope-fusion." in page
    there = page.split("Those options in torchtitan\n")[1].split("\n\n")[0]
    assert "--rope-fusion             compile.enable\n" in there
    # Job files have it under another table: torchtitan 0.2.2 refuses compile.enable_async_tensor_parallel.
    assert "compile.enable_async_tensor_parallel (in job files, before 0.3.0, under" in there
    assert "Names are those of torchtitan-26.06" in there


def test_megatron_is_told_its_own_arguments_and_which_to_leave_out():
    page = check("megatron-lm", MEGATRON, "--gpus", "8")
    there = page.split("Those options in Megatron-LM\n")[1].split("\n\n")[0]
    rows = dict(line.split(None, 1) for line in there.splitlines()[1:])
    assert rows["--rope-fusion"] == "leave out --no-rope-fusion"
    assert rows["--fused-cross-entropy"] == "--cross-entropy-loss-fusion"


@pytest.mark.parametrize(
    ("way", "row"),
    [
        ("try --no-rope-fusion", "--no-rope-fusion  --no-rope-fusion"),
        ("try --no-sequence-parallel", "--no-sequence-parallel  leave out --sequence-parallel"),
        ("try --recompute none", "--recompute  leave out --recompute-granularity"),
        ("try --recompute full", "--recompute  --recompute-granularity"),
        ("try --dp 4", "--dp    follows from the others"),
    ],
)
def test_arguments_that_mean_the_opposite_are_left_out(way, row):
    assert f"  {row}" in names_section([way], "megatron-lm", "mcore-26.05")


def test_without_an_option_there_is_no_table():
    assert names_section(["Set CUDA_DEVICE_MAX_CONNECTIONS=1."], "megatron-lm", None) == []
    assert (
        "Those options"
        not in CliRunner().invoke(advisor, ["check", "--model", "8b", "--gpus", "8", "--gpu", "h100"]).output
    )


def test_arguments_without_bf16_are_told_that_they_train_in_fp32():
    """It said that an H100 lacks the arithmetic of FP32, and of the argument that was left out nothing."""
    page = " ".join(check("megatron-lm", MEGATRON.replace("--bf16 ", ""), "--gpus", "8").split())
    assert (
        "--precision fp32 cannot be timed on H100 SXM5 80GB: no rates of its matrix products are on file"
        in page
    )
    assert "where its arguments --bf16 and --fp16 are left out. Try --precision bf16. [fp32_linear]" in page
    assert "--precision --fp8-format, --fp8-recipe, --bf16" in page


@pytest.mark.parametrize(("gpu", "precision"), [("a100", "mxfp8"), ("h100", "mxfp8"), ("h100", "nvfp4")])
def test_formats_without_units_are_told_as_arithmetic_that_the_gpu_lacks(gpu, precision):
    given = ["predict", "--model", "8b", "--gpus", "8", "--gpu", gpu, "--precision", precision]
    said = str(CliRunner().invoke(advisor, given).exception)
    assert f"--precision {precision} needs arithmetic that" in said


def test_the_batch_has_its_name_in_torchtitan():
    """It was told as "no name on file", beside the name that `check` reads it by."""
    *_, row = names_section(["Try a larger --global-batch."], "torchtitan", None)
    assert row.split() == ["--global-batch", "training.global_batch_size"]


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x", "mi355x", "b200"])
def test_the_answer_about_a_gpu_has_names_of_what_trains_on_it(gpu):
    """Users of AMD's GPUs were told names of Megatron-Bridge."""
    given = ["explain", "--model", "8b", "--gpus", "8", "--gpu", gpu, "--precision", "bf16"]
    page = CliRunner().invoke(advisor, given).output
    assert ("in Megatron-LM" in page) == (gpu != "b200")
    assert ("in Megatron-Bridge" in page) == (gpu == "b200")


def test_what_dropped_combinations_is_told_with_ways_that_explain_takes():
    """It told --vpp 1 and --no-overlap-moe-comm, options that `advisor explain` does not have."""
    given = ["explain", "--model", "gpt-oss-20b", "--gpus", "16", "--gpu", "gb200", "--precision", "bf16"]
    page = CliRunner().invoke(advisor, given).output
    table = page.partition("dropped by")[2].partition("each combination")[0]
    told = set(re.findall(r"--([a-z][a-z-]*)", table))
    assert "pin" in told
    assert told <= {
        name.lstrip("-") for option in advisor.get_command(None, "explain").params for name in option.opts
    }
