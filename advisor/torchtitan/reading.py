"""What a user gives of torchtitan, told apart: a job file, a Python file of a configuration, or a start line."""

from __future__ import annotations

import ast
import re
import tomllib

from advisor.torchtitan.arguments import arguments_job
from advisor.torchtitan.job import Job, read_job
from advisor.torchtitan.python_form import CONFIG, syntax
from advisor.torchtitan.python_job import python_job

OPTION = re.compile(r"(?:^|\s)(?:--(?:\w+\.[\w.-]+|module|config)\b|(?:CONFIG_FILE|MODULE|CONFIG)=)")


def read_text(text: str) -> Job:
    """The job that a text means. ValueError in one line where it is none."""
    text = text.removeprefix("\ufeff")
    if _is_toml(text) or text.lstrip().startswith("{"):
        return read_job(text)
    if CONFIG in text or _is_python(text):
        return python_job(text)
    return arguments_job(text) if OPTION.search(text) else read_job(text)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
    return True


def _is_python(text: str) -> bool:
    try:
        tree = syntax(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef) for node in tree.body)
