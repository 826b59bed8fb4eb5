"""The page of a prediction as it is read: a golden text of fixed numbers, and the sections one by one."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from advisor.predict_text import prediction_lines
from advisor.progress import Progress
from advisor.rules import Violation
from advisor.sections import (
    assumption_section,
    changed_knobs,
    cost_line,
    knob_table,
    numbers,
    pace,
    setting,
    training_cost,
)
from costmodel.evidence import Near
from costmodel.evidence.setting import setting_of
from costmodel.knobs.names import FRAMEWORKS
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction, TermValue
from costmodel.stack import families, load_stack
from costmodel.workload import Workload
from hardware_db import load_cluster
from hardware_db.evidence import Evidence

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "predict.txt"
GIB = 2**30


def total(name: str, title: str, unit: str, *parts: TermValue) -> TermValue:
    return TermValue(name, title, unit, math.fsum(part.value for part in parts), "sum of its parts", parts)


def leaf(name: str, title: str, value: float, unit: str = "s") -> TermValue:
    return TermValue(name, title, unit, value, "tests")


def published() -> Near:
    """A published run that never was."""
    setting = setting_of(
        load_model("llama3-8b"), Workload(8192, 128), load_cluster("dgx-h100"), Plan(), "nemo-26.06"
    )
    run = Evidence(
        **asdict(setting),
        id="a-report-0001",
        source="a report",
        date="2026-01-31",
        measured_step_time_s=4.0,
        error=math.log(1.021),
        held_error=0.05,
    )
    return Near(run, 0.5, ("8 instead of 1 GPU", "fp8-cs instead of bf16"))


def fixed() -> Prediction:
    """A prediction whose numbers no calibration moves."""
    forward = total(
        "forward",
        "forward pass, layers",
        "s",
        leaf("forward_linear", "linear layers", 1.25),
        leaf("forward_attention", "attention core", 0.25),
        leaf("forward_elementwise", "element-wise", 0.0625),
    )
    backward = total(
        "backward",
        "backward pass, layers",
        "s",
        leaf("backward_linear_dgrad", "linear layers, data gradient", 1.25),
        leaf("backward_attention", "attention core", 0.5),
    )
    time = total(
        "step_time",
        "step",
        "s",
        forward,
        backward,
        leaf("pipeline_bubble", "pipeline bubble", 0.125),
        leaf("stage_imbalance", "stage imbalance (negative: hidden)", -0.03125),
        leaf("dp_gradients", "gradient reduction, exposed", 0.001),
        leaf("optimizer_step", "optimizer step", 0.002),
    )
    memory = total(
        "memory_first",
        "peak memory, first pipeline stage",
        "byte",
        leaf("memory_first_weights", "weights", 20 * GIB, "byte"),
        leaf("memory_first_activations", "activations in flight", 41.25 * GIB, "byte"),
    )
    plan = Plan(tp=2, pp=2, vpp=4, dp=2, sequence_parallel=True, precision="fp8-cs")
    return Prediction(
        model=load_model("llama3-8b"),
        workload=Workload(8192, 128),
        cluster=load_cluster("dgx-h100"),
        plan=plan,
        step_time_s=time.value,
        tokens_per_second_per_gpu=8192 * 128 / time.value / 8,
        model_tflops_per_gpu=500.0,
        mfu=0.25,
        mfu_peak="1979 TFLOP/s dense fp8",
        interval_low=time.value * 0.9,
        interval_high=time.value * 1.1,
        interval_level=0.9,
        peak_memory_bytes=memory.value,
        device_bytes=79.5 * GIB,
        worst_stage="first",
        time=time,
        memory=memory,
        values={},
        sources={},
        assumptions=("gpu, a.b is assumed: no table", "gpu, c.d is assumed: no table", "a note"),
        interval_basis="local 90 % quantile of the errors of 12 nearest of 90 published runs",
        evidence=(published(),),
    )


def test_golden_page():
    violation = Violation("some_rule", "PERF", ("tp",), "tp = 2 costs something", "Try --tp 1.", "tests")
    text = "\n".join(prediction_lines(fixed(), [violation], ["a default"])) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize(("batch", "told"), [(1, ", 1 sequence a step"), (8, ", 8 sequences a step")])
def test_one_sequence_is_not_called_sequences(batch, told):
    found = predict(load_model("tiny-gpt"), Workload(256, batch), load_cluster("dgx-h100"), Plan())
    assert told in setting(found)


def test_numbers_assumed_for_one_reason_share_a_line():
    assert assumption_section(["g, a is assumed: r", "x", "g, b is assumed: r", "h, c is assumed: r"])[
        1:
    ] == [
        "  - g: a, b; h: c assumed: r",
        "  - x",
    ]
    assert assumption_section([]) == []


def test_only_knobs_off_their_default_are_listed():
    assert changed_knobs(Plan()) == {}
    assert knob_table({}) == ["  every knob at its default"]
    assert changed_knobs(Plan(tp=2, dp=4, recompute_modules=("mlp",), recompute="selective")) == {
        "tp": 2,
        "dp": 4,
        "recompute": "selective",
        "recompute_modules": ("mlp",),
    }


def test_cost_doubles_with_the_tokens():
    once, twice = (training_cost(fixed(), tokens) for tokens in (1e12, 2e12))
    assert math.isclose(2 * once["gpu_hours"], twice["gpu_hours"])
    assert math.isclose(2 * once["kwh"], twice["kwh"])
    assert math.isclose(once["hours"] * 8, once["gpu_hours"])


def test_progress_is_silent_when_piped(capsys):
    with Progress() as progress:
        progress(0.5, "plans")
    assert capsys.readouterr().err == ""


def test_progress_takes_its_line_away(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("advisor.progress.PATIENCE", -1.0)
    with Progress() as progress:
        progress(0.5, "plans")
        progress(2.0, "p")
    shown = capsys.readouterr().err
    assert "50%  plans" in shown
    assert "100%  p" in shown
    assert shown.endswith("\r")


def test_cost_and_throughput_count_the_tokens_of_documents_not_their_padding():
    model, cluster = load_model("llama3-8b"), load_cluster("dgx-h100")
    plan = Plan(dp=8, zero_stage=3, fsdp=True)
    full = predict(model, Workload(8192, 256, "sft"), cluster, plan)
    padded = predict(model, Workload(8192, 256, "sft", mean_length=1000, packed=False), cluster, plan)
    assert padded.step_time_s == full.step_time_s
    assert training_cost(padded, 1e9)["steps"] == 1e9 / (256 * 1000)
    ratio = padded.tokens_per_second_per_gpu / full.tokens_per_second_per_gpu
    assert math.isclose(ratio, 1000 / 8192)
    assert math.isclose(padded.mfu / full.mfu, ratio)
    assert "padding (87.8 % of what is computed) not counted" in " ".join(" ".join(numbers(padded)).split())
    assert "tokens, padding not counted" in cost_line(training_cost(padded, 1e9))
    assert "padding" not in " ".join(numbers(full)) + cost_line(training_cost(full, 1e9))


@pytest.mark.parametrize(
    ("stack", "title", "name"),
    [
        (None, "Megatron-Bridge", "model.tensor_model_parallel_size"),
        ("nemo-25.04", "NeMo", "trainer.strategy.tensor_model_parallel_size"),
        ("mcore-26.03", "Megatron-LM", "--tensor-model-parallel-size"),
        ("torchtitan", "torchtitan", "parallelism.tensor_parallel_degree"),
    ],
)
def test_knobs_to_set_have_the_names_of_the_stack(stack, title, name):
    lines = knob_table({"tp": 4, "fp8_param_gather": True}, stack)
    assert f"in {title}" in lines[0]
    assert name in lines[1]
    assert "not on file" not in "".join(lines)


def test_users_of_amd_are_told_arguments_of_megatron_lm():
    """They were told names of Megatron-Bridge, which AMD's GPUs do not train with."""
    lines = knob_table({"tp": 4, "grad_reduce_in_fp32": False, "offload_weights": True}, None, "AMD")
    assert "in Megatron-LM" in lines[0]
    text = " ".join(" ".join(lines).split())
    assert "tp 4 --tensor-model-parallel-size" in text
    assert "off --grad-reduce-in-bf16, leave out --accumulate-allreduce-grads-in-fp32" in text
    assert "offload_weights on no name on file" in text
    assert "Names are Megatron-LM's: AMD's builds of it (Primus, and the fork for ROCm)" in text
    assert "Primus" not in "".join(knob_table({"tp": 4}, "mcore-26.05", "AMD"))


def test_knobs_that_are_variables_have_the_names_of_those():
    assert "NVTE_NORM_FWD_USE_CUDNN" in knob_table({"cudnn_norms": True})[1]


def test_names_of_another_framework_say_so():
    lines = knob_table({"tp": 4, "dp": 2}, "deepspeed")
    assert "in Megatron-Bridge" in lines[0]
    assert lines[-1] == "  Names are Megatron-Bridge's: those of Megatron-DeepSpeed are not on file."


def test_every_stack_names_a_framework_that_the_catalogue_has():
    assert {load_stack(name).names for name in families()} <= {"", *FRAMEWORKS}


def test_a_bound_of_once_the_time_is_told_as_fast_as():
    assert (pace(1), pace(1.5)) == ("as fast as", "up to 1.5 times as slow as")
