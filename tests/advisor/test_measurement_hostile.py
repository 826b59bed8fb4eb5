"""Cells of a table that are typed otherwise than ours: numbers with .0, lists in other signs, values of no sense."""

from __future__ import annotations

import json

import pytest
from somebodys_row import case, refused

from advisor.measurements import Case
from advisor.measurements.rows import column_name

# One that says no virtual stages.
FREE = {"vp": ""}
DEEPSEEK = {"model": "deepseek-v3", "gpus": "256", "gbs": "2048", "tp": "1", "pp": "8", "ep": "32", "vp": "4"}
NANO = {"model": "nemotron3-nano-30b-a3b", "gpus": "16", "tp": "1", "pp": "1", "ep": "8"}


def read(**changed: str) -> Case:
    return case(**FREE | changed)


@pytest.mark.parametrize("value", [None, [], {}, "x", -1, 2.5, 10**400])
@pytest.mark.parametrize(
    "flag",
    [
        "schedule",
        "LBS",
        "wgrad_deferral_limit",
        "num_distributed_optimizer_instances",
        "moe_hybridep_num_sms",
    ],
)
def test_a_flag_of_another_type_is_not_said(flag, value):
    """Some were a traceback that lost the whole table, some skipped the row."""
    more = {"defer_embedding_wgrad_compute": True}
    told = read(other_flags=json.dumps({flag: value} | more))
    assert told.plan == read(other_flags=json.dumps(more)).plan


@pytest.mark.parametrize(("text", "layers"), [("2", 8), ("2.0", 8), ("²", 0), ("", 0)])
def test_layers_of_recompute_are_read_with_a_point_too(text, layers):
    told = read(vp="4", recompute_granularity="full", recompute_num_layers=text, model="llama3-70b")
    assert told.plan.recompute_num_layers == layers


@pytest.mark.parametrize(("text", "heads"), [("0", 0), ("0.0", 0), ("1.0", 1), ("", 1)])
def test_heads_are_read_with_a_point_too(text, heads):
    assert read(**DEEPSEEK, mtp_layers=text).model.mtp_layers == heads


@pytest.mark.parametrize(
    "text", ["mlp+layernorm", "['mlp', 'layernorm']", "mlp;layernorm", "mlp | layernorm"]
)
def test_lists_of_modules_are_read_in_any_signs(text):
    told = read(recompute_granularity="selective", recompute_modules=text)
    assert set(told.plan.recompute_modules) == {"mlp", "layernorm"}


@pytest.mark.parametrize(
    "text", ["transformer_engine:attn,moe_router", "transformer_engine[attn, moe_router]"]
)
def test_scopes_of_graphs_are_read_in_any_signs(text):
    assert read(**DEEPSEEK, cuda_graph=text).plan.cuda_graph_scope == ("attn", "moe_router")


@pytest.mark.parametrize("text", ["balanced", "default", "E|M-M*|ME", "[1, 2"])
def test_a_layout_that_is_none_is_balanced_and_told(text):
    told = read(**DEEPSEEK, pp_layout=text)
    assert told.plan.pipeline_layout == "balanced"
    assert any("is not read: balanced instead" in each for each in told.assumptions)


def test_a_layout_as_python_prints_it_is_read():
    stages = [["embedding", *["decoder"] * 20], *[["decoder"] * 20] * 2, [*["decoder"] * 20, "loss"]]
    assert (
        read(pp_layout=str(stages)).plan.pipeline_layout
        == read(pp_layout=json.dumps(stages)).plan.pipeline_layout
    )
    assert read(pp_layout=str(stages)).plan.pipeline_layout.count("t") == 80


@pytest.mark.parametrize(
    ("overrides", "layers"),
    [({"num_layers": 26}, 26), ({"num_layers": 60}, 60), ({"layer_pattern": "MEM*EMEM"}, 8)],
)
def test_a_hybrid_with_fewer_layers_has_the_first_of_its_pattern(overrides, layers):
    whole, told = read(**NANO).model, read(**NANO, model_overrides=json.dumps(overrides)).model
    assert told.num_layers == len(told.layer_pattern) == layers
    if "num_layers" in overrides:
        assert (whole.layer_pattern * 2).startswith(told.layer_pattern)


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("tensor_model_parallel_size", "tp"),
        ("pipeline_parallel_size", "pp"),
        ("virtual_pipeline_model_parallel_size", "vp"),
        ("Expert Model Parallel Size", "ep"),
        ("expert_tensor_parallel_size", "etp"),
        ("cp_size", "cp"),
        ("ep-size", "ep"),
        ("gpus", "gpus"),
        ("mbs", "mbs"),
    ],
)
def test_columns_by_the_long_names_of_sizes(header, column):
    assert column_name(header) == column


@pytest.mark.parametrize(
    ("text", "task"),
    [("training", "pretrain"), ("full FT", "sft"), ("DoRA", "lora"), ("LoRA fine-tuning", "lora")],
)
def test_tasks_in_other_words(text, task):
    assert read(task=text).workload.task == task


@pytest.mark.parametrize("text", ["post-training", "inference"])
def test_a_task_that_is_none_of_ours_is_refused(text):
    assert text in refused(task=text)
