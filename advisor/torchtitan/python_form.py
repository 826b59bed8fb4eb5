"""Configurations that are Python functions, as of torchtitan 0.3.0: what they make, read from their syntax alone."""

from __future__ import annotations

import ast
import copy
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CALLED, ARGS = "()", "*"  # keys of what a call makes: its name, and its arguments without one
# Statements of a function that change nothing of what it makes.
IDLE = (
    *(ast.Pass, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assert, ast.Raise),
    *(ast.Global, ast.Nonlocal),
)
# What is reckoned of whole numbers.
WHOLE: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}
SHOWN = 60  # letters of a statement that a note has
CONFIG = "Trainer.Config"
REGISTRY = "torchtitan.models."
Made = dict[str, Any]


class _Unknown:
    """What syntax alone does not tell."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Source:
    """A file of configurations. functions by name; imports: where a name comes from; constants: of the file."""

    functions: Mapping[str, ast.FunctionDef]
    imports: Mapping[str, str]
    constants: Mapping[str, ast.expr] = field(default_factory=dict)

    @property
    def configurations(self) -> tuple[str, ...]:
        """Names of its functions that make a configuration."""
        return tuple(
            name
            for name, node in self.functions.items()
            if not name.startswith("_") and CONFIG in (ast.unparse(node.returns) if node.returns else "")
        )


def syntax(text: str) -> ast.Module:
    """The syntax of a file, without warnings about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def read_source(text: str) -> Source:
    """The functions and imports of a file. ValueError in one line where it is no Python."""
    try:
        tree = syntax(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"this is no Python: {' '.join(str(error).split()):.100}. Correct it there."
        ) from None
    functions: dict[str, ast.FunctionDef] = {}
    imports: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imports |= {each.asname or each.name: f"{module}.{each.name}" for each in node.names}
    return Source(functions, imports, _constants(tree.body))


def _constants(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Names that a file gives a value to, but for those that it changes in a way that is not followed."""
    found: dict[str, ast.expr] = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(each, ast.Name) for each in targets):
                found |= {each.id: node.value for each in targets if isinstance(each, ast.Name)}
                continue
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store | ast.Del):
                    found.pop(each.id, None)
    return found


@dataclass
class Maker:
    """Makes what functions of a source return. elsewhere: a configuration that is imported, by where it comes from.

    notes: what is not followed, a line each.
    """

    source: Source
    elsewhere: Callable[[str], Made | None]
    within: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def make(self, name: str, given: Mapping[str, Any] | None = None) -> Made:
        """The configuration of a function; ValueError in one line where it cannot be followed."""
        node = self.source.functions[name]
        if name in self.within or len(self.within) > 20:
            raise ValueError(f"{name} calls itself, which is not followed.")
        self.within.append(name)
        words = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
        usual = dict(zip(words[len(words) - len(defaults) :], defaults, strict=True))
        names = {word: self._value(usual[word], {}) if word in usual else UNKNOWN for word in words}
        fixed = {name: self._value(value, {}) for name, value in self.source.constants.items()}
        found = self._body(node, fixed | names | dict(given or {}))
        self.within.pop()
        if not isinstance(found, dict) or found.get(CALLED) != CONFIG:
            raise ValueError(
                f"{name} is not followed: it does not return a {CONFIG} that it makes or changes."
            )
        return found

    def _body(self, node: ast.FunctionDef, names: dict[str, Any]) -> Any:
        for step in node.body:
            if isinstance(step, ast.Return):
                return self._value(step.value, names) if step.value is not None else UNKNOWN
            if not self._step(step, names):
                self._skip(step)
        return UNKNOWN

    def _step(self, step: ast.stmt, names: dict[str, Any]) -> bool:
        """Whether a statement is followed, its values put into names and what they hold."""
        if isinstance(step, ast.Assign):
            value = self._value(step.value, names)
            placed = [self._assign(each, value, names) for each in step.targets]
            return all(placed)
        if isinstance(step, ast.AnnAssign):
            return step.value is None or self._assign(step.target, self._value(step.value, names), names)
        if isinstance(step, ast.AugAssign):
            value = self._value(ast.BinOp(step.target, step.op, step.value), names)
            return value is not UNKNOWN and self._assign(step.target, value, names)
        return isinstance(step, IDLE) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))

    def _skip(self, node: ast.AST) -> None:
        shown = " ".join(ast.unparse(node).split())
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        self.notes.append(
            f"Not followed: {shown} in line {getattr(node, 'lineno', '?')}. It counts as not there."
        )

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> bool:
        """Whether a value is put where it belongs; names of several at once are unknown."""
        if isinstance(target, ast.Name):
            names[target.id] = value
            return True
        if not isinstance(target, ast.Attribute):
            names |= dict.fromkeys(
                (
                    each.id
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                ),
                UNKNOWN,
            )
            return False
        path = ast.unparse(target).split(".")
        place = names.get(path[0])
        for part in path[1:-1]:
            if not isinstance(place, dict) or not part.isidentifier():
                return False
            place = place.setdefault(part, {})
        if not isinstance(place, dict):
            return False
        place[path[-1]] = value
        return True

    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """What an expression makes: a literal, a call as a mapping, or UNKNOWN."""
        if isinstance(node, ast.Name):
            return names.get(node.id, UNKNOWN)
        if isinstance(node, ast.List):
            return [self._value(each, names) for each in node.elts]
        if isinstance(node, ast.Attribute):
            above = self._value(node.value, names)
            return above.get(node.attr, UNKNOWN) if isinstance(above, dict) else UNKNOWN
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.BoolOp):
            parts = [self._value(each, names) for each in node.values]
            if any(each is UNKNOWN for each in parts):
                return UNKNOWN
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.BinOp) and type(node.op) in WHOLE:
            left, right = self._value(node.left, names), self._value(node.right, names)
            if not isinstance(left, int) or not isinstance(right, int):
                return UNKNOWN
            return (
                UNKNOWN
                if isinstance(node.op, ast.FloorDiv) and not right
                else WHOLE[type(node.op)](left, right)
            )
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN

    def _call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        called = ast.unparse(node.func)
        given = self._named(node, called, names)
        if called in self.source.functions:
            function = self.source.functions[called]
            words = [each.arg for each in function.args.args]
            given |= dict(zip(words, (self._value(each, names) for each in node.args), strict=False))
            if called in self.source.configurations or CONFIG in ast.unparse(function):
                return self.make(called, given)
            return UNKNOWN
        if not node.args and not given and (found := self.elsewhere(self.source.imports.get(called, ""))):
            return copy.deepcopy(found)
        if called == "model_registry":
            given["from"] = self.source.imports.get(called, "")
        called = self.source.imports.get(called, called).rpartition(".")[2] if "." not in called else called
        return {CALLED: called, ARGS: [self._value(each, names) for each in node.args]} | given

    def _named(self, node: ast.Call, called: str, names: Mapping[str, Any]) -> dict[str, Any]:
        """What a call is given by name; a note on what is spread over it, where that is not known."""
        given: dict[str, Any] = {}
        spread = [f"*{ast.unparse(each.value)}" for each in node.args if isinstance(each, ast.Starred)]
        for word in node.keywords:
            value = self._value(word.value, names)
            if word.arg:
                given[word.arg] = value
            elif (
                isinstance(value, dict) and CALLED not in value and all(isinstance(key, str) for key in value)
            ):
                given |= value
            else:
                spread.append(f"**{ast.unparse(word.value)}")
        self.notes += [
            f"Not followed: {each:.{SHOWN}} in line {node.lineno}, of {called:.{SHOWN}}. It counts as not there."
            for each in spread
        ]
        return given
