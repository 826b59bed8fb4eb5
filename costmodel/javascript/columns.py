"""NumPy functions over columns of plans, written down as JavaScript by running them.

A `Traced` stands for a column of one row. The real functions (`costmodel.plan_inputs`, the rules' words and conditions)
are called with it, and every operation they do is noted as a line of JavaScript; what depends on no traced column
stays the number that NumPy computed. A function that branches on a traced value cannot be noted and says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

# NumPy function -> text of JavaScript, and whether its result is a truth.
OPERATIONS: dict[Any, tuple[str, bool]] = {
    np.add: ("({}+{})", False),
    np.subtract: ("({}-{})", False),
    np.multiply: ("({}*{})", False),
    np.true_divide: ("({}/{})", False),
    np.floor_divide: ("Math.floor({}/{})", False),
    np.remainder: ("mod({},{})", False),
    np.power: ("Math.pow({},{})", False),
    np.negative: ("(-{})", False),
    np.absolute: ("Math.abs({})", False),
    np.ceil: ("Math.ceil({})", False),
    np.floor: ("Math.floor({})", False),
    np.sqrt: ("Math.sqrt({})", False),
    np.maximum: ("Math.max({},{})", False),
    np.minimum: ("Math.min({},{})", False),
    np.less: ("({}<{})", True),
    np.less_equal: ("({}<={})", True),
    np.greater: ("({}>{})", True),
    np.greater_equal: ("({}>={})", True),
    # Loosely: NumPy's False is 0, JavaScript's only to ==.
    np.equal: ("({}=={})", True),
    np.not_equal: ("({}!={})", True),
    np.bitwise_and: ("({}&&{})", True),
    np.bitwise_or: ("({}||{})", True),
    np.bitwise_xor: ("({}!=={})", True),
    np.logical_and: ("(!!{}&&!!{})", True),
    np.logical_or: ("(!!{}||!!{})", True),
    np.logical_not: ("(!{})", True),
    np.invert: ("(!{})", True),
}
TRUTHS_ONLY = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert)


class Trace:
    """The lines that were noted: a name for each distinct operation, in order."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.uses: dict[str, tuple[str, ...]] = {}

    def input(self, text: str, truth: bool = False) -> Traced:
        """A value that the page has under `text`, such as c.tp."""
        return Traced(self, text, truth)

    def note(self, form: str, truth: bool, *values: Any) -> Traced:
        """The result of one operation."""
        texts = [literal(value) for value in values]
        line = form.format(*texts)
        if line not in self.names:
            self.names[line] = f"t{len(self.names)}"
            self.uses[self.names[line]] = tuple(text for text in texts if text in self.uses)
        return Traced(self, self.names[line], truth)

    def lines(self, results: Mapping[str, Any]) -> str:
        """Declarations that the results need, in order."""
        needed: set[str] = set()
        waiting = [literal(value) for value in results.values()]
        while waiting:
            name = waiting.pop()
            if name in self.uses and name not in needed:
                needed.add(name)
                waiting.extend(self.uses[name])
        found = [f"{name}={line}" for line, name in self.names.items() if name in needed]
        return "const " + ",\n".join(found) + ";\n" if found else ""


class Traced(NDArrayOperatorsMixin):
    """A value known on the page alone. truth: whether it is true or false rather than a number."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, text: str, truth: bool) -> None:
        self.trace, self.text, self.truth = trace, text, truth

    def __bool__(self) -> bool:
        raise TypeError(f"a function of columns branches on {self.text}, which only the page knows")

    def astype(self, kind: Any) -> Traced:
        """Itself: codes are whole numbers already."""
        assert kind is int
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *values: Any, **options: Any) -> Traced:
        assert (method, options) == ("__call__", {}), f"{ufunc.__name__}.{method} of a traced column"
        form, truth = OPERATIONS[ufunc]
        if ufunc in TRUTHS_ONLY:
            assert all(_is_truth(value) for value in values), f"{ufunc.__name__} of numbers: {values}"
        assert not (ufunc is np.add and all(_is_truth(value) for value in values)), (
            "a sum of truths is no sum"
        )
        return self.trace.note(form, truth, *values)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function is np.where:
            return self._where(*args)
        assert function is np.choose, f"{function.__name__} of a traced column"
        return self._choose(*args)

    def _where(self, condition: Any, yes: Any, no: Any) -> Any:
        if not isinstance(condition, Traced):
            return yes if bool(condition) else no
        return self.trace.note("({}?{}:{})", _is_truth(yes) and _is_truth(no), condition, yes, no)

    def _choose(self, index: Traced, values: Any) -> Traced:
        return self.trace.note(f"[{','.join(map(literal, values))}][{{}}]", False, index)


def _is_truth(value: Any) -> bool:
    if isinstance(value, Traced):
        return value.truth
    return isinstance(value, bool | np.bool_) or (isinstance(value, np.ndarray) and value.dtype == np.bool_)


def literal(value: Any) -> str:
    """A value as JavaScript: the name of a traced one, else the number, text or truth itself."""
    if isinstance(value, Traced):
        return value.text
    if isinstance(value, np.ndarray | np.generic):
        assert value.size == 1, f"one row has one value, not {value!r}"
        value = value.reshape(-1)[0].item()
    if isinstance(value, str):
        return json.dumps(value).replace("<", "\\u003c").replace("{", "\\u007b").replace("}", "\\u007d")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"({'-' if value < 0 else ''}Infinity)"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    text = repr(value)
    return f"({text})" if text.startswith("-") else text


def is_traced(value: Any) -> bool:
    """Whether a value depends on what only the page knows."""
    return isinstance(value, Traced)
