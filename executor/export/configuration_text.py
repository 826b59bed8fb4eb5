"""Texts that hold a configuration, as dotted names and plain values: YAML with _target_, override lines, Python."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from executor.export.left_open import settled
from executor.export.python_text import plain

# Members by value, for dumps that name no member. Source: megatron/core/transformer/enums.py, 0.16.1 and 0.19.2.
MEMBERS = {
    "AttnBackend": ("", "flash", "fused", "unfused", "local", "auto"),
    "CudaGraphScope": ("", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
    "CudaGraphModule": ("", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
}

MOST_LAYERS = 10_000
# A section of a YAML file of overrides, as those that come with recipes: a name alone on its line, more below it.
SECTION = re.compile(r"^\w+:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*[ \t]+\w+:(?:[ \t\n]|$)", re.MULTILINE)


def yaml_of(text: str) -> Any:
    """The text as YAML holds it. ValueError in one line when it is none."""
    try:
        import yaml
    except ImportError:
        raise ValueError(
            "YAML of a configuration needs PyYAML to be read. Try `pip install pyyaml`."
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        line = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise ValueError(
            f"this YAML cannot be read: {line}. Give the configuration as its framework dumps it."
        ) from None


def flat_dump(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Leaves of a dump; what stands for a type, an enumeration or a function becomes its plain word."""
    if isinstance(node, list) and any(
        isinstance(item, Mapping) and item.get("_call_", True) for item in node
    ):
        # Objects in a list, such as callbacks, are known by their class.
        for item in node:
            if isinstance(item, Mapping) and "_target_" in item and _plain_item(item) is item:
                name = str(item["_target_"]).rpartition(".")[2]
                yield from flat_dump(
                    item, f"callbacks.{name}" if path.endswith("callbacks") else f"{path}.{name}"
                )
    if not isinstance(node, Mapping):
        yield path, [_plain_item(item) for item in node] if isinstance(node, list) else node
        return
    if "_target_" in node:
        yield (f"{path}._target_" if path else "_target_"), node["_target_"]
        leaf = _plain_item(node)
        if leaf is not node:
            yield path, leaf
            return
    for name, value in node.items():
        if not str(name).startswith("_"):
            yield from flat_dump(value, f"{path}.{name}" if path else str(name))


def _plain_item(item: Any) -> Any:
    """A type, a function or an enumeration's member as a plain word; anything else as it is."""
    if not isinstance(item, Mapping) or "_target_" not in item:
        return item
    target = str(item["_target_"])
    name = target.rpartition(".")[2]
    if item.get("_call_") is False:
        return plain(target) if plain(target) != target else name
    args = item.get("_args_")
    if name in MEMBERS and isinstance(args, list) and len(args) == 1 and isinstance(args[0], int):
        members = MEMBERS[name]
        return item.get("_name_") or (members[args[0]] if 0 < args[0] < len(members) else "")
    return item


def dotted_name(node: ast.expr) -> str:
    """a.b.c of a name with attributes, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def value_of(node: ast.expr) -> Any:
    """A literal, or the plain word of a written name."""
    try:
        found = ast.literal_eval(node)
    except ValueError:
        repeated = _repeated(node)
        return plain(ast.unparse(node)) if repeated is None else repeated
    return list(found) if isinstance(found, tuple) else found


def _repeated(node: ast.expr) -> list[Any] | None:
    """A list written as ["p2p", "a2a"] * 16, as those with a word for each layer are; None of anything else."""
    if isinstance(node, ast.List):
        return [value_of(each) for each in node.elts]
    if not isinstance(node, ast.BinOp):
        return None
    left = _repeated(node.left)
    if isinstance(node.op, ast.Add):
        right = _repeated(node.right)
        return None if left is None or right is None else left + right
    times = node.right.value if isinstance(node.right, ast.Constant) else None
    if left is None or not isinstance(node.op, ast.Mult) or not isinstance(times, int):
        return None
    return left * times if 0 <= times * len(left) <= MOST_LAYERS else None


def flat(
    text: str, flat_python: Callable[[ast.Module], tuple[dict[str, Any], str]]
) -> tuple[dict[str, Any], str, bool]:
    """Dotted name and plain value of everything the text says; its recipe; whether it is a whole dump.

    flat_python: the same two of a Python file of one target.
    """
    if "_target_" in text:
        return dict(flat_dump(yaml_of(text), "")), "", True
    if SECTION.search(text):
        return dict(flat_dump(yaml_of(text), "")), "", False
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return flat_lines(text)
    if any(isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom) for node in tree.body):
        return *flat_python(settled(tree)), False
    return flat_lines(text)


def flat_lines(text: str) -> tuple[dict[str, Any], str, bool]:
    """Override lines as of Hydra: dotted.name=value, separated by blanks or lines."""
    said: dict[str, Any] = {}
    recipe = ""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ValueError(
            f"these overrides cannot be read: {error}. Write model.name=value, a blank between."
        ) from None
    for before, word in zip(["", *words], words, strict=False):
        name, separator, value = word.lstrip("+~").partition("=")
        if separator and ("." in name or name == "mixed_precision") and not name.startswith("-"):
            said[name] = _scalar(value)
        elif before in ("--recipe", "--recipe_name") or word.startswith("--recipe="):
            recipe = value or word
    if not said:
        started = next(
            (word.rpartition("/")[2] for word in words if word.endswith((".py", ".yaml", ".yml"))), ""
        )
        way = f"It starts {started}: give that file." if started else "Check the file."
        raise ValueError(f"this is no configuration as YAML, no override lines and no Python file. {way}")
    return said, recipe, False


def _scalar(text: str) -> Any:
    words = {"null": None, "none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if re.fullmatch(r"\[[^\]]*\]", text):
        return [_scalar(part.strip().strip("'\"")) for part in text.strip("[]").split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return plain(text.strip("'\""))
