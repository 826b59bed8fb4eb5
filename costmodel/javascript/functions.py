"""Plain Python functions translated to JavaScript: the event simulator, rank arithmetic, the rules' helpers.

Only what such functions use is translated; anything else is refused by name, never guessed. Functions that a
translated one calls come with it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import Any

from costmodel.javascript.syntax import RUNTIME, Writer

__all__ = ["RUNTIME", "expression", "is_division", "translate"]


def translate(functions: Iterable[Callable[..., Any]], given: Collection[str] = ()) -> str:
    """Declarations of the functions and of all that they call, but for names that the page is `given`."""
    found: dict[str, str] = {}
    for function in functions:
        _collect(function, set(given), found)
    return "\n".join(found.values())


def expression(source: str, name: Callable[[str], str]) -> str:
    """One Python expression as JavaScript; `name` gives the text of a free name."""
    return Writer(lambda found, _: name(found)).value(ast.parse(source, mode="eval").body)


def is_division(source: str) -> bool:
    """Whether an expression is a quotient, which Python prints as a float even where it is whole."""
    body = ast.parse(source, mode="eval").body
    return isinstance(body, ast.BinOp) and isinstance(body.op, ast.Div)


def _collect(function: Callable[..., Any], given: set[str], found: dict[str, str]) -> None:
    function = inspect.unwrap(function)
    if function.__name__ in found or function.__name__ in given:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    needed: list[Callable[..., Any]] = []
    scope: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]

    def free(name: str, called: bool) -> str:
        if name in given:
            return name
        value = scope[name]
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            return ""
        if callable(value):
            needed.append(value)
            return name
        if called or isinstance(value, ModuleType):
            raise NotImplementedError(f"{name} cannot be translated")
        return json.dumps(value)

    text = Writer(free, scope).function(tree)
    found[function.__name__] = ""  # its place, before those that call it again
    for each in needed:
        _collect(each, given, found)
    found[function.__name__] = text
