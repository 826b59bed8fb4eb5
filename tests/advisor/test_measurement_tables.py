"""Tables of measurements are read, or refused in one line; a row that cannot be expressed says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_rows import NEMO, case
from somebodys_row import ROW

import hardware_db
from advisor.measurements import Case, Skip, read_rows, row_case
from advisor.measurements.rows import Row, column_name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "mixtral-9x9b"}, "mixtral-9x9b"),
        ({"model": "mixtral-8x7b", "ep": "64", "etp": "4"}, "pp x ep x etp"),
        ({"tp": "", "pp": "", "fsdp": ""}, "layout"),
        ({"tokens_per_sec_per_gpu": ""}, "step time"),
        ({"gbs": "127"}, "127"),
        ({"system": "abacus"}, "abacus"),
        ({"precision": "int3"}, "int3"),
        ({"tp": "3"}, "not a multiple"),
        ({"seq_len": "-4"}, "seq_len '-4' is not a whole number above 0"),
        ({"gbs": "-128"}, "gbs '-128' is not a whole number above 0"),
        ({"tp": "1.5"}, "tp '1.5' is not a whole number above 0"),
        (
            {"tokens_per_sec_per_gpu": "", "step_time": "9.5"},
            "tokens_per_sec and samples_per_sec hold no number. Is column 'step_time' meant as step_time_s?",
        ),
        ({"tokens_per_sec_per_gpu": "", "step_ms": "9500"}, "Is column 'step_ms' meant as step_time_ms?"),
        ({"tokens_per_sec_per_gpu": "", "step (msec)": "9500"}, "hold no number"),
        ({"tokens_per_sec_per_gpu": "", "step_s": "9.5"}, "Is column 'step_s' meant as step_time_s?"),
        (
            {"tokens_per_sec_per_gpu": "", "model_tflops_per_gpu": "700"},
            "model_tflops_per_gpu tells a time only beside formula_gflops_per_token",
        ),
        ({"step_time_ms": "12 h"}, "step_time_ms '12 h' is not a number above 0"),
        ({"step_time_s": "abc"}, "step_time_s 'abc' is not a number above 0"),
        ({"step_time_s": "-4"}, "step_time_s '-4' is not a number above 0"),
        ({"gbs": ""}, "gbs not stated"),
        ({"system": ""}, "no system"),
        ({"model_overrides": "num_layers: 40"}, "model_overrides"),
        ({"other_flags": "[1]"}, "other_flags"),
    ],
)
def test_rows_that_cannot_be_expressed_say_why(changes, words):
    found = row_case(Row(NEMO | changes))
    assert isinstance(found, Skip)
    assert words in found.reason
    assert found.id == "bridge-70b"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gbs": "", "step_time_s": "STEP"}, "gbs not stated: 128, tokens/s x step time / seq_len"),
        ({"gbs": "", "mbs": "1", "ga": "16", "dp": "8"}, "gbs not stated: 128, mbs x ga x dp"),
        (
            {"gbs": "", "step_time_s": "STEP", "tokens_per_sec_per_gpu": "", "samples_per_sec": "RATE"},
            "gbs not stated: 128, samples_per_sec x step time",
        ),
    ],
)
def test_a_batch_that_other_columns_imply_is_taken(changes, words):
    """A step's tokens are its rate times its time, printed with five digits."""
    whole = case(NEMO)
    seconds = whole.measured_step_time_s
    told = {"STEP": f"{seconds:.5g}", "RATE": f"{128 / seconds:.5g}"}
    found = case(NEMO | {column: told.get(cell, cell) for column, cell in changes.items()})
    assert found.workload == whole.workload
    assert found.plan == whole.plan
    assert found.measured_step_time_s == pytest.approx(seconds, rel=1e-3)
    assert words in found.assumptions


@pytest.mark.parametrize(
    "changes",
    [
        {"gbs": "", "step_time_s": "0.7"},
        {"gbs": "", "seq_len": "", "step_time_s": "9.5"},
        {"seq_len": "", "step_time_s": "9.5"},
    ],
    ids=["no whole number of sequences", "two unknowns", "a sequence"],
)
def test_a_batch_that_is_not_implied_is_not_guessed(changes):
    found = row_case(Row(NEMO | changes))
    assert isinstance(found, Skip)
    assert "not stated: GPUs, global batch and sequence length are needed" in found.reason


@given(st.dictionaries(st.sampled_from(list(NEMO)), st.text(max_size=12)))
def test_no_row_ends_in_a_traceback(changes):
    assert isinstance(row_case(Row(NEMO | changes)), Case | Skip)


def test_reading(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\ufeff" + ",".join(NEMO) + "\n" + ",".join(NEMO.values()) + "\n", encoding="utf-8")
    assert case(read_rows(path)[0].values).plan.tp == 4


@pytest.mark.parametrize(("sign", "name"), [(";", ";"), ("\t", "tabs"), ("|", "|")])
def test_another_separator_is_named(tmp_path, sign, name):
    path = tmp_path / "rows.csv"
    path.write_text(sign.join(NEMO) + "\n" + sign.join(NEMO.values()) + "\n", encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read_rows(path)
    assert f"separated by {name}: save it with commas" in str(caught.value)


@pytest.mark.parametrize("header", ["model,gpus", "model", "a;b,model", "model;x,gpus"])
def test_a_table_with_commas_is_told_what_it_lacks(tmp_path, header):
    """It was told to save with commas what had them: the header was looked at between them."""
    path = tmp_path / "rows.csv"
    path.write_text(header + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.csv lacks the columns .*Columns needed: model, system, "):
        read_rows(path)


@pytest.mark.parametrize("text", ["", "\ufeff", "\n\n"])
def test_an_empty_table_is_told_as_what_it_is(tmp_path, text):
    """It was told that it lacks columns."""
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"rows\.csv is empty\. Name a CSV file with a header line, columns model, "
    ):
        read_rows(path)


def test_a_row_with_more_cells_than_the_header_is_skipped(tmp_path):
    """An unquoted 8,192 shifted every cell behind it, and the row was predicted so."""
    path = tmp_path / "rows.csv"
    shifted = ",".join((NEMO | {"seq_len": "8,192"}).values())
    short = ",".join(list(NEMO.values())[:-1])
    path.write_text("\n".join([",".join(NEMO), shifted, short]) + "\n", encoding="utf-8")
    first, second = read_rows(path)
    found = row_case(first)
    assert isinstance(found, Skip)
    assert found.reason.startswith(f"{len(NEMO) + 1} cells, {len(NEMO)} columns")
    assert isinstance(row_case(second), Case)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", bytes(range(256))])
def test_broken_tables_end_in_one_line(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.csv") as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("GPUs", "gpus"),
        ("Num GPUs", "gpus"),
        ("global_batch_size", "gbs"),
        ("Sequence Length", "seq_len"),
        ("TP", "tp"),
        ("tokens/s/GPU", "tokens_per_sec_per_gpu"),
        ("Step time (s)", "step_time_s"),
        ("cuda_graph", "cuda_graph"),
    ],
)
def test_columns_by_other_names(header, column):
    assert column_name(header) == column


def test_a_table_with_other_names_of_columns(tmp_path):
    path = tmp_path / "rows.csv"
    names = {
        "gpus": "Num GPUs",
        "gbs": "global_batch_size",
        "seq_len": "Seq Len",
        "step_time_s": "Step time (s)",
    }
    path.write_text(",".join(names.get(name, name) for name in ROW) + "\n" + ",".join(ROW.values()) + "\n")
    (row,) = read_rows(path)
    assert row.values == ROW


@pytest.mark.parametrize(
    ("column", "text", "seconds"),
    [
        ("step_time_ms", "9500", 9.5),
        ("step_time_s", "9500 ms", 9.5),
        ("tokens_per_sec", str(128 * 8192 / 9.5), 9.5),
        ("samples_per_sec", str(128 / 9.5), 9.5),
        ("model_tflops_per_gpu", str(128 * 8192 * 450e9 / (64 * 9.5e12)), 9.5),
    ],
)
def test_a_step_time_is_read_from_what_tells_it(column, text, seconds):
    found = case(NEMO, **{"tokens_per_sec_per_gpu": "", "formula_gflops_per_token": "450", column: text})
    assert found.measured_step_time_s == pytest.approx(seconds)
    assert (f"step time from {column}" in found.assumptions) == (column != "step_time_s")


def test_rows_without_an_id_are_called_by_their_line(tmp_path):
    table = tmp_path / "rows.csv"
    bare = {name: text for name, text in NEMO.items() if name != "id"}
    lines = [",".join(values) for values in (bare, bare.values(), (bare | {"model": "abacus"}).values())]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read, refused = (row_case(row) for row in read_rows(table))
    assert (read.id, refused.id) == ("line 2", "line 3")


def test_a_column_under_its_own_name_comes_first(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("GPU," + ",".join(ROW) + "\nH100 PCIe," + ",".join(ROW.values()) + "\n")
    (row,) = read_rows(path)
    assert row.text("system") == "dgx-h100"


def test_a_cluster_file_is_found_beside_the_table(tmp_path):
    shipped = Path(hardware_db.__file__).parent / "clusters" / "dgx-h100.toml"
    (tmp_path / "mine.toml").write_text(shipped.read_text())
    table = tmp_path / "runs.csv"
    table.write_text(",".join(ROW) + "\n" + ",".join((ROW | {"system": "mine.toml"}).values()) + "\n")
    found = row_case(read_rows(table)[0])
    assert isinstance(found, Case), found
    assert found.cluster.name == "dgx-h100"
