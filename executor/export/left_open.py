"""What a configuration leaves open: values that only its run computes, and sizes that a recipe below it sets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

LARGEST = 1 << 20
# Fields of the workload, which no knob is.
MEANT = {"micro_batch_size", "global_batch_size", "seq_length", "mixed_precision"}
# Knobs that recipes set themselves, and the ends of the names in both frameworks that say them.
BY_RECIPES = {
    "tp": ("tensor_model_parallel_size",),
    "pp": ("pipeline_model_parallel_size",),
    "vpp": ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"),
    "cp": ("context_parallel_size",),
    "ep": ("expert_model_parallel_size",),
    "micro_batch": ("micro_batch_size",),
    "precision": ("mixed_precision", "trainer.plugins", "trainer.plugins._target_"),
    "recompute": ("recompute_granularity",),
}


class Open(str):
    """An expression, as it stands in the text, whose value only the run knows."""


def settled(tree: ast.Module) -> ast.Module:
    """The text with constants put in for the names that it gives them to, and `Open` for what only the run knows."""
    stored = [
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    known = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and stored.count(target.id) == 1
    }
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    tree = _Constants(known).visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.keyword) and _is_open(node.value, imported):
            node.value = ast.Constant(Open(ast.unparse(node.value)))
    return tree


def _is_open(node: ast.expr, imported: Collection[str]) -> bool:
    """Whether only the run knows the value. What is imported, or has a class's name, is a type or an enumeration."""
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.BitOr) and not any(
            isinstance(side, ast.List | ast.BinOp) for side in (node.left, node.right)
        )
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    if isinstance(node, ast.Name):
        return node.id not in imported and not node.id[:1].isupper()
    return isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.Subscript | ast.JoinedStr)


class _Constants(ast.NodeTransformer):
    """Puts constants in for names, and one for whole numbers that are added, multiplied or divided."""

    def __init__(self, known: Mapping[str, ast.Constant]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        sides = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
        numbers = [side for side in sides if type(side) is int and abs(side) <= LARGEST]
        if len(numbers) < 2:
            return node
        one, other = numbers
        if isinstance(node.op, ast.FloorDiv):
            return ast.Constant(one // other) if other else node
        worked = {ast.Mult: one * other, ast.Add: one + other, ast.Sub: one - other}
        return ast.Constant(worked[type(node.op)]) if type(node.op) in worked else node


def split_open(said: Mapping[str, Any], meant: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is said with a value, and what is not, a line each as far as it is meant.

    meant: fields, by the last part of their names, that say something of a plan.
    """
    kept = {name: value for name, value in said.items() if not _open(value)}
    left = [
        f"{name} = {value}"
        for name, value in said.items()
        if _open(value) and name.rpartition(".")[2] in meant and not name.startswith("env_vars.")
    ]
    return kept, tuple(left)


def _open(value: Any) -> bool:
    return isinstance(value, Open) or (isinstance(value, str) and "$" in value)


def unsaid(said: Mapping[str, Any]) -> Iterator[str]:
    """Knobs that recipes set themselves and of which the text says nothing."""
    for knob, names in BY_RECIPES.items():
        if not any(each == name or each.endswith(f".{name}") for each in said for name in names):
            yield knob
