"""Values of a shell script's flags: its own variables put in, whole numbers worked out."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

DEEPEST = 5
# Characters that are put in before a text counts as one that puts itself in without end.
MOST = 1 << 20
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^${}]*))?(?:\[@\])?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
_WORKED: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def expanded(
    given: Mapping[str, list[str]], variables: Mapping[str, str]
) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Values with the script's own variables put in, and the names of those of each flag; others stay as they are."""
    used: dict[str, set[str]] = {flag: set() for flag in given}
    left = MOST

    def put(value: str, names: set[str], depth: int = 0) -> str:
        def known(match: re.Match[str]) -> str:
            nonlocal left
            name, default = match[1] or match[3], match[2]
            names.add(name)
            own = variables.get(name, "")
            left -= len(own) + 1
            if left < 0:
                return match[0]
            if own and f"${{{name}" not in own and f"${name}" not in own:
                return own
            within = _VARIABLE.search(own)
            return default if default is not None else (within[2] or match[0]) if within else match[0]

        def worked(match: re.Match[str]) -> str:
            text = re.sub(r"(?<!\$)\b[A-Za-z_]\w*", r"${\g<0>}", match[1])
            return whole_number(put(text, names, depth + 1)) or match[0]

        fresh = _VARIABLE.sub(known, _ARITHMETIC.sub(worked, value))
        return fresh if fresh == value or depth > DEEPEST else put(fresh, names, depth + 1)

    values = {flag: [put(value, used[flag]) for value in given[flag]] for flag in given}
    return values, used


def whole_number(text: str) -> str:
    """What a shell works out of sums, products and quotients of whole numbers; "" of anything else."""
    if not re.fullmatch(r"[\d\s()+*/%-]{1,200}", text) or "**" in text:
        return ""

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in _WORKED:
            return _WORKED[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise ValueError

    try:
        return str(of(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return ""
