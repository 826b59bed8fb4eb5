"""The grid of plans: the same plans, numbers and costs as row by row."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.request import make_request
from advisor.space import build_space
from advisor.space.grid import OPTIONS
from costmodel.columns import plan_columns, plan_from_columns
from costmodel.plan_array import PlanArray, evaluate_plans

CASES = [("tiny-gpt", 4, "h100"), ("llama3-8b", 16, "h100"), ("qwen3-30b-a3b", 8, "h100")]
# Fine-tuning that is padded to the longest of a batch where nothing asks for the whole length.
PADDED = {"task": "sft", "load": {"mean_length": 1000, "length_cv": 0.3, "packed": False}}
REQUESTS = [make_request(*case) for case in CASES] + [make_request("llama3-8b", 8, "h100", **PADDED)]


@pytest.fixture(params=REQUESTS, ids=[*(case[0] for case in CASES), "padded"])
def built(request):
    asked = request.param
    return asked, build_space(asked, asked.precisions[-1])


def test_the_grid_costs_what_its_plans_cost_one_by_one(built):
    request, space = built
    case = (request.model, request.workload, request.cluster, space.precision)
    rows = np.random.default_rng(0).choice(space.legal, 50, replace=False)
    plans = [plan_from_columns(space.columns, row, space.precision) for row in rows]
    apart = evaluate_plans(PlanArray(*case, plan_columns(plans), request.stack))
    for name, values in evaluate_plans(PlanArray(*case, space.grid, request.stack)).items():
        assert space.of_plans(values)[rows] == pytest.approx(apart[name], rel=1e-9), name


def test_a_column_of_some_plans_is_part_of_the_column(built):
    _, space = built
    rows = np.random.default_rng(1).choice(space.legal, 50, replace=False)
    for name in space.grid:
        assert np.array_equal(space.column(name, rows), space.column(name)[rows]), name


def test_plans_are_numbered_layout_by_layout(built):
    _, space = built
    layouts = space.cells // space.options
    assert np.all(np.diff(space.cells) > 0)
    assert set(layouts) == set(range(space.alive.shape[-1])), "every layout has some plan"
    assert np.array_equal(space.layout("tp")[layouts], space.column("tp"))


def test_options_multiply_no_layouts(built):
    _, space = built
    searched = {"cuda_graph", "recompute"} | ({"overlap_moe_comm"} if built[0].model.moe else set())
    assert searched <= OPTIONS
    for name in searched:
        assert space.grid[name].shape[-1] == 1, name
