"""Variables of the environment in a Python file: written at its head, and read back from it.

They are set before anything else is imported: PyTorch's allocator, CUDA and NCCL read theirs once. What a launcher has
set wins, as with `ConfigContainer.env_vars` of Megatron-Bridge (0.6.2, config.py, apply_environment_variables).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

from executor.export.configuration_text import dotted_name, value_of
from executor.export.environment import Variable

SET, UNSET = "ENVIRONMENT", "NOT_SET"


def environment_code(variables: Iterable[Variable]) -> list[str]:
    """The head of a file: its variables, those that must not be there, and their setting."""
    known = list(variables)
    absent = [f'"{variable.name}"' for variable in known if variable.value is None]
    return [
        "import os",
        "",
        "# Set before what is imported below reads them, unless the launch script has; the reasons stand there.",
        f"{SET} = {{",
        *(f'    "{each.name}": "{each.value}",' for each in known if each.value is not None),
        "}",
        *(
            ["# The launch script unsets these, whatever the image says.", f"{UNSET} = [{', '.join(absent)}]"]
            if absent
            else []
        ),
        f"for variable, text in {SET}.items():",
        "    os.environ.setdefault(variable, text)",
    ]


def environment_said(tree: ast.Module) -> dict[str, str | None]:
    """Variables that the file sets, in a table of its own or one by one; None where it must not be set."""
    found: dict[str, str | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found |= _assigned(target, node.value)
        elif isinstance(node, ast.Call) and len(node.args) == 2:
            if dotted_name(node.func) == "os.environ.setdefault" and isinstance(node.args[0], ast.Constant):
                found |= _texts({node.args[0].value: value_of(node.args[1])})
        elif isinstance(node, ast.keyword) and node.arg == "env_vars":
            found |= _texts(_table(node.value))
    return found


def variables_of(said: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables among dotted names: `env_vars.NAME` of a dump, as texts."""
    return _texts(
        {name.partition(".")[2]: value for name, value in said.items() if name.startswith("env_vars.")}
    )


def _assigned(target: ast.expr, value: ast.expr) -> dict[str, str | None]:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        held = dotted_name(target.value)
        return _texts({target.slice.value: value_of(value)}) if held.endswith(("environ", "env_vars")) else {}
    name = dotted_name(target).rpartition(".")[2]
    if name == UNSET:
        names = value_of(value)
        return dict.fromkeys(names) if isinstance(names, list) else {}
    return _texts(_table(value)) if name in (SET, "env_vars") else {}


def _table(node: ast.expr) -> dict[Any, Any]:
    """Keys and values of a written table that are literals."""
    if not isinstance(node, ast.Dict):
        return {}
    pairs = [
        (key, value)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    ]
    return {key.value: value_of(value) for key, value in pairs}


def _texts(values: Mapping[Any, Any]) -> dict[str, str | None]:
    """Values as the environment holds them; a switch is 1 or 0 as frameworks read it."""
    return {
        str(name): None if value is None else str(int(value) if isinstance(value, bool) else value)
        for name, value in values.items()
    }
