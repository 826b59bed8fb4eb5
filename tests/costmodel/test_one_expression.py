"""However a cost is evaluated it is one number: tree, search, columns, sympy, other units, alone or in an array."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from family_cases import unjudged
from hypothesis import given
from hypothesis import strategies as st
from law_cases import B200, GENTLE, LLAMA, plans

from costmodel.columns import plan_columns, plan_from_columns
from costmodel.family import compiled_family
from costmodel.formulas import DENSE
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.predict import predict
from costmodel.symbols import BY_NAME
from costmodel.workload import Workload


@GENTLE
@given(plans())
def test_parts_sum_to_the_total(case):
    plan, workload = case
    prediction = predict(LLAMA, workload, B200, plan)
    for tree in (prediction.time, prediction.memory):
        for term in _walk(tree):
            if term.parts:
                assert sum(part.value for part in term.parts) == pytest.approx(term.value, rel=1e-9)


@GENTLE
@given(plans())
def test_search_and_explanation_give_the_same_number(case):
    plan, workload = case
    prediction = unjudged(LLAMA, workload, B200, plan)
    row = evaluate_plans(PlanArray(LLAMA, workload, B200, plan.precision, plan_columns([plan, plan])))
    assert row["step_time"][1] == pytest.approx(prediction.step_time_s, rel=1e-12)
    assert row["peak_memory"][0] == pytest.approx(prediction.peak_memory_bytes, rel=1e-12)


@GENTLE
@given(plans())
def test_columns_give_the_plan_back(case):
    plan, _ = case
    columns = plan_columns([plan])
    assert plan_from_columns(columns, 0, plan.precision) == plan


@cache
def symbolic(name):
    """An entry of a dense model as sympy reads it."""
    import sympy

    words = {
        symbol: sympy.Symbol(symbol, nonnegative=True)
        for symbol in (*BY_NAME, *compiled_family(DENSE).entries)
    }
    return sympy.sympify(compiled_family(DENSE).expressions()[name], locals=words)


@GENTLE
@given(plans())
def test_compiled_numbers_equal_the_symbolic_expression(case):
    """The NumPy text and sympy's own evaluation of the same entry agree."""
    import sympy

    plan, workload = case
    prediction = unjudged(LLAMA, workload, B200, plan)
    for name in (
        "attention_activation_bytes",
        "mlp_activation_bytes",
        "mlp_tp_exposed_backward",
        "pipeline_bubble",
        "forward_attention",
        "memory_first_weights",
    ):
        expression = symbolic(name)
        # All at once: `subs` puts one number after another into the whole expression.
        numbers = {each: sympy.Float(prediction.values[each.name]) for each in expression.free_symbols}
        assert float(expression.xreplace(numbers)) == pytest.approx(
            prediction.values[name], rel=1e-9, abs=1e-18
        )


@GENTLE
@given(plans(), st.floats(1.5, 8.0))
def test_homogeneity(case, factor):
    """All rates times k and all latencies over k give the step time over k."""
    from costmodel.binding import bind
    from costmodel.plan_inputs import plan_inputs
    from costmodel.symbols import BY_NAME

    plan, workload = case
    bound = {name: entry.value for name, entry in bind(LLAMA, workload, B200, plan.precision).items()}
    inputs = plan_inputs(
        plan_columns([plan]),
        model=LLAMA,
        workload=workload,
        domain=B200.domain_size,
        precision_bytes=2.0,
        quantised=False,
    )
    quick = dict(bound)
    for name in bound:
        unit = BY_NAME[name].unit if name in BY_NAME else "1"
        if unit in ("FLOP/s", "byte/s"):
            quick[name] = bound[name] * factor
        elif unit == "s":
            quick[name] = bound[name] / factor
    slow, fast = (
        float(compiled_family(DENSE).search(scalars | inputs)["step_time"]) for scalars in (bound, quick)
    )
    assert fast == pytest.approx(slow / factor, rel=1e-9)


def test_every_plan_of_an_array_is_evaluated_alone():
    workload = Workload(8192, 128)
    some = [
        Plan(tp=tp, pp=pp, dp=64 // tp // pp, sequence_parallel=tp > 1)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8)
    ]
    together = evaluate_plans(PlanArray(LLAMA, workload, B200, "bf16", plan_columns(some)))["step_time"]
    alone = [
        evaluate_plans(PlanArray(LLAMA, workload, B200, "bf16", plan_columns([plan])))["step_time"][0]
        for plan in some
    ]
    assert np.array_equal(together, np.array(alone))


def _walk(term):
    yield term
    for part in term.parts:
        yield from _walk(part)
