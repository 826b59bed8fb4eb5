"""Keys of a job file: each has one role, wrong ones are told in one line, and their release is the newest of all."""

from __future__ import annotations

import json

import pytest
from torchtitan_jobs import SEVENTY, toml

from advisor.case_from import read_foreign
from advisor.torchtitan.job import read_job, releases_of, tables


def test_every_key_is_read_told_or_idle_and_one_of_them():
    roles = tables("roles")
    named = [*roles["read"], *roles["idle"], *roles["told"]]
    assert sorted(named) == sorted(tables("keys")["keys"])


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ({"training.seq_len": 8192}, "0.2.2"),
        ({"training.compile": True}, "0.1.0"),
        ({"compile.enable": True}, "0.2.2"),
        ({"training.debug_moe_force_load_balance": True}, "0.2.0"),
        ({"debug.seed": 1, "lr_scheduler.total_steps": 5}, "0.2.2"),
        # 0.2.0 renamed its converters, and no later release knows this one.
        ({"model.converters": ["float8"]}, "0.1.0"),
        ({"model.converters": ["quantize.linear.float8"]}, "0.2.2"),
        ({"model.converters": ["mine"]}, "0.2.2"),
    ],
)
def test_the_release_is_the_newest_that_has_all_keys(said, release):
    job = read_job(toml(said))
    assert (job.release, job.notes) == (release, ())
    assert all(release in releases_of(key) for key in said)


def test_keys_that_no_release_has_together_are_read_and_told():
    job = read_job(toml({"training.compile": True, "debug.seed": 1}))
    assert job.release == "0.2.2"
    assert job["training.compile"]
    (told,) = job.notes
    assert told.startswith("No release has all of its keys: torchtitan 0.2.2 refuses training.compile")


def test_a_converter_of_another_release_is_told():
    """It was read as FP8 and told as "float8 is set up, but model.converters does not name it" in one answer."""
    job = read_job(toml({"model.converters": ["float8"], "quantize.linear.float8.recipe_name": "rowwise"}))
    (told,) = job.notes
    assert "torchtitan 0.2.2 refuses model.converters float8, which is read" in told


def test_what_is_not_said_stands_at_torchtitans_default():
    job = read_job(toml({"model.flavor": "8B"}))
    assert (job["training.local_batch_size"], job["training.seq_len"]) == (8, 2048)
    assert job["parallelism.data_parallel_shard_degree"] == -1
    assert job["compile.components"] == ["model", "loss"]
    assert job["parallelism.pipeline_parallel_layers_per_stage"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[parallelism]\ntensor_paralel_degree = 8",
            r"tensor_paralel_degree is no key.*Did you mean .*tensor_parallel_deg",
        ),
        ("[training]\ntensor_parallel_degree = 8", r"Did you mean parallelism\.tensor_parallel_degree\?"),
        ("[trainig]\nseq_len = 8", r"trainig is no key.*Did you mean training\?"),
        ("[training]\na = 1\nb = 2", r"training\.a, training\.b are no keys"),
        ("training = 3", r"training is a table of keys.*\[training\]"),
        ('[training]\nseq_len = "8192"', r"training\.seq_len is a whole number, not '8192'"),
        ("[training]\nseq_len = 8192.0", r"is a whole number, not 8192\.0"),
        ("[parallelism]\ntensor_parallel_degree = true", r"is a whole number, not True"),
        ("[training.seq_len]\na = 1", r"is a whole number, not a table"),
        ("[optimizer]\nlr = 'fast'", r"optimizer\.lr is a number, not 'fast'"),
        ("[compile]\nenable = 1", r"compile\.enable is true or false, not 1"),
        (
            "[activation_checkpoint]\nmode = 'selectiv'",
            r"is one of selective, full.*Did you mean selective\?",
        ),
        ("[activation_checkpoint]\nselective_ac_option = 2", r"is a text in quotes, not 2"),
        ("[model]\nconverters = 'float8'", r"is a list of texts, not 'float8'"),
        ("[model]\nconverters = [1]", r"is a list of texts, not \[1\]"),
        ("[training\nseq_len = 1", r"this is no TOML.*line 1"),
        ('{"training": ', r"this is no JSON.*line 1"),
        ("# nothing", r"names no key of torchtitan's"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(text, told):
    with pytest.raises(ValueError, match=told) as caught:
        read_job(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["1", "1.5"])
def test_numbers_may_be_whole_where_any_are_taken(value):
    assert read_job(f"[training]\nmax_norm = {value}")["training.max_norm"] == float(value)


def test_keys_of_ones_own_module_are_told_and_others_read():
    job = read_job('[job]\ncustom_config_module = "mine"\n[mine]\nx = 1\n[training]\nseq_len = 16')
    assert job["training.seq_len"] == 16
    assert job.notes == ("Not read, as keys of mine: mine.",)


def test_the_json_that_torchtitan_saves_says_what_its_job_file_did():
    """Every key stands in it, at its default where the file says nothing."""
    said = SEVENTY | {"compile.enable": True, "training.local_batch_size": 2}
    whole: dict = {}
    for key in (key for key in tables("keys")["keys"] if "0.2.2" in releases_of(key)):
        *above, name = key.split(".")
        place = whole
        for part in above:
            place = place.setdefault(part, {})
        place[name] = said.get(key, tables("keys")["keys"][key].get("default"))
    found, same = (
        read_foreign("torchtitan", text, {"gpu": "h100", "gpus": 32})
        for text in (json.dumps(whole, indent=2), "\ufeff" + toml(said))
    )
    assert (found.model, found.plan, found.workload, found.notes) == (
        same.model,
        same.plan,
        same.workload,
        same.notes,
    )
