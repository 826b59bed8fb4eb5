"""Columns that rows of unknown recipes leave empty: told with what else they may hold, which the interval holds too."""

from __future__ import annotations

import pytest

from advisor.commands.validate import page
from advisor.measurements import Row, row_case
from advisor.measurements.readings import silences
from advisor.validation import validate
from costmodel.predict import predict

# Somebody's runs with Megatron-Core that say everything. Each effect below is large on one of them.
DENSE = {
    "id": "somebody-1",
    "source": "somebody's blog",
    "container": "Megatron-Core 0.15",
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": "64",
    "precision": "bf16",
    "gbs": "32",
    "mbs": "1",
    "seq_len": "8192",
    "tp": "4",
    "pp": "8",
    "cp": "1",
    "vp": "1",
    "recompute_granularity": "none",
    "sequence_parallel": "1",
    "tp_comm_overlap": "0",
    "overlap_grad_reduce": "1",
    "step_time_s": "8",
}
REPLICAS = DENSE | {"gpus": "512", "gbs": "512", "tp": "8", "pp": "1", "seq_len": "4096"}
EXPERTS = DENSE | {
    "model": "qwen3-235b-a22b",
    "gpus": "256",
    "gbs": "1024",
    "seq_len": "4096",
    "ep": "8",
    "etp": "1",
    "moe_dispatcher": "alltoall",
    "step_time_s": "30",
}
HEADS = EXPERTS | {
    "model": "deepseek-v3",
    "gpus": "1024",
    "gbs": "2048",
    "tp": "1",
    "pp": "16",
    "ep": "64",
    "recompute_granularity": "full",
    "mtp_layers": "1",
}


def told(row: dict[str, str]) -> dict:
    """The report's entry of one row."""
    report = validate([Row(row)])
    assert not report["skipped"]
    return report["rows"][0]


def readings(row: dict[str, str]) -> dict[str, dict]:
    return {each["column"]: each for each in told(row)["unsaid"]}


def seconds(row: dict[str, str]) -> float:
    """Step time of a row by the formulas."""
    case = row_case(Row(row))
    return predict(case.model, case.workload, case.cluster, case.plan, case.stack, judged=False).step_time_s


@pytest.mark.parametrize("row", [DENSE, REPLICAS, EXPERTS, HEADS])
def test_a_row_that_says_everything_is_read_in_one_way(row):
    assert told(row)["unsaid"] == []


@pytest.mark.parametrize(
    ("row", "column", "taken", "other", "least"),
    [
        (EXPERTS, "etp", "1", "4", 0.2),
        (HEADS, "moe_dispatcher", "alltoall", "deepep", 0.1),
        (HEADS, "mtp_layers", "1", "0", 0.005),
        (DENSE, "recompute_granularity", "none", "full", 0.15),
        (REPLICAS, "tp_comm_overlap", "0", "1", 0.02),
        (REPLICAS, "sequence_parallel", "1", "0", 0.01),
        (REPLICAS, "overlap_grad_reduce", "1", "0", 0.01),
    ],
)
def test_an_empty_column_is_told_as_the_row_that_fills_it_otherwise(row, column, taken, other, least):
    read = told(row | {column: ""})
    (found,) = read["unsaid"]
    assert (found["column"], found["taken"], found["other"]) == (column, taken, other)
    here, there = seconds(row), seconds(row | {column: other})
    assert seconds(row | {column: ""}) == here
    assert found["step_ratio"] == pytest.approx(there / here)
    assert abs(there / here - 1) > least
    filled = told(row)
    assert read["low"] == pytest.approx(filled["low"] * min(1, there / here))
    assert read["high"] == pytest.approx(filled["high"] * max(1, there / here))


def test_of_virtual_stages_the_number_that_moves_the_step_most_is_told():
    found = readings(DENSE | {"vp": ""})["vp"]
    times = {size: seconds(DENSE | {"vp": str(size)}) for size in (1, 2, 5, 10)}
    most = max(times, key=lambda size: abs(times[size] / times[1] - 1))
    assert (found["taken"], found["other"]) == ("1", str(most))
    assert found["step_ratio"] == pytest.approx(times[most] / times[1])
    assert "vp" not in readings(DENSE | {"vp": "", "other_flags": '{"schedule": "Interleaved1F1B"}'})


def test_recompute_that_memory_asks_for_is_not_taken_away_again():
    """The row would not fit without, so that part of the layers are recomputed: all of them is the other reading."""
    large = DENSE | {
        "model": "gpt3-175b",
        "tp": "8",
        "pp": "2",
        "seq_len": "2048",
        "recompute_granularity": "",
    }
    read = told(large)
    assert "without it the run would not fit" in read["note"]
    others = [each["other"] for each in read["unsaid"] if each["column"] == "recompute_granularity"]
    assert others in ([], ["full"])


def test_experts_may_be_spread_and_micro_batches_smaller_where_no_row_says_so():
    alone = EXPERTS | {"model": "olmoe-1b-7b", "gpus": "16", "tp": "1", "pp": "1", "gbs": "64", "etp": "1"}
    found = readings(alone | {"ep": ""})["ep"]
    assert (found["taken"], found["other"]) == ("1", "8")
    assert found["step_ratio"] == pytest.approx(seconds(alone | {"ep": "8"}) / seconds(alone | {"ep": "1"}))
    small = DENSE | {"model": "llama3-8b", "gpus": "8", "tp": "1", "pp": "1", "seq_len": "1024", "gbs": "64"}
    found = readings(small | {"mbs": ""})["mbs"]
    assert found["other"] == "1"
    taken = seconds(small | {"mbs": found["taken"]})
    assert found["step_ratio"] == pytest.approx(seconds(small | {"mbs": "1"}) / taken)
    assert found["step_ratio"] > 1


def test_a_micro_batch_of_one_may_have_been_two_unless_that_asks_for_recompute():
    short = DENSE | {"seq_len": "4096", "tp": "8"}
    found = readings(short | {"mbs": ""})["mbs"]
    assert (found["taken"], found["other"]) == ("1", "2")
    assert found["step_ratio"] == pytest.approx(seconds(short | {"mbs": "2"}) / seconds(short))
    tight = short | {"tp": "4", "seq_len": "8192", "recompute_granularity": "", "mbs": "2"}
    assert "without it the run would not fit" in told(tight)["note"]
    assert "mbs" not in readings(tight | {"mbs": ""})


def test_what_nobody_can_read_is_not_stated():
    for column, cell in (("tp_comm_overlap", "maybe"), ("moe_dispatcher", "foo"), ("etp", "-")):
        assert column in readings(EXPERTS | {column: cell})


@pytest.mark.parametrize(
    ("source", "open_to"), [("DGXC benchmarking recipes 25.05", []), ("our lab", ["vp"])]
)
def test_of_known_software_another_publisher_s_silence_is_read_otherwise(source, open_to):
    row = DENSE | {"source": source, "container": "nemo:25.04", "vp": "", "tp_comm_overlap": "1"}
    assert list(readings(row)) == open_to


def test_pytorch_s_replicas_may_have_been_shards():
    row = DENSE | {
        "source": "a blog",
        "container": "nanotron",
        "gpus": "8",
        "tp": "1",
        "pp": "1",
        "model": "llama3.2-1b",
    }
    assert readings(row | {"fsdp": ""})["fsdp"]["other"] == "1"
    assert "fsdp" not in readings(row | {"fsdp": "0"})
    assert "fsdp" not in readings(row | {"fsdp": "", "container": "Megatron-Core"})


def test_a_source_that_we_know_is_read_in_one_way():
    silent = {name: text for name, text in EXPERTS.items() if name not in ("etp", "vp", "moe_dispatcher")}
    assert readings(silent)
    for source in ("Megatron-Bridge perf summary 26.04", "MoE Parallel Folding (arXiv 2504.14960)"):
        assert readings(silent | {"source": source}) == {}


def test_of_a_source_that_we_know_the_column_that_it_does_not_print_is_read_otherwise():
    row = EXPERTS | {"gpus": "1024", "mbs": ""}
    assert readings(row | {"source": "Megatron-Bridge perf summary 26.04"}) == {}
    found = readings(row | {"source": "MoE Parallel Folding (arXiv 2504.14960)"})
    assert list(found) == ["mbs"]
    assert found["mbs"]["other"] == "2"


def test_a_reading_that_cannot_run_is_none():
    """Overlapped GEMMs need sequence parallelism; before Megatron-Core 0.10 experts are split over tp."""
    assert "sequence_parallel" not in readings(REPLICAS | {"sequence_parallel": "", "tp_comm_overlap": "1"})
    old = EXPERTS | {"container": "Megatron-Core 0.8", "etp": ""}
    assert "etp" not in readings(old)
    assert "ETP4" in told(old)["plan"]
    assert "ETP" not in told(old | {"container": "Megatron-Core 0.15"})["plan"]


def test_a_row_beyond_memory_is_still_read_otherwise():
    """What needs no more memory than the row as read is not refuted by it."""
    beyond = DENSE | {"model": "llama3.1-405b", "gpus": "128", "tp": "8", "pp": "2", "tp_comm_overlap": ""}
    assert not told(beyond)["fits"]
    assert "tp_comm_overlap" in readings(beyond)


def test_the_page_tells_the_columns_and_what_they_would_change():
    rows = [
        Row(EXPERTS | {"id": f"run-{number}", "pp": pp, "etp": ""}) for number, pp in enumerate(("8", "4"))
    ]
    report = validate(rows)
    (silence,) = silences(report["rows"])
    assert (silence.column, silence.rows, silence.taken, silence.other) == ("etp", 2, "1", "4")
    lines = page(report, "source", 10).splitlines()
    at = lines.index("Columns left empty")
    line = next(line for line in lines[at:] if line.split()[:1] == ["etp"])
    assert line.split() == [
        "etp",
        "2",
        "1",
        "4",
        f"{100 * (silence.least - 1):+.0f}",
        "%",
        "to",
        f"{100 * (silence.most - 1):+.0f}",
        "%",
    ]


def test_what_changes_a_step_less_than_a_repeat_is_not_told():
    quiet = [{"unsaid": [{"column": "x", "taken": "1", "other": "0", "step_ratio": 1.01}]}]
    assert silences(quiet) == []
    assert "Columns left empty" not in page(validate([Row(EXPERTS)]), "source", 10)
