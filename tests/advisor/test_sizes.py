"""Ways out of sizes that do not divide the GPUs: each, when taken, divides them and breaks no rule of the model."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from advisor.case import read_case
from advisor.case_from import read_foreign
from advisor.options import split_pairs
from advisor.request import make_request, parse_pins
from advisor.sizes import SizesError, kinder_batch, most_ranks

WAYS = re.compile(r" Try (.*)\.$")
OPTION = re.compile(r"--(\S+) (\S+)")


def ways(text: str) -> list[str]:
    (told,) = WAYS.findall(text)
    return told.split(", or ")


def changed(way: str) -> dict[str, Any]:
    """Sizes by name of a way such as `--tp 2 --pp 1` or `--pin tp=2`."""
    found: dict[str, Any] = {}
    for option, value in OPTION.findall(way):
        found |= parse_pins([value]) if option == "pin" else {option.replace("-", "_"): int(value)}
    return found


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "8b", "gpus": 8, "tp": 3}, ["--tp 2"]),  # --gpus 9 left 32 heads on 3 ranks
        ({"model": "8b", "gpus": 8, "set_pairs": ("tensor_model_parallel_size=3",)}, ["--tp 2"]),
        ({"model": "70b", "gpus": 96, "tp": 8, "pp": 8}, ["--gpus 128", "--tp 4", "--pp 4"]),
        # --pp 16 twice, alone and of all sizes at once
        ({"model": "405b", "gpus": 1024, "tp": 8, "pp": 14, "vpp": 5}, ["--gpus 1008", "--pp 16"]),
        ({"model": "70b", "gpus": 7, "tp": 3, "pp": 2}, ["--tp 1 --pp 1"]),  # no size alone does
        # 104 GPUs leave 13 ranks for 100 sequences, tp 5 does not divide the heads
        ({"model": "8b", "gpus": 100, "tp": 8, "global_batch": 100}, ["--gpus 80", "--tp 4"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_ways_of_a_plan_divide_the_gpus_and_the_model(options, told):
    with pytest.raises(ValueError, match="does not fit") as refusal:
        read_case(None, options | {"gpu": "h100"})
    assert not isinstance(refusal.value, SizesError)  # told with its ways
    assert ways(str(refusal.value)) == told


def test_a_configuration_is_told_ways_that_hold_too():
    text = "--tensor-model-parallel-size 3 --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    with pytest.raises(ValueError, match="does not fit tp=3") as refusal:
        read_foreign("megatron-lm", text, {"gpus": 8, "gpu": "h100", "model": "8b"})
    assert ways(str(refusal.value)) == ["--tp 2"]


@pytest.mark.parametrize(
    ("gpus", "pins", "told"),
    [
        (2, "tp=3", ["--pin tp=2"]),  # --gpus 3 was told of 32 heads
        (16, "dp=3,tp=5", ["--pin tp=4 --pin dp=4"]),
        (100, "tp=8,pp=3", ["--gpus 96", "--pin tp=4 --pin pp=5"]),
    ],
)
def test_ways_of_a_request_divide_the_gpus_and_the_model(gpus, pins, told):
    with pytest.raises(ValueError, match="does not fit") as refusal:
        make_request("8b", gpus, "h100", pins=split_pairs(pins))
    assert ways(str(refusal.value)) == told


def ways_of(options: dict[str, Any]) -> list[str]:
    """Ways out of sizes that do not divide the GPUs; none where they do."""
    try:
        read_case(None, options)
    except ValueError as error:
        return ways(str(error))
    return []


def test_ways_of_many_sizes_hold():
    draw, taken = random.Random(5), 0
    for _ in range(60):
        options = {"model": draw.choice(("8b", "70b", "llama2-13b", "gpt3-175b")), "gpu": "h100"}
        options |= {name: draw.choice((1, 2, 3, 4, 5, 6, 8, 16)) for name in ("tp", "pp")}
        options |= {"cp": draw.choice((1, 1, 2, 3)), "gpus": draw.choice((1, 6, 8, 24, 64, 100, 1000))}
        for way in ways_of(options):
            case = read_case(None, options | changed(way))
            errors = [each.id for each in case.violations() if each.severity == "ERROR"]
            assert not errors, f"{way} of {options}"
            taken += 1
    assert taken > 60


@pytest.mark.parametrize(
    ("batch", "gpus", "other"), [(97, 64, 96), (100, 64, 96), (128, 64, None), (128, 256, None), (1, 8, None)]
)
def test_a_batch_nearby_that_more_ranks_divide(batch, gpus, other):
    assert kinder_batch(batch, gpus) == other
    if other:
        assert most_ranks(other, gpus) >= 2 * most_ranks(batch, gpus)
