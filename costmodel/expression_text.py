"""Expressions of a ledger as text: for a language, scalars first and what repeats computed once, and for readers.

`costmodel.compiled` prints Python with it and `costmodel.javascript` JavaScript, so that both add and multiply in the
same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from costmodel.symbols import BY_NAME


@cache
def expression_printer(base: Any) -> Any:
    """A sympy code printer over `base`, for expressions whose symbols are inputs or were printed before.

    Products multiply their scalars before they touch an array. Minimum, maximum, ceiling and log are functions that
    the text's reader has. A sub-expression of `repeated` is printed once, under a name, see `taken_shared`.
    """

    class Expressions(base):  # type: ignore[misc]
        """The printer."""

        # Before the number of a shared sub-expression; no entry of a ledger begins so.
        prefix = "_part"

        def __init__(self, settings: dict[str, Any] | None = None) -> None:
            super().__init__(settings or {})
            self.arrays: set[str] = set()  # symbols of the plans
            self.known: dict[Any, bool] = {}
            self.repeated: set[Any] = set()
            self.names: dict[Any, str] = {}
            self.shared: dict[str, str] = {}

        def _print(self, expr: Any, **kwargs: Any) -> str:
            if expr not in self.repeated:
                text: str = super()._print(expr, **kwargs)
                return text
            if expr not in self.names:
                text = super()._print(expr, **kwargs)
                self.names[expr] = f"{self.prefix}{len(self.names)}"
                self.shared[self.names[expr]] = text
            return self.names[expr]

        def taken_shared(self) -> dict[str, str]:
            """Name -> text of the shared sub-expressions that the last text brought with it."""
            taken, self.shared = self.shared, {}
            return taken

        def is_array(self, expr: Any) -> bool:
            """Whether the expression depends on symbols of the plans."""
            # An expression is printed once all of its symbols are defined, so what is known stays true.
            if expr not in self.known:
                symbol = expr.is_Symbol and expr.name in self.arrays
                self.known[expr] = symbol or any(self.is_array(arg) for arg in expr.args)
            return self.known[expr]

        def _group(self, factors: list[Any]) -> str:
            return "*".join(
                f"({self._print(factor)})" if factor.is_Add else self._print(factor) for factor in factors
            )

        def _print_Mul(self, expr: Any) -> str:
            import sympy

            parts: dict[tuple[bool, bool], list[Any]] = {}
            for factor in expr.args:
                below = divides(factor)
                if below:
                    factor = sympy.Pow(factor.base, -factor.exp)
                parts.setdefault((self.is_array(factor), below), []).append(factor)
            scalar = self._group(parts.get((False, False), [])) or "1.0"
            if (False, True) in parts:
                scalar += f"/({self._group(parts[False, True])})"
            array = self._group(parts.get((True, False), []))
            text = array if scalar == "1.0" and array else f"({scalar})" + (f"*{array}" if array else "")
            if (True, True) in parts:
                text += f"/({self._group(parts[True, True])})"
            return text

        def _print_Add(self, expr: Any, order: Any = None) -> str:
            scalars = [arg for arg in expr.args if not self.is_array(arg)]
            arrays = [arg for arg in expr.args if self.is_array(arg)]
            texts = [self._print(arg) for arg in arrays]
            if scalars:
                texts.append("(" + " + ".join(self._print(arg) for arg in scalars) + ")")
            return "(" + " + ".join(texts) + ")"

        def _print_Pow(self, expr: Any, rational: bool = False) -> str:
            base = self._print(expr.base)
            if expr.exp.is_Integer and 0 < abs(int(expr.exp)) <= 3:
                power = "*".join([f"({base})"] * abs(int(expr.exp)))
                return power if expr.exp > 0 else f"(1.0/({power}))"
            return f"({base})**({self._print(expr.exp)})"

        def _fold(self, name: str, expr: Any) -> str:
            texts = sorted(self._print(arg) for arg in expr.args)
            result: str = texts[0]
            for text in texts[1:]:
                result = f"{name}({result}, {text})"
            return result

        def _print_Max(self, expr: Any) -> str:
            return self._fold("maximum", expr)

        def _print_Min(self, expr: Any) -> str:
            return self._fold("minimum", expr)

        def _print_ceiling(self, expr: Any) -> str:
            return f"ceiling({self._print(expr.args[0])})"

        def _print_log(self, expr: Any) -> str:
            return f"log({self._print(expr.args[0])})"

    return Expressions


def printed(printer: Any, expressions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of every expression in order, and before it those of what it shares with others.

    printer: a new one of `expression_printer`. expressions: by name, each of inputs and of those before it.
    """
    printer.repeated = repeated(expressions.values())
    printer.arrays = {entry.name for entry in BY_NAME.values() if entry.group == "plan"}
    for name, expr in expressions.items():
        if printer.is_array(expr):
            printer.arrays.add(name)
        text = printer.doprint(expr)
        yield from printer.taken_shared().items()
        yield name, text


def divides(factor: Any) -> bool:
    """Whether a factor of a product is printed below the line, as the divisor alone."""
    return bool(factor.is_Pow and factor.exp.is_Rational and factor.exp.is_negative)


def repeated(expressions: Iterable[Any]) -> set[Any]:
    """Sub-expressions that stand in more than one place and are worth a name."""
    import sympy

    seen: Counter[Any] = Counter()
    for expr in expressions:
        waiting = [expr]
        while waiting:
            node = waiting.pop()
            if not node.args:
                continue
            seen[node] += 1
            if divides(node):  # every product prints the divisor, never the power
                waiting.append(sympy.Pow(node.base, -node.exp))
            elif seen[node] == 1:  # what stands inside it is shared through it
                waiting.extend(node.args)
    return {node for node, times in seen.items() if times > 1 and not node.is_number}


def readable(expressions: Mapping[str, Any]) -> dict[str, str]:
    """`str` of every expression by name; what stands in several places is put in order and printed once."""
    from sympy.printing.str import StrPrinter

    class Remembering(StrPrinter):  # type: ignore[misc]
        """sympy's text of an expression, which depends on nothing around it."""

        def __init__(self) -> None:
            super().__init__()
            self.printed: dict[Any, str] = {}

        def _print(self, expr: Any, **kwargs: Any) -> str:
            # A number alone has all its digits, one inside an expression as many as it needs.
            if kwargs or not expr.args:
                text: str = super()._print(expr, **kwargs)
                return text
            if expr not in self.printed:
                self.printed[expr] = super()._print(expr)
            return self.printed[expr]

    printer = Remembering()
    return {name: printer.doprint(expr) for name, expr in expressions.items()}
