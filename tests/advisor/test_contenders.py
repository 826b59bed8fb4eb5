"""Contenders: the same numbers as a whole prediction, a bound that holds, and an answer that does not hang on it."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.request import make_request
from advisor.search import search
from advisor.search.candidates import candidate, objective_value
from advisor.search.contenders import Contender, Contenders
from advisor.space import build_space

OBJECTIVES = ("throughput", "cost", "memory")
PADDED = {"mean_length": 1000, "length_cv": 0.3, "packed": False}


@pytest.mark.parametrize(
    ("model", "gpus", "gpu", "padded"),
    [
        ("llama3-8b", 8, "h100", False),
        ("llama3-8b", 8, "h100", True),
        ("llama3-70b", 64, "b200", False),
        ("qwen3-30b-a3b", 16, "h100", False),
        ("nemotronh-8b", 8, "h100", False),
    ],
)
def test_a_contender_is_worth_what_its_prediction_says_and_never_less_than_its_bound(
    model, gpus, gpu, padded
):
    asked = {"task": "sft", "load": PADDED} if padded else {}
    request = make_request(model, gpus, gpu, **asked)
    space = build_space(request, request.precisions[-1])
    rows = np.random.default_rng(0).choice(space.legal, 8, replace=False)
    contenders = Contenders(request, [space], np.zeros(8, dtype=int), rows, range(8))
    for number in range(8):
        contender = contenders[number]
        predicted = candidate(request, contender.plan)
        for objective in OBJECTIVES:
            value = contender.value(objective)
            assert value == pytest.approx(objective_value(objective, predicted), rel=1e-12)
            assert contender.least(objective) <= value


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_is_left_out_unsimulated_would_not_have_been_told(objective, monkeypatch):
    request = make_request("llama3-70b", 32, "h100", objective=objective)
    answer = search(request).plans
    replayed = []
    least, value = Contender.least, Contender.value
    monkeypatch.setattr(Contender, "value", lambda self, of: replayed.append(self) or value(self, of))
    search(request)
    few = len(replayed)
    monkeypatch.setattr(Contender, "least", lambda self, of: 1e-9 * least(self, of))
    assert [each.plan for each in search(request).plans] == [each.plan for each in answer]
    assert few < len(replayed) - few, "the bound spares replays"
