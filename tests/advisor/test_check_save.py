"""advisor check --save: a framework's configuration becomes a plan file that every other command takes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from advisor.case import read_case
from advisor.case_from import read_foreign
from advisor.cli import advisor

SCRIPT = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear "
    "--normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 128256 "
    "--tensor-model-parallel-size 2 --sequence-parallel --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 "
    "--bf16 --use-distributed-optimizer"
)
OWN = SCRIPT.replace("--num-layers 32", "--num-layers 35")


def run(*arguments: str):
    return CliRunner().invoke(advisor, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("script", [SCRIPT, OWN])
def test_a_script_read_and_saved_is_the_same_plan(script, tmp_path):
    """A model of no catalogue lies beside the plan, also where both are moved."""
    path = tmp_path / "then" / "today.toml"
    path.parent.mkdir()
    done = run("check", "--from", "megatron-lm", script, "--gpu", "h100", "--save", str(path))
    assert done.exit_code == 0
    assert "advisor whatif" in done.output
    path = path.parent.rename(tmp_path / "now") / "today.toml"
    read, back = read_foreign("megatron-lm", script, {"gpu": "h100"}), read_case(str(path), {})
    assert (back.plan, back.workload, back.gpus) == (read.plan, read.workload, read.gpus)
    assert (back.model, back.cluster, back.stack) == (read.model, read.cluster, read.stack)
    assert (path.parent / "today-model.toml").exists() == (script is OWN)
    assert run("whatif", str(path), "--knob", "tp").exit_code == 0


def test_a_plan_with_a_change_is_saved_too(tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    setting = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100"]
    run("check", *setting, "--save", str(first))
    run("check", str(first), "--tp", "2", "--save", str(second))
    assert read_case(str(second), {}).plan.tp == 2


def test_a_cluster_of_ones_own_stays_a_file(tmp_path):
    cluster = tmp_path / "pair.toml"
    cluster.write_text(
        'name = "pair"\ntitle = "pair"\ngpu = "h100-sxm"\ngpus_per_node = 2\ndomain_size = 2\nintra = "nvlink4"\n'
        'inter = "ib-hdr-200"\nhost_link = "pcie5-x16"\n'
    )
    path = tmp_path / "today.toml"
    run("check", "--from", "megatron-lm", SCRIPT, "--cluster", str(cluster), "--save", str(path))
    assert read_case(str(path), {}).cluster.domain_size == 2


def test_overrides_without_a_model_ask_for_one():
    with pytest.raises(ValueError, match=r"does not say which model.* Add --model"):
        read_foreign("megatron-bridge", "model.tensor_model_parallel_size=4", {"gpu": "h100"})


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OSError, match="its folder does not exist"):
        run(
            "check",
            "--from",
            "megatron-lm",
            SCRIPT,
            "--gpu",
            "h100",
            "--save",
            str(tmp_path / "none" / "a.toml"),
        )
