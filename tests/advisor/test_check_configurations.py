"""advisor check --from: what of a configuration is read, and files that are of another kind."""

from __future__ import annotations

import os
import threading

import pytest
from click.testing import CliRunner

from advisor.cli import advisor


def run(*arguments: str, text: str | None = None):
    return CliRunner().invoke(advisor, ["check", *arguments], input=text, catch_exceptions=False)


OF_A_PLAN = [
    *("--model", "llama3-8b", "--gpus", "8", "--gpu", "h100"),
    *("--seq-len", "4096", "--global-batch", "32"),
]

GPT3 = (
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 256 --bf16 --tensor-model-parallel-size 8"
)


def test_gpus_that_are_given_win_over_those_of_the_launch_line():
    """Megatron-LM's own example starts one node for 16 stages: --gpus was asked for, and not taken."""
    text = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {GPT3} --pipeline-model-parallel-size 16"
    with pytest.raises(ValueError, match=r"starts 8 GPUs, .* tp x pp x cp = 128\. .* --gpus 128\."):
        run("--from", "megatron-lm", text, "--gpu", "a100")
    assert "128 GPUs" in run("--from", "megatron-lm", text, "--gpu", "a100", "--gpus", "128").output
    assert "8 GPUs" in run("--from", "megatron-lm", text, "--gpu", "a100", "--pp", "1").output


def test_gpus_that_the_launch_line_says_are_said():
    """One replica was told as "GPUs not said"."""
    text = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {GPT3}"
    assert "not said: 8" not in run("--from", "megatron-lm", text, "--gpu", "b200").output
    assert "GPUs not said: 8" in run("--from", "megatron-lm", GPT3, "--gpu", "b200").output


def test_a_longer_table_of_positions_is_counted_and_kept(tmp_path):
    """The note asked for --max-position-embeddings 4096, which the text gave."""
    path = tmp_path / "today.toml"
    done = run("--from", "megatron-lm", GPT3, "--gpu", "b200", "--save", str(path))
    assert "gpt3-175b has 2,048, the configuration 4,096, which is counted" in " ".join(done.output.split())
    assert "position_table" not in done.output
    assert "position_table" not in run(str(path)).output


def test_what_is_not_in_the_text_is_told_as_it_is():
    """A launch line without variables was told as "Environment and launch line are not in the text"."""
    said = "The environment is not in the text"
    assert (
        said
        in run("--from", "megatron-lm", f"torchrun --nproc_per_node 8 a.py {GPT3}", "--gpu", "b200").output
    )
    assert said not in run("--from", "megatron-lm", GPT3, "--gpu", "b200").output


def test_a_configuration_may_come_through_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(GPT3,))
    writer.start()
    assert "gpt3-175b" in run("--from", "megatron-lm", str(pipe), "--gpu", "b200").output
    writer.join()


def test_an_empty_device_is_no_place_to_save_to():
    with pytest.raises(ValueError, match=r"/dev/null is empty: .*--save plan\.toml`"):
        run("/dev/null")


OF = {
    "megatron-bridge": "model:\n  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider70B\n",
    "nemo": "from nemo.collections.llm import pretrain\n",
    "torchtitan": "[parallelism]\ntensor_parallel_degree = 8\n",
    "megatron-lm": "torchrun pretrain_gpt.py --num-layers 32\n",
}


@pytest.mark.parametrize(("own", "target"), [(own, other) for own in OF for other in OF if own != other])
def test_a_configuration_of_another_framework_is_told_as_that(tmp_path, own, target):
    """A dump of Megatron-Bridge was read as Megatron-LM's YAML that trains in FP32."""
    path = tmp_path / "file"
    path.write_text(OF[own])
    with pytest.raises(ValueError, match=f"is a configuration of {own}, .* Say --from {own} before it"):
        run("--from", target, str(path), "--gpu", "h100")


def test_a_configuration_of_automodel_is_not_taken_for_nemos():
    """With --model it was a plan of one sequence a rank: not one of its keys is NeMo 2's."""
    text = "step_scheduler:\n  local_batch_size: 8\nmodel:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM\n"
    with pytest.raises(ValueError, match=r"it is a configuration of NeMo AutoModel, .* --stack automodel"):
        run("--from", "nemo", text, "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100")


@pytest.mark.parametrize("target", OF)
def test_a_plan_file_is_no_configuration(tmp_path, target):
    path = tmp_path / "plan.toml"
    CliRunner().invoke(advisor, ["predict", *OF_A_PLAN, "--save", str(path)])
    with pytest.raises(ValueError, match=f"is a plan file, .* Leave --from {target} out"):
        run("--from", target, str(path), "--gpu", "h100")


@pytest.mark.parametrize(
    ("name", "own"), [("train.sh", "megatron-lm"), ("dump.yaml", "nemo"), ("job.toml", "torchtitan")]
)
def test_a_configuration_given_as_a_plan_names_the_option_that_reads_it(tmp_path, name, own):
    path = tmp_path / name
    path.write_text(OF[own])
    with pytest.raises(ValueError, match=f"check --from TARGET .*{name}` reads a framework's configuration"):
        run(str(path))
