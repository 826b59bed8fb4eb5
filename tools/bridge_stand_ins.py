"""Megatron-Bridge's recipes importable without Megatron-Bridge's dependencies.

The modules of recipes and of mixed precision run as they are, from an unpacked wheel; every other module of Bridge is a
stand-in whose attributes remember what they are set to.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Modules of Bridge that run as they are, below megatron.bridge.
REAL = ("recipes", "perf_recipes", "training.mixed_precision")
# Stand-ins outside Bridge: the second reads a file that the wheel lacks.
ABSENT = ("transformers", "megatron.core.quantization")


class Recorded:
    """A configuration, or anything else of Bridge: attributes are what was set, else stand-ins like this one."""

    def __init__(self, *_: Any, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, Recorded())

    def __call__(self, *_: Any, **values: Any) -> Any:
        return Recorded(**values)

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __gt__(self, other: Any) -> bool:
        return False

    def __instancecheck__(self, instance: Any) -> bool:
        return False


class StandIn(ModuleType):
    """A module of Bridge that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorded()


class Bridge(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of an unpacked wheel: those of REAL in its files, all others as stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top, _, inner = name.partition("megatron.bridge")
        if f"{name}.".startswith(tuple(f"{each}." for each in ABSENT)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if top or not name.startswith("megatron.bridge"):
            return None
        file = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        if file.is_file() and inner.lstrip(".").startswith(REAL):
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "megatron.bridge.utils.cuda_graph":
            vars(module)["set_cuda_graph_modules"] = graph_of_modules
            vars(module)["set_full_iteration_cuda_graph"] = graph_of_the_step


def graph_of_modules(model: Any, modules: Any) -> None:
    """What Bridge's function of Megatron-Core's newer name does, in the older one."""
    model.cuda_graph_scope = list(modules)


def graph_of_the_step(model: Any) -> None:
    """As `graph_of_modules`, for a graph of the whole step."""
    model.cuda_graph_impl, model.cuda_graph_scope = "local", ["full_iteration"]
