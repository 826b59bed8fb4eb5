"""JavaScript of the cost model, as text: what it refuses, what it shares. It is run in tests/advisor/report."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import sympy

from costmodel.family import compiled_family
from costmodel.formulas import DENSE
from costmodel.javascript import family_javascript, ledger_javascript, script_json
from costmodel.javascript import functions as javascript_functions
from costmodel.javascript.columns import Trace, is_traced, literal
from costmodel.javascript.functions import expression, translate
from costmodel.term import Ledger


def test_every_entry_of_the_ledger_is_printed():
    source = family_javascript(DENSE).source
    returned = re.search(r"return \{([^}]*)\};\n\}$", source)
    assert returned is not None
    assert returned[1].split(", ") == list(compiled_family(DENSE).entries)


def test_what_stands_twice_is_computed_once():
    ledger = Ledger()
    tp, dp = sympy.symbols("tp dp")
    shared = sympy.ceiling(tp / dp)
    ledger.define("one", shared + 1, "1", "a test")
    ledger.define("two", shared * 2 + tp, "1", "a test")
    source = ledger_javascript(ledger)
    assert source.count("ceiling(") == 1
    assert "const {dp, tp} = v;" in source


def test_a_word_of_the_language_is_no_name():
    ledger = Ledger()
    ledger.define("new", sympy.Symbol("tp") + 1, "1", "a test")
    with pytest.raises(AssertionError, match="new is a word of JavaScript"):
        ledger_javascript(ledger)


def test_json_in_a_script_cannot_end_it():
    text = script_json({"name": "</script><!--&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!--&"}


def test_a_function_that_branches_on_a_column_is_refused():
    column = Trace().input("c.tp")
    with pytest.raises(TypeError, match="which only the page knows"):
        max(column, 1)
    with pytest.raises(AssertionError, match="a sum of truths"):
        (column > 1) + (column > 2)
    with pytest.raises(AssertionError, match="of numbers"):
        np.invert(column)
    with pytest.raises(AssertionError, match="of a traced column"):
        np.broadcast_arrays(column, column)


def test_what_no_column_changes_stays_a_number():
    trace = Trace()
    column = trace.input("c.tp")
    assert literal(np.where(np.bool_(False), column, np.float64(2.0))) == "2"
    assert not is_traced(np.maximum(np.float64(1.0), 2.0))
    assert literal(np.float64(-0.5)) == "(-0.5)"
    assert literal(np.array("a </b>")) == '"a \\u003c/b>"'


def test_lines_that_nothing_needs_are_left_out():
    trace = Trace()
    column = trace.input("c.tp")
    kept, unused = column * 2, column * 3
    again = column * 2
    assert trace.lines({"kept": kept}) == "const t0=(c.tp*2);\n"
    assert literal(again) == literal(kept) != literal(unused)


def opens_a_file(name: str) -> str:
    with open(name) as file:
        return file.read()


def shadows(number: int) -> int:
    text = number + 1
    return text * 2


@pytest.mark.parametrize("function", [opens_a_file])
def test_what_cannot_be_translated_is_refused_by_name(function):
    with pytest.raises(NotImplementedError, match="cannot be translated"):
        translate((function,))


def test_names_of_the_runtime_are_not_taken():
    assert "text_ = (number + 1);" in translate((shadows,))


def test_functions_bring_those_that_they_call():
    source = translate((javascript_functions_user,))
    assert source.count("function shadows(") == 1


def javascript_functions_user(number: int) -> int:
    return shadows(number) + shadows(number)


def test_an_unknown_piece_of_an_expression_is_refused():
    with pytest.raises(NotImplementedError):
        expression("(yield 3)", lambda name: name)
    assert javascript_functions.is_division("a / b")
    assert not javascript_functions.is_division("a // b")
