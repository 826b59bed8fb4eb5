"""advisor knobs and --set: every knob and setting is found, shown and set under every name it has."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.options import given_knobs, knob_options, plan_from_options, value_text
from costmodel.knobs import CATALOGUE, INPUTS, KNOBS, SETTINGS, TOPICS
from costmodel.knobs.names import find
from costmodel.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
GUIDE_NAMES = [
    line
    for line in (ROOT / "tests/costmodel/data/guide_names.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("# ")
]


def knobs(*arguments: str) -> str:
    done = CliRunner().invoke(advisor, ["knobs", *arguments])
    assert done.exit_code == 0, done.output or done.exception
    return done.output


@click.command()
@knob_options
def options_command(**options: object) -> None:
    """What the options of a line give."""
    click.echo(json.dumps(given_knobs(options)))


def given(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(options_command, arguments)
    assert done.exit_code == 0, done.output or done.exception
    return json.loads(done.output)


@pytest.mark.parametrize("name", GUIDE_NAMES)
def test_every_name_of_the_guides_indexes_is_found(name):
    assert json.loads(knobs("--json", "--", name))["knobs"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("recipe.model.config.cp_comm_type", "cp_comm_type"),
        ("recipe.trainer.strategy.tensor_model_parallel_size", "tp"),
        ("recipe.trainer.use_distributed_optimizer", "zero_stage"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "max_connections"),
        ("NVTE_FWD_LAYERNORM_SM_MARGIN=<#SM for DP collectives", "layernorm_sm_margin"),
        ("megatronMixedPrecision.fp8_params", "fp8_param_gather"),
        ("TransformerConfig.recompute_granuality", "recompute"),
        ("garbageCollectionCallback.gc_interval_train", "manual_gc_interval"),
        ("NVTE_FLASH_ATT", "attention_backend+nvte_flash_attn"),
        ("NVTE_FUSED_ATTN", "nvte_fused_attn+attention_backend"),
        ("TPOverlapCfg.num_split", "tp_overlap_splits"),
        ("T5ModelProvider.encoder_tensor_model_parallel_size", "encoder_tp"),
        ("FinetuningDatasetConfig.packed_sequence_specs.packed_sequence_size", "seq_len"),
        ("NsysPlugin", "use_nsys_profiler"),
        ("--moe-router-fusion", "moe_router_fusion"),
        ("nccl-graph-register", "nccl_graph_register"),
    ],
)
def test_names_mean_what_the_guides_mean(name, found):
    records = json.loads(knobs("--json", "--", name))["knobs"]
    assert "+".join(record["name"] for record in records) == found


def test_the_list_goes_by_topic_with_the_settings_last():
    text = knobs()
    starts = [text.index(f"{title}\n") for title in TOPICS]
    assert starts == sorted(starts)
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in CATALOGUE)
    assert text.index("Settings:") > text.index("bias_dropout_fusion")
    assert "\n\n\n" not in text


def test_json_gives_everything():
    record = json.loads(knobs("--json"))
    assert [each["name"] for each in record["knobs"]] == list(KNOBS)
    assert [each["name"] for each in record["settings"]] == list(SETTINGS)
    assert [each["name"] for each in record["inputs"]] == list(INPUTS)
    tp = record["knobs"][0]
    assert tp["megatron_lm"] == "--tensor-model-parallel-size"
    assert tp["mcore"] == "ModelParallelConfig.tensor_model_parallel_size"
    assert {"env", "cites", "effect", "changes", "helps", "hurts", "source", "topic", "option"} <= tp.keys()


def test_a_page_says_where_a_value_stands_and_what_others_call_it():
    text = knobs("nccl_debug")
    assert "[settings] of a plan file" in text
    assert "environment     NCCL_DEBUG" in text
    assert "[workload]" in knobs("global_batch_size")
    assert "optim_grads_params is 3" in knobs("zero_stage")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_is_an_option_under_its_name(setting):
    other = {"int": str(setting.high), "float": str(setting.high), "text": "x", "bool": ""}
    value = other.get(setting.kind, setting.choices[-1] if setting.choices else "")
    arguments = [setting.option, value] if setting.kind != "bool" else [f"--no-{setting.option[2:]}"]
    assert given(*arguments)["settings"].keys() == {setting.name}


@pytest.mark.parametrize("command", ["predict", "check"])
def test_settings_stay_out_of_the_help_and_set_is_in(command):
    text = CliRunner().invoke(advisor, [command, "--help"]).output
    assert "--set NAME=VALUE" in text
    assert not [setting.name for setting in SETTINGS.values() if f"{setting.option} " in text]


def test_set_takes_any_name_as_often_as_wanted():
    found = given(
        *("--set", "recipe.trainer.strategy.tensor_model_parallel_size=4", "--set", "NCCL_DEBUG=INFO"),
        *("--set", "recompute_modules=mlp,layernorm", "--async-save", "--pp", "2", "--set", "pp=2"),
    )
    assert found == {
        "tp": 4,
        "pp": 2,
        "recompute_modules": ["mlp", "layernorm"],
        "settings": {"async_save": True, "nccl_debug": "INFO"},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "tp=4", "--tp", "2"],
        ["--set", "tp=4", "--set", "--tensor-model-parallel-size=2"],
        ["--nccl-debug", "INFO", "--set", "NCCL_DEBUG=WARN"],
    ],
)
def test_a_contradiction_is_one_line(arguments):
    done = CliRunner().invoke(options_command, arguments)
    assert isinstance(done.exception, ValueError)
    assert "contradicts" in str(done.exception)
    assert "Leave one out" in str(done.exception)


def test_settings_join_those_of_the_plan_before():
    base = Plan(settings={"num_workers": 4, "nccl_debug": "INFO"})
    plan = plan_from_options({"tp": 2, "settings": {"nccl_debug": "WARN", "async_save": True}}, None, base)
    assert dict(plan.settings) == {"num_workers": 4, "nccl_debug": "WARN", "async_save": True}
    assert plan_from_options({"tp": 2}, None, base).settings == base.settings


def test_settings_are_shown_as_people_write_them():
    assert value_text({"nccl_debug": "INFO", "async_save": True}) == "nccl_debug=INFO, async_save=on"
    assert value_text({}) == "none"


def test_settings_travel_from_options_to_a_plan_file_and_change_no_number(tmp_path):
    path = str(tmp_path / "plan.toml")
    line = ["predict", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "2", "--json"]
    without = CliRunner().invoke(advisor, [*line])
    carried = CliRunner().invoke(advisor, [*line, "--set", "NCCL_DEBUG=INFO", "--save", path])
    again = CliRunner().invoke(advisor, ["predict", path, "--num-workers", "4", "--json"])
    plain, given_one, given_two = (json.loads(done.output) for done in (without, carried, again))
    assert plain["step_time_s"] == given_one["step_time_s"] == given_two["step_time_s"]
    assert plain["knobs"]["settings"] == {}
    assert given_one["knobs"]["settings"] == {"nccl_debug": "INFO"}
    assert given_two["knobs"]["settings"] == {"nccl_debug": "INFO", "num_workers": 4}


def test_the_help_of_advisor_reads_no_catalogue():
    code = "import sys, advisor.cli; print([name for name in sys.modules if name.startswith('costmodel')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_of_knobs_is_fresh_and_has_them_all(capsys):
    spec = importlib.util.spec_from_file_location("knob_docs", ROOT / "tools" / "knob_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, capsys.readouterr().err
    page = module.knobs_page()
    assert all(f"### `{name}`\n" in page for name in CATALOGUE)


def test_torchtitans_name_of_the_sharding_says_what_no_shards_are():
    """zero_stage 0, as of one data-parallel rank, stood beside a switch of FSDP that has no such value."""
    assert "0 is data_parallel_shard_degree of 1" in KNOBS["zero_stage"].torchtitan
    assert [knob.name for knob in find("parallelism.fsdp_reshard_after_forward")] == ["zero_stage"]


def test_a_text_that_is_empty_has_a_word_that_is_read_back():
    """A change said "pipeline_layout , account_embedding on", and help "[default ]"."""
    knob = KNOBS["pipeline_layout"]
    assert value_text(knob.default) == "none"
    assert knob.parse("none") == knob.parse("even") == knob.default


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("tensor", "tp"),
        ("tensor_parallel", "tp"),
        ("pipeline", "pp"),
        ("expert-parallel", "ep"),
        ("data", "dp"),
    ],
)
def test_words_for_what_a_knob_is_called_suggest_it_first(name, first):
    """They were taken for spellings: encoder_tp stood first, and tp nowhere."""
    with pytest.raises(ValueError, match=f"Did you mean {first}[,?]"):
        find(name)


def test_an_option_of_the_question_is_told_as_one():
    """moe_imbalance was taken for a slip of moe_dispatcher."""
    with pytest.raises(
        ValueError, match=r"^'--moe-imbalance' is no knob but an option of its own: --moe-imbalance"
    ):
        find("--moe-imbalance")
