"""Amounts: a formula takes plain numbers, NumPy arrays or sympy expressions, and returns the same.

Every formula of the cost model is written once with these helpers, so the object that `explain`
prints, the one that search evaluates over arrays of plans and the one that tests call with plain
numbers cannot differ.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

# A number, a NumPy array or a sympy expression. sympy and NumPy carry no common protocol, so the
# alias is Any; the docstring of each formula says units and range.
Amount: TypeAlias = Any


def _is_symbolic(*amounts: Amount) -> bool:
    return any(hasattr(amount, "free_symbols") for amount in amounts)


def _is_array(*amounts: Amount) -> bool:
    return any(hasattr(amount, "dtype") for amount in amounts)


def ceiling(amount: Amount) -> Amount:
    """Smallest integer not below `amount`. [as amount]"""
    if _is_symbolic(amount):
        import sympy

        return sympy.ceiling(amount, evaluate=False)
    if _is_array(amount):
        import numpy as np

        return np.ceil(amount)
    return math.ceil(amount)


def maximum(first: Amount, *others: Amount) -> Amount:
    """Largest of the amounts, element by element. [as amounts]"""
    return _fold("Max", "maximum", max, first, *others)


def minimum(first: Amount, *others: Amount) -> Amount:
    """Smallest of the amounts, element by element. [as amounts]"""
    return _fold("Min", "minimum", min, first, *others)


def _fold(symbolic: str, array: str, plain: Any, *amounts: Amount) -> Amount:
    if _is_symbolic(*amounts):
        import sympy

        # evaluate=False: sympy would compare every pair of arguments by their assumptions, slowly.
        return getattr(sympy, symbolic)(*amounts, evaluate=False)
    if _is_array(*amounts):
        import numpy as np

        result = amounts[0]
        for amount in amounts[1:]:
            result = getattr(np, array)(result, amount)
        return result
    return plain(*amounts)


def logarithm2(amount: Amount) -> Amount:
    """Base-2 logarithm of a positive amount. [1]"""
    if _is_symbolic(amount):
        import sympy

        return sympy.log(amount) / sympy.log(2)
    if _is_array(amount):
        import numpy as np

        return np.log2(amount)
    return math.log2(amount)


def is_more_than_one(count: Amount) -> Amount:
    """1 when an integer count exceeds one, else 0: switches a term off for groups of one rank. [1]"""
    return minimum(count - 1, 1)


def is_above_one(ratio: Amount) -> Amount:
    """1 when a ratio of two counts exceeds one, else 0: as `is_more_than_one`, which takes whole counts alone. [1]

    Of counts below 1e9, so that the least ratio above one counts whole.
    """
    return minimum(1, maximum(0, ratio - 1) * 1e9)
