"""advisor export: what a target cannot run or runs otherwise is told, what its recipe builds is not told as lacking."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from advisor.cli import advisor

# Fits with Transformer Engine's loss alone.
TIGHT = "--model gpt-oss-20b --gpus 1 --gpu h200 --global-batch 32 --seq-len 4096 --micro-batch 4 --precision fp8-cs"
FLASH = "--model deepseek-v4-flash --gpus 128 --gpu h200 --global-batch 512 --ep 16 --dp 128 --zero-stage 3 --fsdp"


def export(options: str, *more: str):
    return CliRunner().invoke(advisor, ["export", *options.split(), *more])


def test_a_task_that_the_target_lacks_is_told_before_its_memory():
    """The ways out of the loss's memory led to a target that trains no adapters whatever one does."""
    done = export(f"{TIGHT} --task lora --no-packed", "--to", "megatron-lm")
    assert isinstance(done.exception, ValueError)
    assert "Megatron-LM has no adapters" in str(done.exception)
    assert "FP32 logits" not in done.output


def test_layers_that_the_recipe_builds_are_not_told_as_lacking():
    """A note said that Megatron-Core 0.16 has no such layer, of a release with 0.19.2 and a recipe of the model."""
    made = json.loads(export(FLASH, "--to", "megatron-bridge", "--json").stdout)
    assert "deepseek_v4_flash_pretrain_config" in "".join(made["files"].values())
    assert not [note for note in made["notes"] if "no such layer" in note]


def test_a_release_without_the_recipe_is_refused_with_the_one_that_has_it():
    done = export(FLASH, "--to", "megatron-bridge", "--target-version", "0.4.2")
    assert isinstance(done.exception, ValueError)
    assert "Try --target-version 0.5.1 or later." in str(done.exception)
    assert export(FLASH, "--to", "megatron-bridge", "--target-version", "0.5.1").exit_code == 0


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.17", "the newest Megatron-LM on file of those that take Transformer Engine's fused loss,"),
        ("0.19", "the newest Megatron-LM on file, the model expects"),
    ],
)
def test_an_older_release_is_not_called_the_newest(version, told):
    options = "--model 8b --gpus 8 --gpu h100 --global-batch 32 --tp 2 --sequence-parallel"
    made = json.loads(export(options, "--to", "megatron-lm", "--target-version", version, "--json").stdout)
    assert told in " ".join(made["assumptions"])


@pytest.mark.parametrize(
    ("target", "version", "way"),
    [
        ("megatron-lm", "0.18", "Try --target-version 0.19."),
        ("megatron-bridge", "0.5.1", "Try --target-version 0.6.2 or later."),
        ("nemo", "", "Try --to megatron-bridge."),
    ],
)
def test_a_model_with_an_indexer_is_refused_where_its_kernels_are_not(target, version, way):
    layout = (
        "--model glm-5 --gpus 256 --gpu gb300 --pp 4 --ep 64 --pipeline-layout balanced --stack nemo-26.08"
    )
    options = f"{layout} --recompute selective --recompute-modules mla_up_proj"
    old = ("--target-version", version) if version else ()
    done = export(options, "--to", target, *old)
    assert isinstance(done.exception, ValueError)
    assert "has no fused kernels: they came with Megatron-Core 0.19" in str(done.exception)
    assert str(done.exception).endswith(way)
    if target != "nemo":
        assert not export(options, "--to", target).exception


def test_a_dispatcher_that_the_target_lacks_is_priced():
    """A note said that another runs and no number what it costs: a third more of the step."""
    options = "--model kimi-k2 --gpus 256 --gpu gb200 --pp 4 --ep 64 --dp 64 --pipeline-layout balanced"
    options += " --recompute selective --recompute-modules mla_up_proj --moe-dispatcher hybridep"
    made = json.loads(export(options, "--to", "nemo", "--json").stdout)
    told = next(each for each in made["assumptions"] if "has no HybridEP" in each)
    priced, other = map(float, re.findall(r"([\d.]+) s\b", told))
    assert "with alltoall the model expects" in told
    assert other > 1.1 * priced


def test_what_the_target_changes_is_told_beside_a_printed_script_too():
    """Notes were told with -o alone: who piped the script into a file never saw that the target takes longer."""
    found = export("--model llama3-8b --gpus 8 --gpu h100 --tp 2 --sequence-parallel", "--to", "megatron-lm")
    assert re.search(r"the model expects [\d.]+ s \(", " ".join(found.stderr.split()))
    assert "the model expects" not in found.stdout
