"""The file of overlapped GEMMs that Megatron-LM takes beside its arguments is read with them."""

from __future__ import annotations

from pathlib import Path

import pytest

import hardware_db
from advisor.case_from import read_foreign
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.bundle import bundle
from executor.export.exported import Job
from executor.export.overlap_table import with_file

KNOBS = ("tp_overlap_splits", "tp_overlap_sms", "tp_overlap_cga")
FILE = "tp_comm_overlap.yaml"


def written(folder: Path, **own) -> tuple[Plan, Path]:
    """A plan, and its launch script with all files beside it."""
    plan = Plan(tp=4, dp=2, sequence_parallel=True, tp_comm_overlap=True, **own)
    cluster = hardware_db.load_cluster("dgx-h100")
    files = bundle(
        Job(plan, Workload(4096, 64), load_model("llama3-8b"), cluster), "megatron-lm", False
    ).files
    for name, text in files.items():
        (folder / name).write_text(text)
    return plan, folder / "train.sh"


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"tp_overlap_sms": 8},
        {"tp_overlap_sms": 24, "tp_overlap_splits": 2, "tp_overlap_cga": 1},
        {"precision": "fp8-cs", "settings": (("tp_overlap_fp8_buf", True),)},
    ],
    ids=str,
)
def test_the_file_beside_the_script_is_read_back(tmp_path, own):
    """The plan that was read back had the usual splits and SMs, without a word."""
    plan, script = written(tmp_path, **own)
    back = read_foreign("megatron-lm", str(script), {"gpu": "h100"}).plan
    assert [getattr(back, name) for name in KNOBS] == [getattr(plan, name) for name in KNOBS]
    assert dict(back.settings).get("tp_overlap_fp8_buf", False) is bool(plan.settings)


def test_a_file_that_is_not_there_is_told_with_the_options(tmp_path):
    _, script = written(tmp_path, tp_overlap_sms=8)
    (tmp_path / FILE).unlink()
    case = read_foreign("megatron-lm", str(script), {"gpu": "h100", "tp_overlap_sms": 8})
    (note,) = [each for each in case.notes if FILE in each]
    assert "--tp-overlap-splits, --tp-overlap-cga are as usual" in note
    assert case.plan.tp_overlap_sms == 8


def test_a_path_in_arguments_is_opened(tmp_path):
    (tmp_path / FILE).write_text("proj_fprop:\n  num_sm: 8\n")
    text = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --tp-comm-overlap "
    text += f"--tp-comm-overlap-cfg {tmp_path / FILE}"
    options = {"gpu": "h100", "model": "llama3-8b"}
    assert read_foreign("megatron-lm", text, options).plan.tp_overlap_sms == 8


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[1, 2", "cannot be read"),
        ("[1, 2]", "no table of GEMMs"),
        ("proj_fprop:\n  num_sm: many\n", "--tp-overlap-sms 'many' is not a whole number"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text, rule):
    _, script = written(tmp_path, tp_overlap_sms=8)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ValueError, match=rule) as told:
        read_foreign("megatron-lm", str(script), {"gpu": "h100"})
    assert "\n" not in str(told.value)


def test_a_ring_says_nothing_of_pipelined_gemms():
    assert with_file({"tp": 4}, "proj_fprop: {method: ring_exchange, num_sm: 1}") == {"tp": 4}
    assert with_file({"tp": 4}, "qkv_fprop: {num_sm: 1}") == {"tp": 4}
    assert with_file({"tp": 4}, "proj_fprop: {num_sm: 3}") == {"tp": 4, "tp_overlap_sms": 3}


@pytest.mark.parametrize("row", ["proj_fprop: {method: ring_exchange, num_sm: 4}", "qkv_fprop: {num_sm: 8}"])
def test_a_file_without_pipelined_gemms_is_not_said_to_be_followed(tmp_path, row):
    """ "Splits and SMs as the file says" stood under a plan that had the usual ones."""
    _, script = written(tmp_path, tp_overlap_sms=8)
    (tmp_path / FILE).write_text(row)
    case = read_foreign("megatron-lm", str(script), {"gpu": "h100"})
    (note,) = [each for each in case.notes if FILE in each]
    assert "names no splits or SMs of a pipelined proj_fprop" in note
    assert case.plan.tp_overlap_sms == Plan().tp_overlap_sms


def test_as_many_splits_as_ranks_are_none_named():
    """They are written so, and 32 of them were refused when read back: the knob ends at 16."""
    assert with_file({"tp": 32}, "proj_fprop: {num_splits: 32}") == {"tp": 32}
