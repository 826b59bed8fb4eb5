"""The real worker on this machine: what it writes becomes a profile with every constant a prediction needs."""

from __future__ import annotations

import json

import pytest
import tomli_w

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.local_profile import measure, profile
from executor.run import missing_software

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]


def test_two_processes_measure_a_profile_that_predicts(tmp_path):
    told = []
    measured = measure(2, 5.0, tmp_path, lambda share, what: told.append((share, what)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert 0 <= measured["queued"] < 1
    assert {entry["pass"] for entry in measured["gemm"]} == {"forward", "dgrad", "wgrad"}
    assert {entry["kind"] for entry in measured["collectives"]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "send_recv",
    }
    path = tmp_path / "local.toml"
    path.write_text(tomli_w.dumps(profile(json.loads(json.dumps(measured)), 2)))
    cluster = hardware_db.load_cluster(str(path))
    for plan in (Plan(dp=2, precision="fp32"), Plan(tp=2, sequence_parallel=True, precision="bf16")):
        found = predict(load_model("tiny-gpt"), Workload(256, 8), cluster, plan)
        assert 1e-3 < found.step_time_s < 1e3
    # Nothing stays beside it.
    assert [entry.name for entry in tmp_path.iterdir()] == ["local.toml"]


def test_an_fp8_product_accumulates_as_forward_ones_do(monkeypatch):
    """By PyTorch's default it added up in FP32 as it went, which forward products of Transformer Engine do not."""
    import torch

    from executor.workers.calibrate_kernels import gemm_fp8
    from executor.workers.calibrate_timing import Meter

    asked, scaled = [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **how: asked.append(how) or scaled(*args, **how))
    (found,) = gemm_fp8(Meter(cuda=False), 0.01, (64, 32, 128))
    assert found["shape"] == [64, 32, 128]
    assert found["seconds"] > 0
    assert asked
    assert all(how["use_fast_accum"] for how in asked)


@pytest.mark.parametrize("crowded", [False, True])
def test_waiting_for_a_core_counts_where_ranks_share_cores(monkeypatch, crowded):
    """Of two ranks a core each waits half of the time, in a run as in its measurement."""
    from executor.workers.calibrate_timing import Meter

    meter, wall, queued = Meter(False, crowded), iter([10.0, 14.0]), iter([1.0, 3.0])
    monkeypatch.setattr("executor.workers.calibrate_timing.time.perf_counter", lambda: next(wall))
    monkeypatch.setattr(meter.clock, "queued", lambda: next(queued))
    assert meter.once(lambda: None) == (4.0 if crowded else 2.0)
    assert meter.queued_share == 0.5


@pytest.mark.parametrize(("cost", "calls"), [(0.001, 101), (0.4, 6), (2.0, 1)])
def test_a_call_beyond_its_time_is_made_once(monkeypatch, cost, calls):
    """A BF16 product without instructions for it: six calls for each pass took ten times what the user was told."""
    from executor.workers.calibrate_timing import Meter

    meter, now = Meter(False), [0.0]
    monkeypatch.setattr("executor.workers.calibrate_timing.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(meter.clock, "queued", lambda: 0.0)

    def call() -> None:
        now[0] += cost

    entry = meter.timed(call, 0.1)
    assert now[0] == pytest.approx(calls * cost)
    assert entry["seconds"] == pytest.approx(cost)
    assert entry["repeats"] == max(1, calls - 1)
