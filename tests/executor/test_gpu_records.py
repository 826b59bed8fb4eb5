"""Runs of our own on a GPU, as they are kept, beside predictions of today."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

import hardware_db
from executor.gpu_records import BASES, PROFILE, Row, median_error, read_rows, records_of, table

MEASURED = Path(hardware_db.__file__).parent / "measured"
FOLDERS = sorted(each for each in MEASURED.iterdir() if each.is_dir())
# Narrow layers in passes of one sequence: the host of that machine issued kernels more slowly than the GPU ran them.
HOST_BOUND = "hidden2048-4096-mb1-none-bf16"


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def rows(request) -> list[Row]:
    """The rows of one machine."""
    gpu = hardware_db.load_cluster(str(request.param / PROFILE)).gpu.name
    return read_rows(request.param, hardware_db.resolve(gpu, None)[0])


def test_live_tensors_are_met(rows):
    assert rows
    for row in rows:
        assert row.memory_predicted == pytest.approx(row.memory, rel=0.05), row.name


def test_steps_of_a_busy_gpu_are_told_without_having_seen_it(rows):
    busy = [row for row in rows if row.name != HOST_BOUND]
    for row in busy:
        limit = 0.145 if row.name.startswith("experts") else 0.053
        assert row.shipped == pytest.approx(row.measured, rel=limit), row.name
    assert median_error(busy, "shipped") < 0.05
    assert median_error(busy, "kernels") < 0.05


def test_a_record_without_a_measured_step_is_no_row(tmp_path):
    source = FOLDERS[0] / HOST_BOUND
    for name in ("whole", "cut"):
        shutil.copytree(source, tmp_path / name)
    steps = [json.loads(line) for line in (source / "steps.jsonl").read_text().splitlines()]
    warm = [json.dumps(step) for step in steps if step["warmup"]]
    (tmp_path / "cut" / "steps.jsonl").write_text("\n".join(warm) + "\n")
    (tmp_path / "empty").mkdir()
    assert [each.name for each in records_of(tmp_path)] == ["whole"]
    (row,) = read_rows(tmp_path, hardware_db.resolve("h200", None)[0])
    # No profile and no other run: what they would tell is not known.
    assert math.isnan(row.kernels)
    assert math.isnan(row.others)


def test_the_table_leaves_open_what_is_not_known():
    known = Row("a", 1.0, 0.01, 1.1, 1.02, 1.05, 2.0**31, 2.0**31)
    lines = table([known, Row("b", 2.0, 0.01, 1.8, math.nan, math.nan, math.nan, 1.0)])
    assert "+10.0%" in lines[1]
    assert "+0.0%" in lines[1]
    assert lines[2].split()[-3:] == ["-", "-", "-"]
    assert f"median error, {BASES['kernels']}: 2.0%" in lines
