"""Errors of predictions: their arithmetic, and the published rows that anchor them."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import main
from advisor.commands.validate import GROUPS, command
from advisor.measurements import Case, Row, read_rows, row_case
from advisor.validation import GROUPS as LABELS
from advisor.validation import errors, memory_verdict, skip_reasons, validate
from costmodel.evidence import evidence_table

# Published dense runs, typed in with their source: a fixed sample for tests.
ANCHORS = [row.values for row in read_rows(Path(__file__).parents[1] / "published" / "dense_runs.csv")]
UNTUNED_NOTES = "real-data functional run with natural routing: not tuned for speed"


@given(st.lists(st.floats(-0.9, 3.0), min_size=1, max_size=40))
def test_error_arithmetic(values):
    results = [
        {"rel_error": value, "low": 0.8, "high": 1.2, "measured": 1 / (1 + value), "fits": value < 0}
        for value in values
    ]
    found = errors(results)
    assert found["n"] == len(values)
    assert found["mape"] == pytest.approx(sum(map(abs, values)) / len(values))
    assert found["median_ape"] <= found["p90_ape"] <= found["max_ape"] == max(map(abs, values))
    inside = sum(0.8 <= 1 / (1 + value) <= 1.2 for value in values)
    assert found["interval_coverage"] == pytest.approx(inside / len(values))


def test_no_rows_no_numbers():
    assert errors([])["mape"] is None


def test_published_runs_are_predicted():
    """Dense runs of ten tables by seven publishers: the mean error stays under the 10 % this release promises."""
    report = validate(Row(row) for row in ANCHORS)
    assert not report["skipped"]
    assert report["summary"]["n"] == len(ANCHORS)
    assert report["summary"]["mape"] < 0.10
    assert report["summary"]["by"]["gpu"].keys() >= {"h100-sxm", "a100-sxm-80", "b200", "gb200"}


@pytest.mark.parametrize(
    ("system", "said", "bound"),
    [
        ("dgx-gb200-nvl72", "", False),
        ("dgx-b200", "", True),
        ("dgx-gb200-nvl72", '{"cpu_binding": true}', True),
    ],
)
def test_a_run_that_nobody_tuned_is_read_as_not_bound_to_grace_s_cores(system, said, bound):
    row = Row(ANCHORS[0] | {"system": system, "notes": UNTUNED_NOTES, "other_flags": said})
    case = row_case(row)
    assert isinstance(case, Case), case
    assert case.plan.cpu_binding is bound
    assert any("not bound" in each for each in case.assumptions) is not bound


def test_a_run_that_nobody_tuned_has_a_wider_interval():
    bound = ANCHORS[0] | {"other_flags": '{"cpu_binding": true}'}
    tuned, untuned = validate([Row(bound), Row(bound | {"notes": UNTUNED_NOTES})])["rows"]
    assert untuned["predicted"] == tuned["predicted"]
    record = evidence_table().untuned
    quickest, slowest = (untuned["predicted"] * record[name] for name in ("quicker", "slower"))
    assert untuned["low"] == pytest.approx(min(tuned["low"], quickest))
    assert untuned["high"] == pytest.approx(slowest)
    assert untuned["low"] <= tuned["low"] < tuned["high"] < untuned["high"] / 2


@pytest.mark.parametrize("written", ["1", "True", "yes"])
def test_superseded_rows_are_left_out_unless_asked_for(written):
    rows = [Row(ANCHORS[0] | {"superseded": written}), Row(ANCHORS[1])]
    assert validate(rows)["summary"]["n"] == 1
    assert validate(rows, include_superseded=True)["summary"]["n"] == 2


def test_memory_is_told_as_it_is():
    """What is over its GPU's memory is named, also where the count may err by as much."""
    rows = [{"fits": True, "peak_memory_gib": peak, "device_gib": 100.0} for peak in (60.0, 104.0, 112.0)]
    assert memory_verdict(rows[:1]) == "called impossible by memory: none"
    assert memory_verdict(rows).endswith("less than the count may err: 2, by up to 12 %")
    assert memory_verdict([*rows, rows[0] | {"fits": False}]).startswith("called impossible by memory: 1;")


def test_the_command(tmp_path):
    path = tmp_path / "rows.csv"
    columns = sorted({name for row in ANCHORS for name in row})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(ANCHORS)
        writer.writerow(ANCHORS[0] | {"id": "moe", "model": "mixtral-9x9b"})
    text = CliRunner().invoke(command, [str(path)]).output
    assert text.startswith(f"{len(ANCHORS)} runs predicted: mean error")
    assert "Skipped: 1 row\n" in text
    assert "1 x model 'mixtral-9x9b'" in text
    assert text.rstrip().endswith("[moe]")
    assert "Did you mean mixtral-8x7b" in " ".join(text.split())
    report = json.loads(CliRunner().invoke(command, [str(path), "--json"]).output)
    assert report["skipped"][0]["id"] == "moe"
    assert {
        "id",
        "measured",
        "predicted",
        "low",
        "high",
        "rel_error",
        "fits",
        "peak_memory_gib",
        "note",
    } <= set(report["rows"][0])


def test_an_id_of_several_rows_is_told_with_its_lines(tmp_path):
    """A copy counted twice in every mean, and rows of one id could not be told apart."""
    path = tmp_path / "rows.csv"
    first, second = ANCHORS[0], ANCHORS[1]
    slower = {"step_time_s": "99", "tokens_per_sec_per_gpu": ""}
    rows = [first, first, second, second | slower, second | slower]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted({name for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    report = json.loads(CliRunner().invoke(command, [str(path), "--json"]).output)
    assert [row["id"] for row in report["rows"]] == [first["id"], second["id"], second["id"]]
    assert [each["id"] for each in report["skipped"]] == [first["id"], second["id"]]
    assert "a copy of line 2, which counts" in report["skipped"][0]["reason"]
    assert report["repeated_ids"] == [
        {"id": first["id"], "lines": [2, 3], "counted": [2]},
        {"id": second["id"], "lines": [4, 5, 6], "counted": [4, 5]},
    ]
    text = " ".join(CliRunner().invoke(command, [str(path)]).output.split())
    assert f"2 ids stand in several lines: '{first['id']}' in lines 2 and 3: line 2 counts" in text
    assert f"'{second['id']}' in lines 4, 5 and 6: lines 4 and 5 count, the rest are copies" in text
    one = validate([Row(first), Row(first | {"notes": "again"})])
    assert one["summary"]["n"] == 2


def test_two_times_of_a_row_that_differ_stand_in_the_text(tmp_path):
    """A rate of ten times the tokens was told in the notes of --json alone, and the text took the time in silence."""
    first, second = ANCHORS[0], ANCHORS[1]
    agreed = validate([Row(first)])["rows"][0]["measured"]
    rows = [
        first | {"step_time_s": f"{agreed}", "tokens_per_sec_per_gpu": "99999"},
        second | {"step_time_s": "", "step_time_ms": ""},
    ]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted({name for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    text = " ".join(CliRunner().invoke(command, [str(path)]).output.split())
    assert f"{first['id']}: step_time_s says {agreed:.4g} s and tokens_per_sec_per_gpu" in text
    assert text.count("is compared") == 1


def test_copies_without_an_id_count_once_too():
    """Two equal lines of a table without ids counted twice in every mean, and nothing said so."""
    row = ANCHORS[0] | {"id": ""}
    found = validate([Row(row, line=2), Row(row, line=3), Row(row | {"notes": "another run"}, line=4)])
    assert [each["id"] for each in found["rows"]] == ["line 2", "line 4"]
    assert found["skipped"] == [{"id": "line 3", "reason": "a copy of line 2, which counts: the same values"}]


@pytest.mark.parametrize("factor", [4.0, 1000.0])
def test_what_no_gpu_can_compute_is_no_measurement(factor):
    """Tokens/s of all GPUs taken for those of one were let in, and widened every mean."""
    row = ANCHORS[0] | {"tokens_per_sec_per_gpu": "", "step_time_s": ""}
    usual = validate([Row(ANCHORS[0])])["rows"][0]
    quick = validate([Row(row | {"step_time_s": str(usual["predicted"] / factor)})])
    assert not quick["rows"]
    reason = quick["skipped"][0]["reason"]
    assert "TFLOP/s of the model on each GPU" in reason
    assert ("belongs in step_time_s" in reason) == (factor == 1000.0)


def test_milliseconds_among_seconds_are_told(tmp_path):
    row = ANCHORS[0] | {"tokens_per_sec_per_gpu": "", "step_time_s": ""}
    usual = validate([Row(ANCHORS[0])])["rows"][0]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row | {"step_time_s": str(1000 * usual["measured"])})
    hint = "times the prediction: is it in milliseconds? step_time_ms takes those"
    text = " ".join(CliRunner().invoke(command, [str(path)]).output.split())
    assert f"{row['id']}: " in text
    assert hint in text
    assert hint in json.loads(CliRunner().invoke(command, [str(path), "--json"]).output)["rows"][0]["note"]
    assert hint not in usual["note"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_table_that_tells_nothing_is_bad_input(tmp_path, capfd, monkeypatch, options):
    path = tmp_path / "rows.csv"
    row = ANCHORS[0] | {"model": "mixtral-9x9b"}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    monkeypatch.setattr(sys, "argv", ["advisor", "validate", str(path), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told, said = capfd.readouterr()
    assert "mixtral-8x7b" in told
    assert said.startswith(f"Error: {path}: no row could be predicted.")


def test_reasons_that_differ_in_a_name_are_told_once_with_every_name():
    skipped = [{"id": name, "reason": f"--model '{name}' is not known."} for name in ("ab", "cd", "ab")]
    assert skip_reasons(skipped) == [("--model 'ab' is not known. Likewise 'cd'.", ["ab", "cd", "ab"])]


def test_help_names_every_group():
    assert tuple(LABELS) == GROUPS
    text = CliRunner().invoke(command, ["--help"]).output
    assert f"Group: {', '.join(GROUPS)}." in " ".join(text.split())
