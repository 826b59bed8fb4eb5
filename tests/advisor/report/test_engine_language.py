"""JavaScript that is made of Python, run in a real browser beside Python on small cases."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.rules.message_words import divisors, near, up
from costmodel.javascript import PRELUDE, expression_javascript
from costmodel.javascript.columns import Trace, literal
from costmodel.javascript.functions import RUNTIME, expression, translate
from costmodel.placement import used_domain
from costmodel.simulate import pipeline_makespan

x, y = sympy.symbols("x y")
EXPRESSIONS = (
    x + 2 * y - 3,
    x / (y + 10),
    -(x**2) + (x + y) ** 3,
    (x + 20) ** sympy.Rational(1, 3) * sympy.sqrt(y + 30),
    2 ** (x / 8),
    1 / (x + 11) ** 2,
    sympy.Max(x, y, 1) - sympy.Min(x, y, 2.5),
    sympy.ceiling(x / 3) + sympy.floor(y / 3),
    sympy.Mod(x, 3) + sympy.Mod(y, -4),
    sympy.log(x + 12) + sympy.exp(y / 10) + sympy.Abs(x - y),
    sympy.Piecewise((x, x > y), (y - 1, sympy.And(x < 0, y >= 0)), (7, sympy.Eq(x, y)), (x * y, True)),
    sympy.Piecewise((1, sympy.Or(sympy.Ne(x, 0), sympy.Not(y > 1))), (0, True)) * 5,
    sympy.Rational(1, 128) * x + sympy.Float(0.03) * y,
    sympy.Integer(-3) * x ** sympy.Integer(2),
)
POINTS = [(a, b) for a in (-9, -2.5, 0, 1, 3, 8) for b in (-7, 0, 0.5, 3, 8)]
FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def run(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a piece of JavaScript returns, on an empty page."""
    page = tmp_path_factory.mktemp("empty") / "empty.html"
    page.write_text("<!doctype html><meta charset=utf-8><link rel=icon href=data:,>")
    browser.open(page)
    return browser.run


def test_printed_expressions_mean_what_sympy_means(run: Any) -> None:
    functions = ",".join(f"(x, y) => {expression_javascript(expr)}" for expr in EXPRESSIONS)
    script = f"{PRELUDE} return [{functions}].map((f) => arguments[0].map(([x, y]) => f(x, y)));"
    for expr, found in zip(EXPRESSIONS, run(script, POINTS), strict=True):
        expected = [float(expr.subs({x: sympy.Rational(a), y: sympy.Rational(b)})) for a, b in POINTS]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12), expr


def columns_of(c: dict[str, Any]) -> dict[str, Any]:
    """A function of columns with all that such functions use."""
    a, b, flag = c["a"], c["b"], c["flag"] != 0
    kind = np.choose(c["kind"].astype(int), [4.0, 2.0, 1.0])
    return {
        "sum": a + b * 2 - 1 / (abs(b) + 1),
        "whole": a // 3 + b % 3 + (-a) % 4,
        "ends": np.maximum(a, 2) * np.minimum(b, a) + np.ceil(a / 4) + np.floor(b / 4),
        "power": (abs(a) + 1) ** 0.5 + np.sqrt(abs(b)),
        "where": np.where((a > b) & ~flag | (a == 3), a, np.where(b >= 1, b, 0.5)),
        "truth": (a != b) | flag,
        "both": np.logical_and(a > 0, np.logical_or(b < 1, np.logical_not(flag))),
        "number": ((a > 1) ^ flag) * 3.0,
        "compared": ((a > b) == 0) & (flag != 1) | ((b > 0) == flag),
        "kind": kind * a,
        "fixed": np.where(np.bool_(True), 3.5, a),
    }


def test_functions_of_columns_are_written_down_as_they_compute(run: Any) -> None:
    rows = [
        {"a": a, "b": b, "flag": flag, "kind": kind}
        for a in (-4.0, 0.0, 1.0, 3.0, 9.5)
        for b in (-3.0, 0.0, 1.0, 3.0)
        for flag in (0.0, 1.0)
        for kind in (0.0, 2.0)
    ]
    trace = Trace()
    noted = columns_of({name: trace.input(f"c.{name}") for name in rows[0]})
    results = ",".join(f"{json.dumps(name)}:{literal(value)}" for name, value in noted.items())
    script = f"{RUNTIME} return arguments[0].map((c) => {{ {trace.lines(noted)} return {{{results}}} }});"
    for row, found in zip(rows, run(script, rows), strict=True):
        expected = columns_of({name: np.float64(value) for name, value in row.items()})
        assert found == {name: pytest.approx(float(value), rel=1e-14) for name, value in expected.items()}, (
            row
        )


TEXTS = {
    "near(heads, tp)": (near(96, 36),),
    "up(heads, 36)": (up(96, 36),),
    "heads * 2 if heads and tp % 1 == 0 else 0": (192,),
    "'a' + str(tp) + ' b' if tp else ''": ("a36 b",),
    "0 or heads // 5": (19,),
    "-heads // 5": (-20,),
    "1 < tp <= 36 and not heads == 3": (True,),
    "[d for d in (1, 2, 3) if heads % d == 0 and d != 2][-1]": (3,),
    "min((5, 3, 4), key=lambda d: (abs(d - 4), d))": (4,),
    "max(3, *[heads, tp])": (96,),
    "', '.join(map(str, (1, 2, 3)[:2]))": ("1, 2",),
    "sum(a * b for a, b in zip((1, 2), (3, 4)))": (11,),
}


def test_expressions_of_texts_mean_what_python_means(run: Any) -> None:
    for source, (expected,) in TEXTS.items():
        words = {"heads": 96, "tp": 36}
        assert eval(source, {"near": near, "up": up, **words}) == expected, source
        text = expression(source, lambda name: name)
        found = run(f"{RUNTIME}{translate((divisors, near, up))} const heads = 96, tp = 36; return {text};")
        assert found == expected, source


def test_numbers_in_texts_look_as_in_python(run: Any) -> None:
    numbers = [
        0.5,
        1 / 3,
        1e-5,
        123456.5,
        1234567.5,
        2.5e9 + 0.5,
        100.25,
        -0.125,
        16384.25,
        16384.75,
        3e-4,
        0.1 + 0.2,
    ]
    assert run(f"{RUNTIME} return arguments[0].map(general);", numbers) == [f"{n:g}" for n in numbers]
    assert run(f"{RUNTIME} return arguments[0].map(general);", [1048576, 65536]) == ["1.04858e+06", "65536"]
    assert run(f"{RUNTIME} return arguments[0].map(plain);", numbers) == [str(n) for n in numbers]
    halves = [0.5, 1.5, 2.5, 3.5, 97.49999, 97.5, 98.5]
    assert run(f"{RUNTIME} return arguments[0].map(round);", halves) == [round(n) for n in halves]


@FEW
@given(
    data=st.data(),
    pp=st.integers(1, 6),
    vpp=st.integers(1, 3),
    num_microbatches=st.integers(1, 70),
    overlap=st.booleans(),
)
def test_the_translated_simulator_is_the_simulator(
    run: Any, data: st.DataObject, pp: int, vpp: int, num_microbatches: int, overlap: bool
) -> None:
    times = st.lists(st.lists(st.floats(0.1, 3), min_size=vpp, max_size=vpp), min_size=pp, max_size=pp)
    forward, backward = data.draw(times), data.draw(times)
    script = f"{RUNTIME}{translate((pipeline_makespan,), ('_check',))} const _check = () => {{}};"
    arguments = [forward, backward, num_microbatches, 0.05, overlap]
    call = "try { return pipeline_makespan(...arguments[0]) } catch (error) { return error.message }"
    found = run(f"{script} {call}", arguments)
    expected: float | str
    try:
        expected = pipeline_makespan(*arguments)
    except ValueError as refused:  # a short last round that waits for itself
        expected = str(refused)
    assert found == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected)


def test_the_translated_domain_is_the_domain(run: Any) -> None:
    cases = [[d, w, s] for d in (1, 8, 64, 72) for w in (1, 8, 72, 100, 1024) for s in (0, 16, 80)]
    script = f"{RUNTIME}{translate((used_domain,))} return arguments[0].map((each) => used_domain(...each));"
    assert run(script, cases) == [used_domain(*each) for each in cases]
