"""The page of a run: what disturbed it stands before its table, and small memories keep their figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from advisor.run_text import page
from executor.compare import Row
from executor.resolve import Feature

PREDICTED = {"step_time_s": 0.4, "interval": {"low": 0.2, "high": 0.9}}


def shown(queued: float, features: tuple[Feature, ...] = (), **more) -> str:
    """The page of a run whose ranks queued for a core so long [s], and which had these features.

    more: further things measured.
    """
    rows = [
        Row("step time", 0.4, 1.2, "s", "slower than the interval"),
        Row("memory of the worst rank", 292 * 2**20, 407 * 2**20, "byte", "1.39 x predicted"),
    ]
    measured = {"step_time_s": 1.2, "queued_s": queued, "first_loss": 9.0, "last_loss": 4.0, "num_steps": 6}
    measured |= {"spread": 0.17, "exposed": {}} | more
    result = SimpleNamespace(
        rows=rows, measured=measured, states=[], features=list(features), warnings=[], record=Path("runs/x")
    )
    return page(result, PREDICTED)


@pytest.mark.parametrize(("queued", "told"), [(0.8, True), (0.05, False)])
def test_a_run_that_shared_its_cores_says_so_before_the_table(queued, told):
    head = " ".join(shown(queued).partition("Predicted beside measured")[0].split())
    assert ("for 67 % of a step ranks waited for a core" in head) == told
    assert ("`advisor diagnose runs/x` says more" in head) == told


def test_a_ratio_of_small_memories_can_be_seen():
    assert "292 MiB   407 MiB   1.39" in shown(0.0)


def test_memory_of_a_process_is_told_apart_from_that_of_tensors():
    """It read as a count that is half of the truth: "1.94 x predicted"."""
    said = "memory is what a rank's process holds"
    assert said in shown(0.0, peak_memory_bytes=[407 * 2**20])
    assert said not in shown(0.0, peak_memory_bytes=[407 * 2**20], peak_allocated_bytes=[300 * 2**20])
    assert said not in shown(0.0, peak_memory_bytes=[])


def test_the_losses_are_said_of_the_steps_they_are_of():
    """The first loss is that of the first step, which the warm-up holds."""
    head = " ".join(shown(0.0).split())
    assert (
        "loss 9.000 at the first step, 4.000 at the last; the 6 steps after the warm-up scatter by 17.0 %"
        in head
    )


def test_that_less_than_the_plan_is_predicted_is_said_first():
    """explain said 488 ms of a plan, run 546 ms: four fusions were off, as the last table says."""
    features = (
        Feature("rope_fusion", True, False, "needs Transformer Engine"),
        Feature("bias_dropout_fusion", True, False, "needs a CUDA device"),
        Feature("overlap_grad_reduce", True, True, ""),
    )
    head = " ".join(shown(0.0, features).partition("Predicted beside measured")[0].split())
    assert "2 features of the plan run otherwise or not at all here (last table)" in head
    assert "otherwise or not at all" not in shown(0.0, features[2:])
