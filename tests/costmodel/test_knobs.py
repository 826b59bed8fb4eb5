"""The catalogue of knobs: it agrees with Plan, covers the published knobs, and its names mean one thing."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.knobs import CATALOGUE, FILES, FOLDER, INPUTS, KNOBS, SETTINGS, TOPICS, checked_settings
from costmodel.knobs.names import find, framework_names, parse_pair
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, load_plan_file, save_plan_file
from costmodel.workload import Workload

PUBLISHED = (Path(__file__).parent / "data" / "published_knobs.txt").read_text(encoding="utf-8").splitlines()
each_record = pytest.mark.parametrize("record", CATALOGUE.values(), ids=lambda record: record.name)
each_knob = pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)


def values_of(record):
    """A strategy of values that the record accepts."""
    return {
        "int": lambda: st.integers(record.low, record.high),
        "float": lambda: st.floats(record.low, record.high),
        "bool": st.booleans,
        "text": lambda: st.text(max_size=20),
        "choice": lambda: st.sampled_from(record.choices),
        "list": lambda: st.lists(st.sampled_from(record.choices), unique=True).map(tuple),
    }[record.kind]()


settings_of_plans = st.fixed_dictionaries(
    {}, optional={name: values_of(each) for name, each in SETTINGS.items()}
)


def test_every_field_of_a_plan_is_a_knob_with_its_default():
    defaults = {field.name: field.default for field in fields(Plan) if field.name != "settings"}
    assert MISSING not in defaults.values()
    assert {name: _plain(knob.default) for name, knob in KNOBS.items()} == defaults


def _plain(value):
    return tuple(value) if isinstance(value, list) else value


@each_record
def test_a_record_accepts_its_default_and_the_values_of_its_words(record):
    assert record.error(record.default) is None
    for word, value in record.words.items():
        assert record.error(value) is None
        assert record.parse(word) == value or word in record.choices


def test_every_published_knob_is_covered_and_nothing_else_is_cited():
    assert len(PUBLISHED) == len(set(PUBLISHED)) == 136
    assert {cited for record in CATALOGUE.values() for cited in record.cites} == set(PUBLISHED)


def test_every_record_stands_in_one_file_of_readable_length():
    names = [name for records in TOPICS.values() for name in records]
    assert len(names) == len(set(names)) == len(KNOBS) + len(SETTINGS) + len(INPUTS)
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(FILES)
    for stem in FILES:
        text = (FOLDER / f"{stem}.toml").read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 250, stem
        assert "title" in tomllib.loads(text)


@each_record
def test_texts_are_short_and_plain(record):
    assert record.meaning
    assert record.changes
    for text in (record.meaning, record.changes, record.helps, record.hurts, record.effect):
        assert len(text) <= 150
        assert text == text.strip().rstrip(".")
        assert "\N{EM DASH}" not in text


@each_knob
def test_a_knob_says_when_it_helps_when_it_hurts_or_what_it_does(knob):
    assert knob.helps or knob.hurts or knob.effect
    assert knob.source or not knob.cites


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_setting_says_that_no_prediction_changes_with_it_and_why_it_is_set(setting):
    assert setting.changes.startswith(("no cost: ", "not predicted: "))
    assert setting.source


@each_record
def test_every_name_of_a_record_finds_it(record):
    for name in (record.name, record.option, *framework_names(record)):
        assert record in find(name)
        assert record in find(f"recipe.{name.lstrip('-')}=4")


@each_record
def test_every_name_sets_one_thing_or_says_what_does(record):
    for name in framework_names(record):
        try:
            found, _ = parse_pair(f"{name}=no such value")
            assert found.kind == "text"
        except ValueError as error:
            message = str(error)
            assert "Name one of them" not in message, message
            assert "is not a knob" not in message
            assert "\n" not in message


@pytest.mark.parametrize(
    ("pair", "name", "value"),
    [
        ("tp=4", "tp", 4),
        ("--tensor-model-parallel-size=4", "tp", 4),
        ("recipe.model.config.recompute_granuality=full", "recompute", "full"),
        ("ddp.data_parallel_sharding_strategy=optim_grads_params", "zero_stage", 3),
        ("optimizer.use_distributed_optimizer=False", "zero_stage", 0),
        ("--grad-reduce-in-bf16=true", "grad_reduce_in_fp32", False),
        ("--no-rope-fusion=1", "rope_fusion", False),
        ("--no-overlap-p2p=on", "overlap_p2p", False),
        ("model.batch_p2p_comm=true", "overlap_p2p", False),
        ("mixed_precision=bf16_with_mxfp8_mixed", "precision", "mxfp8"),
        ("model.virtual_pipeline_model_parallel_size=None", "vpp", 1),
        ("cp_comm_type=allgather", "cp_comm_type", "all_gather"),
        ("recompute_modules=[mlp, moe_act]", "recompute_modules", ("mlp", "moe_act")),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", "expandable_segments", False),
        ("NCCL_NVLS_ENABLE=1", "nvls", True),
        ("NCCL_GRAPH_REGISTER=0", "nccl_graph_register", False),
        ("NVTE_FUSED_ATTN=0", "nvte_fused_attn", False),
        ("NVTE_FLASH_ATT=1", "nvte_flash_attn", True),
        ("optimizer.exp_avg_dtype=torch.bfloat16", "exp_avg_dtype", "bf16"),
    ],
)
def test_values_in_the_words_of_others(pair, name, value):
    found, meant = parse_pair(pair)
    assert (found.name, meant) == (name, value)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("tp", "is not NAME=VALUE. Try --set tp=4."),
        ("=4", "is not NAME=VALUE"),
        ("tpp=4", "Did you mean"),
        (
            "num_layers_per_virtual_pipeline_stage=5",
            "has other values than ours. Set vpp (1 to 256) instead.",
        ),
        ("NVTE_DPA_FP8_RECIPE=F16", "Set fp8_attention (true, false) instead."),
        ("global_batch_size=9", "stands with the workload. Use --global-batch."),
        ("mtp_num_layers=1", "stands with the model"),
        ("mean_length=900", "it is no knob. Use --mean-length."),
        ("gpu=h200", "it is no knob. Use --gpu."),
        ("model.cp_comm_type=p2", "Did you mean p2p?"),
    ],
)
def test_what_cannot_be_set_is_one_line_with_the_way_out(pair, says):
    with pytest.raises(ValueError) as caught:
        parse_pair(pair)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(settings_of_plans)
def test_settings_are_sorted_pairs_of_a_plan_that_can_be_hashed(settings):
    plan = Plan(settings=settings)
    assert dict(plan.settings) == settings == plan.to_dict()["settings"]
    assert list(plan.settings) == sorted(plan.settings)
    reverse = dict(reversed(list(settings.items())))
    assert hash(plan) == hash(Plan(settings=reverse))
    assert plan == Plan(settings=reverse) == replace(plan, settings=plan.settings)


@given(settings_of_plans)
def test_a_plan_file_keeps_the_settings_that_were_given(tmp_path_factory, settings):
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    before = PlanFile("llama3-8b", Workload(8, 8), "dgx-h100", 1, Plan(settings=settings))
    assert load_plan_file(save_plan_file(path, before)) == before
    assert ("[settings]" in path.read_text(encoding="utf-8")) == bool(settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ncl_debug": "INFO"}, "'ncl_debug' is not a setting. Did you mean nccl_debug?"),
        ({"NCCL_DEBUG": "INFO"}, "Did you mean nccl_debug?"),
        ({"tp": 2}, "It is a knob: --tp."),
        ({"global_batch": 2}, "It stands with the workload."),
        ({"nccl_debug": "info"}, "is not one of WARN"),
        ({"num_workers": -1}, "is not a whole number from 0"),
    ],
)
def test_settings_that_are_none_are_one_line(settings, says):
    with pytest.raises(ValueError) as caught:
        checked_settings(settings)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            "[settings]\nncl_debug = 'INFO'\n",
            "settings.ncl_debug is not a key of a plan file. Did you mean nccl_debug?",
        ),
        ("[settings]\nNCCL_DEBUG = 'INFO'\n", "Did you mean nccl_debug?"),
        ("[settings]\ntp = 2\n", "It belongs to [knobs]"),
        ("[knobs]\nnccl_debug = 'INFO'\n", "It belongs to [settings]"),
        ("[settings]\nnum_workers = 'two'\n", "--num-workers 'two' is not a whole number"),
        ("[settings]\nasync_save = 1\n", "--async-save 1 is not true or false"),
    ],
)
def test_plan_files_with_odd_settings_are_one_line(tmp_path, lines, says):
    path = tmp_path / "plan.toml"
    start = (
        "schema = 1\n[model]\nname = 'a'\n[workload]\nseq_len = 8\nglobal_batch = 8\n[cluster]\nname = 'b'\n"
    )
    path.write_text(start + lines, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        load_plan_file(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
