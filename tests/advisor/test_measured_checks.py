"""What makes a log and a prediction two different things."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from advisor.measured.checks import warn
from advisor.measured.run import Measured
from executor.logs.record import Log


@pytest.mark.parametrize(("told", "warned"), [(400.0, False), (405.0, False), (440.0, True), (330.0, True)])
def test_another_count_of_flop_is_told(monkeypatch, told, warned):
    """A step of 2 s at 400 TFLOP/s a GPU, against what the log prints beside its own 2 s."""
    monkeypatch.setattr("executor.logs.summary.median_of", lambda *_: told)
    predicted = {
        "model_tflops_per_gpu": 400.0,
        "step_time_s": 2.0,
        "workload": {"global_batch": 8},
        "gpus": 8,
    }
    kept = cast(Any, SimpleNamespace(seconds=2.0, num_lines=10))
    found = Measured("train.log", log=Log("train.log"), kept=kept, predicted=predicted)
    warn(found)
    assert [f"counts {told / 400:.2f} times the FLOP" in each for each in found.warnings] == [True] * warned
