"""The profile of this machine: planted rates are recovered, and what is written predicts."""

from __future__ import annotations

import json

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor import local_profile
from executor.local_profile import fit_line, profile, warnings_of

RATE = 50e9  # FLOP/s of the planted machine
COPY = 10e9  # byte/s
OP = 2e-6  # s, one dispatched operation
SIZES = [2**12, 2**16, 2**18, 2**20, 2**22, 2**24]


def planted(ranks: int = 2, latency: float = 1e-4, bandwidth: float = 2e9, spread: float = 0.02) -> dict:
    """What `executor.workers.calibrate` writes for a machine with these rates."""

    def timing(seconds: float) -> dict:
        return {"seconds": seconds, "spread": spread, "repeats": 9}

    def message(name: str, size: int) -> dict:
        factor = 1 if name == "send_recv" else (ranks - 1) / ranks * (2 if name == "all_reduce" else 1)
        return {"bytes": size, "seconds": latency + size * factor / bandwidth, "ranks": ranks}

    shapes = [(256, 768, 256), (512, 512, 1408), (1024, 1024, 1024)]
    streams = {}
    for name, num in (("copy", 1e8), ("norm", 5e5), ("elementwise", 1e6), ("optimizer", 6e7)):
        streams[name] = {**timing(num / COPY), "bytes": num}
    for name in ("norm", "elementwise"):
        num = 3 * streams[name]["bytes"]
        streams[f"{name}_both"] = {**timing(num / COPY), "bytes": num}
    attention = []
    for s, heads, d in ((128, 8, 32), (512, 8, 32), (1024, 8, 64)):
        seconds = 2 * s * s * heads * d / (RATE * s / (s + 64) * d / (d + 16))
        attention.append({"shape": [s, heads, d], "forward": timing(seconds), "both": timing(3.5 * seconds)})
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    return {
        "gemm": [{"shape": [m, n, k], **timing(2 * m * n * k / RATE)} for m, n, k in shapes],
        "attention": attention,
        "stream": streams,
        "host": timing(100 * OP),
        "collectives": {name: [message(name, size) for size in SIZES] for name in names} if ranks > 1 else {},
        "load": 0.1,
        "torch": "2.6",
    }


def written(tmp_path, measured: dict, processes: int) -> hardware_db.Cluster:
    """The profile as a user's machine file, read back."""
    path = tmp_path / "local.toml"
    path.write_text(tomli_w.dumps(profile(measured, processes)))
    return hardware_db.load_cluster(str(path))


@given(st.floats(1e-6, 1e-3), st.floats(1e8, 1e11))
def test_a_planted_line_is_recovered(latency, bandwidth):
    # From 64 byte to 64 latencies' worth: what lies between is seen on both ends.
    sizes = [latency * bandwidth * factor for factor in (1e-4, 1e-2, 1, 64, 256)]
    found = fit_line([(size, latency + size / bandwidth) for size in sizes])
    assert found == pytest.approx((latency, bandwidth), rel=1e-3)


def test_one_slow_repeat_does_not_make_the_latency(tmp_path):
    points = [(size, 1e-4 + size / 2e9) for size in SIZES]
    slow = [(points[0][0], 1e-2), *points[1:]]
    assert fit_line(slow)[0] == pytest.approx(1e-4, rel=0.5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_planted_constants_stand_in_the_profile(ranks):
    made = profile(planted(ranks), ranks)
    calibration = made["calibration"]
    assert made["gpu"]["peak_fp32"]["value"] == pytest.approx(RATE / 1e9, rel=1e-3)
    assert made["gpu"]["hbm_bandwidth"]["value"] == pytest.approx(COPY / 1e9, rel=1e-3)
    assert calibration["gemm"]["fp32"]["fraction"]["value"] == pytest.approx(1, rel=1e-3)
    assert calibration["gemm"]["fp32"]["launch"]["value"] == pytest.approx(OP * 1e6, rel=1e-3)
    assert all(
        entry["value"] == pytest.approx(1, rel=1e-2) for name, entry in calibration["memory"].items()
    ), calibration["memory"]
    for table in calibration["collective"].values():
        assert table["bandwidth"]["value"] == pytest.approx(2, rel=0.01)
        assert table["latency"]["value"] == pytest.approx(100, rel=0.1)


def test_planted_attention_is_recovered():
    table = profile(planted(), 2)["calibration"]["attention"]["fp32"]
    assert table["half_dim"]["value"] == pytest.approx(16, rel=0.1)
    assert table["forward"]["half_seq"]["value"] == pytest.approx(64, rel=0.05)
    assert table["backward"]["half_seq"]["value"] == pytest.approx(64, rel=0.05)


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
    assert "40%" in found[1]


def test_a_profile_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    calls = []

    def measure(module, arguments, processes, folder, limit, tell, poll=None):
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

    def measure(module, arguments, processes, folder, limit, tell, poll=None):
        with open(arguments[0], "w") as file:
            json.dump(planted(processes, spread=0.4), file)

    monkeypatch.setattr(local_profile, "run_worker", measure)
    _, first = local_profile.local_profile(2, False, lambda line: None)
    _, second = local_profile.local_profile(2, False, lambda line: None)
    assert first
    assert second
    assert "--recalibrate" in second[0]
