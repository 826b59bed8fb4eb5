"""What more memory would buy: where memory binds the leaner optimizers are told, and what is told to type gives it."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest

from advisor import more_memory
from advisor.explain import explain
from advisor.explain_text import explanation_lines
from advisor.more_memory import WORTH_TELLING, what_memory_buys
from advisor.options import value_text
from advisor.render import seconds
from advisor.request import Request, make_request, parse_pins
from advisor.search import search
from advisor.search.scored import Scored
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.prediction import TIGHT_ABOVE

LEAN = {"precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


def ask(model: str, gpus: int, gpu: str = "h100", **more) -> Request:
    return make_request(model, gpus, gpu, **more)


LARGE = ("nemotron4-340b", 80)


@pytest.fixture(scope="module")
def large():
    return explain(ask(*LARGE))


def test_where_memory_binds_leaner_optimizers_are_told(large):
    """340B on 80 H100: the quickest plan that fits waits for its shards."""
    assert large.memory.unbound < large.best.step_time / 2
    told = {frozenset(each.pins.items()): each for each in large.memory.bought}
    assert told[frozenset(LEAN.items())].numerics
    assert not told[frozenset({"precision_aware_optimizer": True}.items())].numerics
    assert any("optimizer_offload" in each.pins for each in large.memory.bought)
    steps = [each.candidate.step_time for each in large.memory.bought]
    assert steps == sorted(steps)
    assert max(steps) <= (1 - WORTH_TELLING) * large.best.step_time
    assert all(each.candidate.prediction.fits for each in large.memory.bought)


def test_what_is_told_to_type_gives_it(large):
    for each in large.memory.bought:
        words = shlex.split(each.to_take)
        pins = parse_pins([word for word in words if word != "--pin"])
        found = search(ask(*LARGE, pins=[f"{name}={value_text(value)}" for name, value in pins.items()])).best
        # The whole search may find another layout that its simulated pipeline makes quicker.
        assert 0.97 * each.candidate.step_time <= found.step_time <= each.candidate.step_time * (1 + 1e-9)


@pytest.fixture(scope="module")
def tight_one():
    return explain(ask("gpt3-175b", 40, "a100"))


def test_a_quicker_plan_that_fits_too_tightly_to_be_ranked_is_told(tight_one):
    """175B on 40 A100: an eighth quicker in more than 94 % of the memory; typed so, nothing else is left."""
    tight = tight_one.memory.tight
    assert tight.candidate.prediction.fits
    assert tight.candidate.prediction.tight
    assert tight.candidate.step_time <= (1 - WORTH_TELLING) * tight_one.best.step_time
    pins = [f"{name}={value_text(value)}" for name, value in tight.pins.items()]
    assert search(ask("gpt3-175b", 40, "a100", pins=pins)).best.plan == tight.candidate.plan
    again = explain(ask("gpt3-175b", 40, "a100", pins=pins)).memory
    assert again is None or again.tight is None  # then it is the plan


def test_the_section_and_the_record_say_the_same(tight_one):
    text = re.sub(r"\s+", " ", "\n".join(explanation_lines(tight_one)))
    record = tight_one.to_dict()["more_memory"]
    assert f"the quickest would take {record['unbound_step_time_s']:.4g} s a step" in text
    for each in [record["tight"], *record["bought"]]:
        assert f"{seconds(each['step_time_s'])} a step ({100 * each['delta_share']:+.0f} %" in text
        assert each["to_take"] in text
    for each in record["bought"]:
        assert each["changes_numerics"] == ("exp_avg_dtype" in each["to_take"])


def test_nothing_is_tried_where_memory_does_not_bind(monkeypatch):
    monkeypatch.setattr(more_memory, "evaluate_plans", None)
    found = explain(ask("70b", 64, "b300"))
    assert found.memory is None
    assert "more memory would buy" not in "\n".join(explanation_lines(found))


def test_what_was_asked_for_is_not_offered():
    pinned = explain(ask(*LARGE, pins=["precision_aware_optimizer=on"]))
    assert all(dict(each.pins) != {"precision_aware_optimizer": True} for each in pinned.memory.bought)
    full = explain(ask(*LARGE, pins=[f"{name}={value_text(value)}" for name, value in LEAN.items()]))
    assert full.memory is None or not full.memory.bought
    off = explain(ask(*LARGE, pins=["precision_aware_optimizer=off"]))
    assert off.memory is None or not off.memory.bought
    assert explain(ask(*LARGE, objective="memory")).memory is None


def test_a_release_without_the_optimizer_is_not_told_to_take_it():
    """Megatron-Core 0.11 brought use_precision_aware_optimizer, after mcore-24.07; mcore-25.04 has it."""
    assert explain(ask("405b", 96, stack="mcore-24.07", precision="bf16")).memory is None
    assert explain(ask("405b", 96, stack="mcore-25.04", precision="bf16")).memory is not None


@pytest.mark.parametrize("model", ["llama3-70b", "qwen3-30b-a3b"])
def test_the_closed_form_of_all_choices_is_that_of_each_alone(model):
    kept: list[Scored] = []
    request = ask(model, 16 if model == "llama3-70b" else 2)
    search(request, None, kept.extend)
    bar = float(np.median(np.concatenate([part.step_time for part in kept])))
    sizes = [{"precision_aware_optimizer": True}, LEAN]
    found = more_memory._quickest(request, kept, sizes, bar)
    for (time, *_), pins in zip(found, sizes, strict=True):
        alone = [_fastest_alone(request, part, pins, bar) for part in kept]
        assert time == pytest.approx(min(alone), rel=1e-9)


def _fastest_alone(request: Request, part: Scored, pins, bar: float) -> float:
    rows = np.flatnonzero(part.step_time < bar)
    if not rows.size:
        return np.inf
    columns = part.space.some(rows)
    columns |= {
        name: np.full(rows.size, float(value is True or value == "bf16")) for name, value in pins.items()
    }
    plans = PlanArray(
        request.model, request.workload, request.cluster, part.space.precision, columns, request.stack
    )
    out = evaluate_plans(plans)
    return float(np.where(out["peak_memory"] <= TIGHT_ABOVE * part.device, out["step_time"], np.inf).min())


def test_several_blocks_of_layouts_give_what_one_gives(monkeypatch):
    kept: list[Scored] = []
    request = ask("llama3-70b", 16)
    best = search(request, None, kept.extend).best
    whole = what_memory_buys(request, kept, best)
    assert whole is not None
    monkeypatch.setattr(more_memory, "CELLS", 3000)
    blocks = what_memory_buys(request, kept, best)
    assert blocks.to_dict() == whole.to_dict()


@pytest.fixture(scope="module")
def only_tight():
    return explain(ask("llama3-70b", 8, "h200", task="sft"))


def test_where_every_plan_is_tight_those_are_told_that_leave_room(only_tight):
    """SFT of 70B on 8 H200 fits at 96 % alone: slower plans with room, and no other numerics, were not told."""
    assert only_tight.best.prediction.tight
    memory = only_tight.memory
    assert memory.filled == pytest.approx(
        only_tight.best.peak_memory / only_tight.best.prediction.device_bytes
    )
    assert all(not each.candidate.prediction.tight for each in memory.bought)
    slower = [each for each in memory.bought if each.candidate.step_time > only_tight.best.step_time]
    assert any(not each.numerics for each in slower)
    text = re.sub(r"\s+", " ", "\n".join(explanation_lines(only_tight)))
    assert "Every plan that fits takes more than 94 % of the device, this one 96 %" in text
    assert "which are not searched, leave room to spare:" in text
    assert only_tight.to_dict()["more_memory"]["filled"] == memory.filled


def test_a_roomier_plan_is_found_by_what_is_told_to_type(only_tight):
    for each in only_tight.memory.bought:
        pins = [f"{name}={value_text(value)}" for name, value in each.pins.items()]
        found = search(ask("llama3-70b", 8, "h200", task="sft", pins=pins)).best
        assert not found.prediction.tight
        assert found.step_time <= each.candidate.step_time * (1 + 1e-9)
