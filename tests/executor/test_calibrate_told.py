"""What a calibration says: what was learned and written, of which intervals, and what is no record of a run."""

from __future__ import annotations

import dataclasses
import re

import pytest

import hardware_db
from advisor.calibrate_text import calibration_lines, shown, to_json
from executor.calibrate import Calibration, base_document, taught
from executor.calibrate_fit import CONSTANTS, Learned, Outcome
from executor.calibrate_records import read_observed

NAMES = {constant.name: constant for constant in CONSTANTS}


def test_only_what_is_written_is_told_as_learned(tmp_path):
    """A constant that stays as open as its belief is in no profile: the page and the JSON say so."""
    cluster = hardware_db.resolve("h100", None)[0]
    taught_one = Learned(NAMES["gemm_rate"], 1.0, 0.8, 0.05, 3)
    open_one = Learned(NAMES["stream"], 0.5, 0.6, 0.39, 3)
    outcome = Outcome((taught_one, open_one), {"a": 0.3}, {"a": 0.0})
    document = taught(base_document(cluster), outcome, [])
    assert document["calibration"]["step"]["gemm_rate"]["value"] == pytest.approx(0.8)
    found = Calibration(tmp_path / "mine.toml", document, outcome, (), ())
    lines = calibration_lines(found)
    assert any(line.split()[:1] == ["gemm_rate"] for line in lines)
    assert not any(line.split()[:1] == ["stream"] for line in lines)
    assert "  as uncertain as before, so not written: stream" in lines
    assert not re.search(r"\d%", "\n".join(lines))
    # Errors of what was fitted say nothing of another run.
    told = " ".join(lines)
    assert "that it learned from are told within" in told
    assert "how well it tells other runs is open: that takes 5 runs" in told
    assert "intervals of predictions on this profile are those of published runs" in told
    # The evidence of a profile that is gone on from stays in the new one.
    kept = document | {"calibration": document["calibration"] | {"evidence": {}}}
    told = " ".join(calibration_lines(dataclasses.replace(found, document=kept)))
    assert "on this profile are those of the profile that it goes on from" in told
    apart = dataclasses.replace(outcome, apart={f"run {n}": 0.1 for n in range(5)})
    assert "is open" not in " ".join(calibration_lines(dataclasses.replace(found, outcome=apart)))
    assert {each["name"]: each["written"] for each in to_json(found)["learned"]} == {
        "gemm_rate": True,
        "stream": False,
    }
    assert shown(13980.0, "us") == "13.98 ms"
    # 0.9502 of what?
    shares = {"gemm": {"value": 0.95, "unit": "1", "kind": "measured", "source": "here", "residual": 0.04}}
    alone = dataclasses.replace(found, document=document | {"calibration": shares})
    assert "without a unit: shares of the machine's best rate" in " ".join(calibration_lines(alone))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no job.json"),
        ({"job.json": "{"}, "cannot be read"),
        ({"job.json": '{"plan": {"tq": 1}}'}, "cannot be read"),
    ],
)
def test_what_is_no_record_is_told_in_one_line(tmp_path, files, said):
    file = tmp_path / "plan.toml"  # a file was "plan.toml/job.json: Not a directory"
    file.write_text("")
    with pytest.raises(ValueError, match=r"plan.toml is no record of a run.*Give a folder"):
        read_observed(file)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_observed(tmp_path)
    assert "\n" not in str(error.value)
