"""Configurations that leave values to variables, or to a recipe below them: told, never a traceback, never silent."""

from __future__ import annotations

import pytest

from advisor.case_from import read_foreign
from executor.export import megatron_bridge, megatron_lm, nemo
from tests.executor.export.test_megatron_lm_read import LLAMA

BRIDGE = """
import argparse, os
from megatron.bridge.recipes.llama.llama3 import llama3_70b_pretrain_config

TP = 4
args = argparse.ArgumentParser().parse_args()
cfg = llama3_70b_pretrain_config()
cfg.model.tensor_model_parallel_size = TP
cfg.model.pipeline_model_parallel_size = args.pp
cfg.train.global_batch_size = TP * 32
cfg.train.micro_batch_size = int(os.environ["MBS"])
"""
NEMO = """
from nemo.collections import llm

TP = 4
recipe = llm.llama3_70b.pretrain_recipe(num_nodes=8, num_gpus_per_node=8, name="x")
recipe.trainer.strategy.tensor_model_parallel_size = TP
recipe.trainer.strategy.pipeline_model_parallel_size = stages()
recipe.data.global_batch_size = TP * 32
"""
OVERRIDES = """
# as they come with recipes
model:
  tensor_model_parallel_size: 4
train:
  global_batch_size: 64
"""


def case(target: str, text: str, **options):
    return read_foreign(target, text, {"gpu": "h100", **options})


@pytest.mark.parametrize("value", ["$PP", "$(nproc)", "$((WORLD / 8))", "`echo 2`"])
def test_a_variable_that_a_script_does_not_set_is_told_and_counts_as_left_out(value):
    found = megatron_lm.read(f"{LLAMA} --tensor-model-parallel-size 2 --pipeline-model-parallel-size {value}")
    (told,) = found.left_open
    assert told.startswith(f"--pipeline-model-parallel-size {value[:6]}")
    assert "pp" not in found.knobs
    assert found.knobs["tp"] == 2


def test_variables_of_data_and_checkpoints_are_the_users_own():
    assert not megatron_lm.read(LLAMA + "--data-path $DATA --save ${SAVE} --tokenizer-model $T").left_open


def test_sizes_of_the_model_that_are_open_are_named_in_the_error():
    with pytest.raises(ValueError, match=r"leaves --num-layers \$N to variables.*--model 70b"):
        case("megatron-lm", LLAMA.replace("--num-layers 32", "--num-layers $N"))


def test_the_note_names_the_way_out_and_options_win():
    read = case("megatron-lm", LLAMA + "--tensor-model-parallel-size $TP", tp=4, gpus=8)
    assert read.plan.tp == 4
    assert "--tensor-model-parallel-size $TP" in read.notes[0]
    assert "options such as --tp" in read.notes[0]


@pytest.mark.parametrize(
    ("target", "text", "module"), [("megatron-bridge", BRIDGE, megatron_bridge), ("nemo", NEMO, nemo)]
)
def test_python_has_its_constants_put_in_and_the_rest_told(target, text, module):
    found = module.read(text)
    assert found.knobs["tp"] == 4
    assert found.workload["global_batch"] == 128
    assert "pp" not in found.knobs
    assert any("pipeline_model_parallel_size = " in line for line in found.left_open)
    told = " ".join(case(target, text, gpus=64).notes)
    assert "pipeline_model_parallel_size = " in told
    assert "Not said: --vpp, --cp," in told
    assert "--ep" not in told


def test_what_a_recipe_sets_is_told_until_options_say_it():
    said = {"vpp": 1, "cp": 1, "precision": "bf16", "recompute": "none", "pp": 2, "micro_batch": 1}
    assert not any("Not said" in note for note in case("megatron-bridge", BRIDGE, gpus=64, **said).notes)


def test_overrides_as_plain_yaml_are_read():
    read = case("megatron-bridge", OVERRIDES, model="llama3-70b", gpus=32)
    assert (read.plan.tp, read.workload.global_batch) == (4, 64)
    assert any("Not said: --pp" in note for note in read.notes)


def test_an_override_line_may_leave_a_value_to_the_shell():
    found = megatron_bridge.read("model.tensor_model_parallel_size=$TP train.global_batch_size=64")
    assert found.left_open == ("model.tensor_model_parallel_size = $TP",)


DUMP = """
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  num_layers: 32
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  {field}: {value}
"""


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("pipeline_model_parallel_size", "[2]", "is not a whole number"),
        ("virtual_pipeline_model_parallel_size", "'2x'", "is not a whole number"),
        ("moe_expert_capacity_factor", "high", "is not a number"),
        ("cuda_graph_scope", "3", "is neither a word nor a list"),
        ("hierarchical_context_parallel_sizes", "3", "is neither a word nor a list"),
        ("pipeline_model_parallel_layout", "[1, 2]", "is no list of stages"),
        (
            "use_megatron_fsdp: true\n  data_parallel_sharding_strategy",
            "all",
            "is not one of no_shard, optim,",
        ),
    ],
)
def test_a_value_of_another_kind_is_told_in_one_line(field, value, told):
    """These were tracebacks, of a size that stood in quotes too."""
    pytest.importorskip("yaml")
    with pytest.raises(ValueError, match=told) as caught:
        megatron_bridge.read(DUMP.format(field=field, value=value))
    assert str(caught.value).startswith(field.rpartition(" ")[2])
    assert "\n" not in str(caught.value)


def test_a_size_in_quotes_is_a_size_and_null_is_one():
    pytest.importorskip("yaml")
    quoted = megatron_bridge.read(DUMP.format(field="pipeline_model_parallel_size", value="'4'"))
    assert quoted.knobs["pp"] == 4
    assert (
        "pp"
        not in megatron_bridge.read(DUMP.format(field="pipeline_model_parallel_size", value="null")).knobs
    )


def test_the_length_that_a_dump_of_nemo_says_of_its_model_is_read():
    """It was told as not said."""
    pytest.importorskip("yaml")
    config = "nemo.collections.llm.gpt.model.llama.Llama3Config8B"
    text = f"model:\n  config:\n    _target_: {config}\n    num_layers: 32\n    seq_length: 4096\n"
    assert nemo.read(text).workload["seq_len"] == 4096
