"""Starts a rank without torch's compiler where it is off (TORCHDYNAMO_DISABLE=1): 1.3 s of each rank's start.

torch loads it whole for torch.compile, which then returns the function as it is, and at an optimizer's first step for
two functions that then do nothing. Both stand here; whoever asks for anything else of it loads it. To be called before
Megatron-Core is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

COMPILER = "torch._dynamo"


class _Unloaded(types.ModuleType):
    """torch._dynamo as long as nobody needs more of it than a rank that compiles nothing."""

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Nothing is traced, so nothing breaks."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Off already."""
        return function

    def __getattr__(self, name: str) -> Any:
        if name in ("__spec__", "__file__"):  # asked by the import system of any module
            raise AttributeError(name)
        sys.modules.pop(COMPILER, None)
        return getattr(importlib.import_module(COMPILER), name)


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return _as_it_is if function is None else function


def install() -> None:
    """Stand in for the compiler for the life of this process, where it is off and not loaded."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1" and COMPILER not in sys.modules:
        sys.modules[COMPILER] = _Unloaded(COMPILER)
        torch.compile = _as_it_is
