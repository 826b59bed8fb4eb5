"""A log against its prediction: the terms of the step, which of them is to blame, and the verdict."""

from __future__ import annotations

import json

import pytest
from log_cases import DUMP, leaves, log_as_predicted
from written import megatron_log


def test_a_run_as_predicted_has_no_gap_and_no_findings(ask, predicted, tmp_path):
    path = log_as_predicted(predicted, tmp_path)
    code, text = ask("compare", str(path), "--gpu", "h100", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["verdict"] == "inside the interval"
    for row in found["rows"]:
        assert row["verdict"] in ("as predicted", "inside the interval"), row
    code, text = ask("diagnose", str(path), "--gpu", "h100", "--json")
    assert code == 0
    assert not [each for each in json.loads(text)["findings"] if each["measured"]]
    assert ask("diagnose", str(path), "--gpu", "h100")[1].startswith("Nothing measured stands out")


@pytest.mark.parametrize(
    ("timer", "row", "rule"),
    [
        ("all-grads-sync", "gradient reduction, exposed", "dp_overlap_failed"),
        ("optimizer", "optimizer", "optimizer_slow"),
        ("forward-compute", "forward compute", "compute_slow"),
    ],
)
def test_a_planted_loss_is_blamed(ask, predicted, tmp_path, timer, row, rule):
    """Half a step more in one timer: that term is to blame, for all of the gap, and diagnosis says why."""
    more = 0.5 * predicted["step_time_s"]
    path = log_as_predicted(predicted, tmp_path, extra={timer: more})
    _, text = ask("compare", str(path), "--gpu", "h100", "--json")
    found = json.loads(text)
    assert found["verdict"] == "slower than the interval"
    assert found["blame"]["term"] == row
    assert found["blame"]["excess_s"] == pytest.approx(more, rel=0.02)
    assert found["blame"]["share_of_gap"] == pytest.approx(1, abs=0.05)
    assert found["blame"]["ceiling_share"] == pytest.approx(more / (1.5 * predicted["step_time_s"]), rel=0.05)
    _, text = ask("diagnose", str(path), "--gpu", "h100", "--json")
    findings = json.loads(text)["findings"]
    assert findings[0]["id"] == rule
    assert findings[0]["ceiling_share"] >= 0.9 * found["blame"]["ceiling_share"]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_gather_stands_in_the_timer_that_waits_for_it(predicted, overlaps):
    """Overlapped it is waited for in the next forward pass, else inside the optimizer's timer."""
    from executor.logs.compare import timer_rows
    from executor.logs.record import Iteration, Log, Timer
    from executor.logs.summary import steady

    told, slow = (
        leaves(predicted["terms"]),
        ("forward-backward", "forward-compute", "backward-compute", "optimizer"),
    )
    log = Log("x", iterations=[Iteration(step, 1.0) for step in range(1, 12)])
    log.timers = {name: [Timer(step, None, 0.1) for step in range(1, 12)] for name in slow}
    asked = predicted | {"knobs": predicted["knobs"] | {"overlap_param_gather": overlaps}}
    rows = {row.name: row.predicted for row in timer_rows(asked, log, steady(log))}
    other = {row.name: row.predicted for row in timer_rows(predicted, log, steady(log))}
    name = "optimizer" if overlaps else "optimizer and parameter gather"
    assert rows[name] == pytest.approx(told["optimizer_step"] + (0 if overlaps else told["dp_gather"]))
    moved = 0 if overlaps else told["dp_gather"]
    assert other["forward compute"] - rows["forward compute"] == pytest.approx(moved)
    assert sum(rows.values()) == pytest.approx(predicted["step_time_s"])


def test_the_terms_sum_to_the_step_on_both_sides(ask, predicted, tmp_path):
    path = log_as_predicted(predicted, tmp_path, extra={"optimizer": 0.1})
    _, text = ask("compare", str(path), "--gpu", "h100", "--json")
    rows = json.loads(text)["rows"]
    terms = [row for row in rows[2:] if row["unit"] == "s"]
    for side in ("predicted", "measured"):
        assert sum(row[side] for row in terms) == pytest.approx(rows[0][side], rel=1e-3)


def test_a_run_quicker_than_predicted_is_of_another_plan(ask, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 40)]))
    size = ("--gpus", "16", "--global-batch", "32")
    code, text = ask("diagnose", str(path), "--model", "8b", "--gpu", "h100", *size)
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith(
        "The run is quicker than the prediction's interval: the plan assumed is likely not"
    )
    assert "at the lower end of the interval" in words


def test_a_run_slower_than_predicted_opens_with_that(ask, predicted, tmp_path):
    """Not with what the prediction infers of itself, nor that nothing measured stands out."""
    path = tmp_path / "train.log"
    slow = 1.5 * predicted["step_time_s"]
    path.write_text(megatron_log([(step, slow) for step in range(1, 40)], dump=DUMP))
    code, text = ask("diagnose", str(path), "--gpu", "h100")
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith("The run is slower than the prediction's interval: at most 33.3 % of the step")
    assert "Inferred, not measured" in words
