"""Plan files: what is written is read, what is wrong is one line, nothing is left half-written."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, load_plan_file, save_plan_file
from costmodel.workload import Workload

GOOD = """schema = 1
[model]
name = "llama3-8b"
[workload]
seq_len = 8192
global_batch = 128
[cluster]
name = "dgx-h100"
gpus = 8
"""


def knob_values(knob):
    if knob.kind == "int":
        return st.integers(knob.low, min(knob.high, 64))
    if knob.kind == "float":
        return st.floats(knob.low, knob.high)
    if knob.kind == "text":
        return st.text(max_size=20)
    if knob.kind == "bool":
        return st.booleans()
    if knob.kind == "choice":
        return st.sampled_from(knob.choices)
    return st.lists(st.sampled_from(knob.choices), unique=True).map(tuple)


plans = (
    st.fixed_dictionaries({name: knob_values(knob) for name, knob in KNOBS.items()})
    .map(lambda values: values | {"fsdp": values["zero_stage"] >= 2})
    .map(lambda values: Plan(**values))
)


@given(plan=plans, seq_len=st.integers(1, 2**20), global_batch=st.integers(1, 2**20))
def test_what_is_written_is_read(tmp_path_factory, plan, seq_len, global_batch):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    written = PlanFile("llama3-8b", Workload(seq_len, global_batch), "dgx-h100", 8, plan, stack="nemo-25.09")
    assert load_plan_file(save_plan_file(path, written)) == written


def read(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_plan_file(path)


def test_knobs_left_out_take_their_default(tmp_path):
    found = read(tmp_path, GOOD + "[knobs]\ntp = 2\n")
    assert found.plan == Plan(tp=2)
    assert (found.gpus, found.workload.task, found.stack) == (8, "pretrain", "")


def test_gpus_left_out_are_those_of_the_plan(tmp_path):
    assert read(tmp_path, GOOD.replace("gpus = 8\n", "") + "[knobs]\ntp = 2\npp = 3\n").gpus == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty: no plan is in it. Write one with `advisor explain ... --save "),
        ("gpus = 8\n", "no schema line"),
        (GOOD.replace("schema = 1", "schema = 2"), "schema = 2"),
        (GOOD + "[knobs]\ntpp = 1\n", "knobs.tpp is not a key of a plan file. Did you mean tp?"),
        (GOOD + "[knob]\ntp = 1\n", "Did you mean knobs?"),
        (GOOD + "[settings]\nxyzzy = 1\n", "not a key of a plan file. `advisor knobs` lists them."),
        (GOOD + "[knobs]\nseq_len = 1\n", "It belongs to [workload]"),
        (GOOD + "[knobs]\ntp = 0\n", "--tp 0 is not a whole number from 1"),
        (GOOD + "[knobs]\ntp = 2.0\n", "--tp 2.0 is not a whole number"),
        (GOOD + '[knobs]\ntp = "2"\n', "--tp '2' is not a whole number"),
        (GOOD + "[knobs]\nfsdp = 1\n", "--fsdp 1 is not true or false"),
        (GOOD + "[knobs]\nfsdp = true\n", "Try --zero-stage 3"),
        (GOOD + '[knobs]\nprecision = "fp8"\n', "is not one of bf16"),
        (GOOD + '[knobs]\nrecompute_modules = ["mpl"]\n', "Did you mean mlp?"),
        (
            GOOD + '[knobs]\nrecompute_modules = "mlp"\n',
            "'mlp' is a text, and a list is needed. Try [\"mlp\"].",
        ),
        (GOOD + '[knobs]\nrecompute_modules = "mlp,moe"\n', 'Try ["mlp", "moe"].'),
        (GOOD + '[knobs]\nrecompute_modules = "mpl"\n', "Did you mean mlp?"),
        (GOOD + "[knobs]\nrecompute_modules = 3\n", "--recompute-modules 3 is not one of"),
        (GOOD.replace("seq_len = 8192\n", ""), "workload.seq_len is missing"),
        (GOOD.replace("8192", "-1"), "--seq-len -1"),
        (GOOD.replace("8192", "nan"), "workload.seq_len"),
        (GOOD.replace("gpus = 8", "gpus = -8"), "cluster.gpus = -8"),
        (GOOD.replace("gpus = 8", 'gpus = "64"'), "without quotes. Try gpus = 64."),
        (GOOD.replace('"llama3-8b"', '""'), "model.name"),
        ("schema = 1\nmodel = 3\n", "model = 3"),
        ("schema = ", "is not TOML"),
        (b"\x00\xff\xfe" * 9, "not UTF-8"),
        (b"#" * (2 << 20), "larger than 1 MiB"),
        ("a = " + "[" * 9000, "no plan file"),
        ("a = " + "9" * 9000, "no plan file"),
    ],
)
def test_hostile_files_give_one_line(tmp_path, text, says):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert says in message
    assert "plan.toml" in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        load_plan_file(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="is a folder"):
        load_plan_file(tmp_path)


def test_paths_beside_the_file_move_with_it(tmp_path):
    (tmp_path / "model.toml").write_text("")
    before = PlanFile(str(tmp_path / "model.toml"), Workload(8, 8), "/elsewhere/box.toml", 1, Plan())
    save_plan_file(tmp_path / "plan.toml", before)
    moved = tmp_path / "moved"
    moved.mkdir()
    os.rename(tmp_path / "plan.toml", moved / "plan.toml")
    found = load_plan_file(moved / "plan.toml")
    assert found.model == str(moved / "model.toml")
    assert found.cluster == "/elsewhere/box.toml"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    good = PlanFile("llama3-8b", Workload(8, 8), "dgx-h100", 8, Plan())
    for path in (tmp_path, tmp_path / "none" / "plan.toml"):
        with pytest.raises(OSError) as caught:
            save_plan_file(path, good)
        assert caught.value.filename == str(path)


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "plan.toml"
    good = PlanFile("llama3-8b", Workload(8, 8), "dgx-h100", 8, Plan())
    save_plan_file(path, good)
    with pytest.raises(TypeError):
        save_plan_file(path, replace(good, prediction={"step_time_s": object()}))
    assert load_plan_file(path) == good
    assert os.listdir(tmp_path) == ["plan.toml"]


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        ({}, "single GPU mbs1 bf16"),
        ({"tp": 8, "pp": 2, "micro_batch": 4}, "TP8 PP2 mbs4 bf16"),
        ({"fsdp": True, "zero_stage": 3, "dp": 8}, "DP8 mbs1 bf16 FSDP-3"),
        ({"recompute": "full"}, "single GPU mbs1 bf16 full recompute xall"),
        (
            {"recompute": "selective", "recompute_modules": ("mlp", "layernorm")},
            "single GPU mbs1 bf16 recompute mlp+layernorm",
        ),
        ({"recompute": "selective"}, "single GPU mbs1 bf16 recompute selective"),
    ],
)
def test_a_plan_is_one_line(knobs, line):
    assert Plan(**knobs).describe() == line


def test_a_value_after_a_switch_is_told_from_a_file():
    with pytest.raises(
        ValueError, match=r"^yes was given where a plan file stands\. A switch takes no value"
    ):
        load_plan_file("yes")
