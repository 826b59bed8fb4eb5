"""The profile of this machine: planted rates are recovered, and what is written predicts."""

from __future__ import annotations

import json

import pytest
import tomli_w
from planted_machine import Machine, planted

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor import local_profile
from executor.calibrate import out_path
from executor.local_profile import profile, warnings_of

RATE = Machine.rate


def written(tmp_path, measured: dict, processes: int) -> hardware_db.Cluster:
    """The profile as a user's machine file, read back."""
    path = tmp_path / "local.toml"
    path.write_text(tomli_w.dumps(profile(measured, processes)))
    return hardware_db.load_cluster(str(path))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=2, precision="fp32"),
        Plan(tp=2, sequence_parallel=True, precision="fp32"),
        Plan(pp=2, precision="fp32"),
    ],
    ids=Plan.describe,
)
def test_the_written_profile_predicts(tmp_path, plan):
    model, workload = load_model("tiny-gpt"), Workload(256, 8)
    quick = predict(model, workload, written(tmp_path, planted(), 2), plan)
    slow = predict(model, workload, written(tmp_path, planted(bandwidth=2e8), 2), plan)
    assert 0 < quick.step_time_s < slow.step_time_s
    # No machine computes faster than its peak.
    head = model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    weights = model.num_layers * model.hidden * (head + 3 * model.ffn_hidden) + model.hidden * model.vocab
    assert quick.step_time_s > 6 * weights * workload.tokens_per_step / (2 * RATE)


def test_one_process_needs_no_collectives(tmp_path):
    cluster = written(tmp_path, planted(1), 1)
    found = predict(load_model("tiny-gpt"), Workload(256, 8), cluster, Plan(precision="fp32"))
    assert found.step_time_s > 0


def test_load_and_scatter_are_told():
    assert warnings_of(planted()) == []
    loaded = planted(spread=0.4) | {"load": 1000.0}
    found = warnings_of(loaded)
    assert "load 1000.0" in found[0]
    assert "40 %" in found[1]
    queued = planted() | {"queued": 0.48}
    assert warnings_of(queued | {"threads": 1})[0].endswith("that is taken out, slower caches are not")
    shared = warnings_of(queued | {"threads": 1, "crowded": True, "ranks": 4})
    assert shared[0].startswith("4 processes share ")
    assert not any("taken out" in warning for warning in shared)
    assert warnings_of(queued | {"threads": 2})[0].endswith("may make times several times too long")


def test_a_profile_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    calls = []

    def measure(module, arguments, processes, folder, limit, poll=None):
        calls.append(processes)
        with open(arguments[0], "w") as file:
            json.dump(planted(processes), file)

    monkeypatch.setattr(local_profile, "run_worker", measure)
    for again in (False, False, True):
        path, warnings = local_profile.local_profile(2, again, lambda line: None)
        assert path.is_file()
        assert warnings == []
    assert calls == [2, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == [local_profile.profile_path(2).name]


def test_an_uncertain_profile_warns_again_when_it_is_used_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))

    def measure(module, arguments, processes, folder, limit, poll=None):
        with open(arguments[0], "w") as file:
            json.dump(planted(processes, spread=0.4), file)

    monkeypatch.setattr(local_profile, "run_worker", measure)
    _, first = local_profile.local_profile(2, False, lambda line: None)
    _, second = local_profile.local_profile(2, False, lambda line: None)
    # Beside those of the run itself, a warning says what it is of.
    assert all(each.endswith("(when this machine was measured, just now)") for each in first)
    assert first
    assert second
    assert "--recalibrate" in second[0]


def test_a_tilde_is_the_home_of_the_user(monkeypatch, tmp_path):
    """From a file of variables, which no shell reads, records went into a folder of the name ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ADVISOR_HOME", "~/kept")
    assert local_profile.home() == tmp_path / "kept"


def test_where_a_profile_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    assert out_path(None, tmp_path / "x.toml") == tmp_path / "x.toml"
    assert out_path("mine", tmp_path) == tmp_path / "profiles" / "mine.toml"
    assert str(out_path("./a.toml", tmp_path)) == "a.toml"
    with pytest.raises(ValueError, match="no name of a profile"):
        out_path("so so", tmp_path)


@pytest.mark.parametrize("text", ["", "x = ["])
def test_a_broken_profile_of_this_machine_is_measured_again(tmp_path, text):
    """It was told to write hbm_bandwidth by hand, of a data sheet."""
    path = tmp_path / "local.2.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"local\.2\.toml.*and --recalibrate measures it again\.$") as told:
        local_profile.own_cluster(path, "--recalibrate")
    assert "datasheet" not in str(told.value)
