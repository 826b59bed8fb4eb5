"""What rows of unknown recipes leave unsaid: told with what it would change, and held by the interval."""

from __future__ import annotations

import pytest

from advisor.commands.validate import page
from advisor.measurement_readings import silences
from advisor.measurements import Row
from advisor.validation import validate

# Somebody's run of Qwen3 235B with Megatron-Core, of which the layout is told and little else.
SOMEBODY = {
    "id": "somebody-1",
    "source": "somebody's blog",
    "container": "Megatron-Core 0.15",
    "model": "qwen3-235b-a22b",
    "system": "dgx-h100",
    "gpus": "256",
    "precision": "bf16",
    "gbs": "1024",
    "mbs": "1",
    "seq_len": "4096",
    "tp": "4",
    "pp": "8",
    "cp": "1",
    "ep": "8",
    "step_time_s": "30",
}
# All that such a row could say and does not.
SAID = {
    "etp": "1",
    "vp": "1",
    "moe_dispatcher": "alltoall",
    "recompute_granularity": "none",
    "tp_comm_overlap": "0",
    "overlap_grad_reduce": "1",
}


def told(**changes: str) -> dict:
    """The row of the report for SOMEBODY with other cells."""
    report = validate([Row(SOMEBODY | changes)])
    assert not report["skipped"]
    return report["rows"][0]


def readings(**changes: str) -> dict[str, dict]:
    return {each["name"]: each for each in told(**changes)["unsaid"]}


def test_a_row_that_says_everything_is_read_in_one_way():
    assert told(**SAID)["unsaid"] == []


@pytest.mark.parametrize(
    ("silent", "name", "stated", "other"),
    [
        ("etp", "expert tensor parallel size", "1", "4"),
        ("vp", "virtual stages", "1", "12"),
        ("moe_dispatcher", "dispatcher of experts", "alltoall", "deepep"),
        ("tp_comm_overlap", "overlap of tensor parallelism", "off", "on"),
        ("overlap_grad_reduce", "overlap of gradient reduction", "on", "off"),
    ],
)
def test_an_empty_column_has_another_reading_which_is_the_row_that_says_it(silent, name, stated, other):
    """The ratio is of the two rows that state it, and the interval holds the other one's prediction."""
    read = told(**SAID | {silent: ""})
    (found,) = read["unsaid"]
    assert (found["name"], found["taken"], found["other"]) == (name, stated, other)
    said = told(**SAID | {silent: {"on": "1", "off": "0"}.get(other, other)})
    here = told(**SAID)
    # The simulated schedule of a pipeline moves a prediction a little from the formulas that the ratio is of.
    assert found["step_ratio"] == pytest.approx(said["predicted"] / here["predicted"], rel=0.03)
    assert read["predicted"] == pytest.approx(here["predicted"])
    assert read["low"] == pytest.approx(here["low"] * min(1.0, found["step_ratio"]))
    assert read["high"] == pytest.approx(here["high"] * max(1.0, found["step_ratio"]))


def test_recompute_that_nobody_mentions_may_be_of_every_layer():
    found = readings(**SAID | {"recompute_granularity": "", "ep": "32", "pp": "8"})["recompute"]
    assert (found["taken"], found["other"]) == ("none", "full")
    assert 1.1 < found["step_ratio"] < 1.5


def test_heads_that_predict_further_tokens_may_have_been_left_out():
    row = SAID | {"model": "deepseek-v3", "tp": "1", "pp": "16", "ep": "16", "recompute_granularity": "full"}
    found = readings(**row)["MTP layers"]
    assert (found["taken"], found["other"]) == ("1", "0")
    ends = [told(**row, mtp_layers=heads)["predicted"] for heads in ("0", "1")]
    assert found["step_ratio"] == pytest.approx(ends[0] / ends[1], rel=0.03)


def test_a_source_that_we_know_is_read_in_one_way():
    for source in ("Megatron-Bridge perf summary 26.04", "MoE Parallel Folding (arXiv 2504.14960)"):
        assert told(source=source)["unsaid"] == []


def test_a_reading_that_cannot_run_is_none():
    """Overlapped GEMMs need sequence parallelism; before Megatron-Core 0.10 experts had no size of their own."""
    dense = SAID | {"model": "llama3-70b", "ep": "1", "sequence_parallel": ""}
    assert "sequence parallelism" in readings(**dense)
    assert "sequence parallelism" not in readings(**dense | {"tp_comm_overlap": "1"})
    assert "expert tensor parallel size" in readings()
    assert "expert tensor parallel size" not in readings(container="Megatron-Core 0.8")


def test_experts_are_whole_since_they_have_a_size_of_their_own():
    plan = "ETP4"
    assert plan not in told()["plan"]
    assert plan in told(container="Megatron-Core 0.8")["plan"]


def test_the_page_tells_what_is_not_stated_and_what_it_would_change():
    rows = [Row(SOMEBODY | {"id": f"run-{number}", "pp": pp}) for number, pp in enumerate(("8", "4"))]
    report = validate(rows)
    silence = next(each for each in silences(report["rows"]) if each.name == "expert tensor parallel size")
    assert (silence.rows, silence.taken, silence.other) == (2, "1", "4")
    lines = page(report, "source", 10).splitlines()
    at = lines.index("Not stated, of recipes that nobody knows")
    line = next(line for line in lines[at:] if "expert tensor parallel size" in line)
    assert line.split()[-6:] == ["2", "1", "4", f"{silence.least - 1:+.0%}", "to", f"{silence.most - 1:+.0%}"]


def test_what_changes_a_step_less_than_a_repeat_is_not_told():
    quiet = [{"unsaid": [{"name": "x", "taken": "on", "other": "off", "step_ratio": 1.01}]}]
    assert silences(quiet) == []
    assert "Not stated" not in page(validate([Row(SOMEBODY | SAID)]), "source", 10)
