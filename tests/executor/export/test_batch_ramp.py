"""A batch that grows: what is trained before the full one, against Megatron-Core's own calculators."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.case_from import read_foreign
from executor.export import megatron_bridge, megatron_lm, nemo
from executor.export.batch_ramp import ramp_line, ramp_of, schedule_of

SIZES = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "


def calculators(folder: Path) -> ModuleType:
    """num_microbatches_calculator.py alone, without torch."""
    path = folder / "megatron" / "core" / "num_microbatches_calculator.py"
    spec = importlib.util.spec_from_file_location("calculators", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed() -> ModuleType:
    found = importlib.util.find_spec("megatron.core")
    if found is None or found.origin is None:
        pytest.skip("Megatron-Core is not installed")
    return calculators(Path(found.origin).parents[2])


def counted(calculator, full: int, samples: int) -> tuple[int, int]:
    """Samples and steps below the full batch, step by step as training takes them."""
    consumed = steps = 0
    while consumed < samples:
        calculator.update(consumed, consistency_check=False)
        if (batch := calculator.get_current_global_batch_size()) == full:
            break
        consumed, steps = consumed + batch, steps + 1
    return consumed, steps


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 30), st.integers(1, 30_000), st.integers(1, 40_000)
)
def test_the_ramp_takes_the_steps_of_megatron_core(start, increment, number, samples, trained):
    full = start + number * increment
    theirs = installed().RampupBatchsizeNumMicroBatchesCalculator(
        full, 1, 1, False, 1, start, increment, samples
    )
    ramp = ramp_of([start, increment, samples], full)
    assert ramp is not None
    assert ramp.before(trained) == counted(theirs, full, trained)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 50)), min_size=1, max_size=6),
    st.integers(1, 40_000),
)
def test_a_schedule_takes_the_steps_of_megatron_core(parser, rises, trained):
    module = calculators(parser.wheel_folder("0.19.2"))
    tokens, batch, entries = 0, 8, ["0:8"]
    for more, larger in rises:
        tokens, batch = tokens + more * 100_000, batch + larger
        entries.append(f"{tokens}:{batch}" if tokens % 1_000_000 else f"{tokens // 1_000_000}M:{batch}")
    text = " ".join(entries)
    theirs = module.StepBatchsizeNumMicroBatchesCalculator(1, 1, False, 1, text, 4096)
    ramp = schedule_of(text, 4096)
    assert ramp is not None
    assert ramp.full == theirs.global_batch_size == batch
    assert ramp.before(trained) == counted(theirs, batch, trained)


def test_the_line_tells_samples_share_and_steps():
    """It was only named as not read."""
    text = SIZES + "--global-batch-size 1024 --rampup-batch-size 32 32 65536 --train-samples 1000000"
    reading = megatron_lm.read(text)
    assert not reading.unread
    assert reading.workload["global_batch"] == 1024
    ramp = ramp_of([32, 32, 65536], 1024)
    samples, steps = ramp.before()
    plain = math.ceil(samples / 1024)
    (line,) = (each for each in reading.otherwise if "--rampup" in each)
    for said in (
        f"{samples:,} samples ({100 * samples / 1e6:.3g} % of 1,000,000)",
        f"in {steps:,} steps of 32 to 992 sequences",
        f"where {plain:,} of the full batch would do, {steps - plain:,} fewer",
        "0.18 on ignores it",
    ):
        assert said in line


def test_a_schedule_says_the_batch():
    """No --global-batch-size may stand beside it, so one micro-batch a rank was read."""
    reading = megatron_lm.read(SIZES + '--step-batch-size-schedule "0:768 25B:1536" --train-iters 10000')
    assert not reading.unread
    assert reading.workload["global_batch"] == 1536
    samples, steps = schedule_of("0:768 25B:1536", 4096).before()
    (line,) = (each for each in reading.otherwise if "schedule" in each)
    assert f"% of {samples + (10_000 - steps) * 1536:,})" in line


def test_a_training_that_ends_in_the_ramp_is_told():
    assert "never reaches" in ramp_line(ramp_of([32, 32, 65536], 1024), 50_000)
    assert "never reaches" not in ramp_line(ramp_of([32, 32, 65536], 1024), 70_000)


def test_bridge_and_nemo_have_the_same_ramp():
    lines = "model.num_layers=32 train.global_batch_size=1024 train.rampup_batch_size=[32,32,65536]"
    bridge = megatron_bridge.read(f"{lines} train.train_samples=1000000")
    assert not bridge.unread
    two = nemo.read("data.global_batch_size=1024 data.rampup_batch_size=[32,32,65536] trainer.max_steps=1000")
    for reading in (bridge, two):
        assert any("steps of 32 to 992 sequences" in line for line in reading.otherwise)
        assert reading.batches == tuple(range(32, 1024, 32))


@pytest.mark.parametrize("more", ["", " --decrease-batch-size-if-needed"])
def test_batches_that_ranks_cannot_share_are_told(more):
    text = SIZES + "--global-batch-size 1024 --rampup-batch-size 32 32 65536" + more
    case = read_foreign("megatron-lm", text, {"gpu": "h100", "gpus": 64, "model": "llama3-8b"})
    told = [
        note
        for note in case.notes
        if "no multiple of micro_batch x dp = 64, where Megatron-LM stops: 32, 96, 160 and 13 more" in note
    ]
    assert len(told) == (not more)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--global-batch-size 1024 --rampup-batch-size 32 32", "START INCREMENT SAMPLES"),
        ("--global-batch-size 1024 --rampup-batch-size 32 7 100", "whole number of positive INCREMENTs"),
        ("--global-batch-size 32 --rampup-batch-size 32 32 100", "from START below it"),
        ("--global-batch-size 64 --rampup-batch-size 32 32 0", "and SAMPLES"),
        ("--global-batch-size 32 --step-batch-size-schedule 0:8", "refuses the two together"),
        ('--step-batch-size-schedule "5M:8 10B:16"', "the first from 0 on"),
        ("--step-batch-size-schedule nonsense", "is no schedule"),
    ],
)
def test_what_megatron_refuses_is_one_line(arguments, said):
    with pytest.raises(ValueError, match=said) as raised:
        megatron_lm.read(SIZES + arguments)
    assert "\n" not in str(raised.value)
