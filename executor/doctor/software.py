"""Versions against each other: `pairs.toml`, and what was built for another CUDA."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from executor.doctor.finding import Finding
from executor.doctor.machine import Machine

_TESTS = {
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
    "!=": lambda left, right: left != right,
}


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0). A release candidate counts as its release."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def holds(version: str, wanted: str) -> bool:
    """Whether a version is within bounds such as ">=12.0 <13.0", or is not one such as "!=2.4.0"."""
    here = numbers(version)
    for sign, bound in re.findall(r"(>=|<=|!=|>|<)\s*([\d.]+)", wanted):
        limit = numbers(bound)
        width = max(len(here), len(limit))
        left, right = here + (0,) * (width - len(here)), limit + (0,) * (width - len(limit))
        if not _TESTS[sign](left, right):
            return False
    return True


@lru_cache(maxsize=1)
def pairs() -> tuple[dict[str, Any], ...]:
    """The table of pairs.toml."""
    return tuple(tomllib.loads(Path(__file__).with_name("pairs.toml").read_text())["pair"])


def software(machine: Machine, plan: Mapping[str, Any] | None) -> Iterator[Finding]:
    """What is installed, and every pair that does not work together."""
    versions = machine.versions
    if "torch" not in versions or "megatron-core" not in versions:
        missing = [name for name in ("torch", "megatron-core") if name not in versions]
        yield Finding(
            "versions",
            "fail",
            f"{' and '.join(missing)} not installed",
            "runs train with Megatron-Core on torch",
            "pip install 'advisor[run]'",
        )
    wrong = [*_pairs(versions, plan), *_other_cuda(machine)]
    yield from wrong
    if not wrong and "torch" in versions:
        yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _pairs(versions: Mapping[str, str], plan: Mapping[str, Any] | None) -> Iterator[Finding]:
    for pair in pairs():
        given = pair.get("if", {})
        if not all(name in versions and holds(versions[name], wanted) for name, wanted in given.items()):
            continue
        asked = pair.get("plan", {})
        fields = next((each for each in listed(asked) if _planned(each, plan)), None)
        if fields is None:
            continue
        for name, wanted in pair["needs"].items():
            # What is not there is the business of its own check, unless a plan asks for it.
            if name in versions and holds(versions[name], wanted):
                continue
            if name not in versions and not asked:
                continue
            there = f"{name} {versions[name]}" if name in versions else f"no {name}"
            beside = [f"{each} {versions[each]}" for each in given]
            beside += [f"{field}={_value(plan, field)}" for field in fields]
            yield Finding(
                "versions",
                pair["status"],
                f"{there} with {' and '.join(beside)}" if beside else there,
                pair["why"],
                pair["way_out"],
                pair["source"],
            )


def listed(asked: Mapping[str, Any] | list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What a pair asks of a plan, one or several ways."""
    return asked if isinstance(asked, list) else [asked]


def _planned(wanted: Mapping[str, Any], plan: Mapping[str, Any] | None) -> bool:
    if not wanted:
        return True
    if plan is None:
        return False
    for field, values in wanted.items():
        value = plan.get(field)
        if values == "any":
            if not value:
                return False
        elif isinstance(values, str):
            if not isinstance(value, int) or not holds(str(value), values):
                return False
        elif value not in values:
            return False
    return True


def _value(plan: Mapping[str, Any] | None, field: str) -> Any:
    return plan.get(field) if plan is not None else None


def _other_cuda(machine: Machine) -> Iterator[Finding]:
    """Extensions built for another major CUDA than torch's load, and fail at their first kernel."""
    if machine.amd_gpus and not machine.torch_hip and "torch" in machine.versions:
        yield Finding(
            "versions",
            "fail",
            f"torch {machine.versions['torch']} is not built for ROCm on a machine with GPUs of AMD",
            "ranks would train on the CPU",
            "Install PyTorch's build for ROCm",
        )
    major = machine.torch_cuda.split(".")[0]
    if not major:
        if machine.gpus:
            yield Finding(
                "versions",
                "fail",
                f"torch {machine.versions.get('torch', '')} is a CPU build on a machine with GPUs",
                "ranks would train on the CPU",
                "pip install torch from the default index, not the cpu one",
            )
        return
    for name in ("transformer-engine", "nvidia-nccl"):
        built = [each for each in machine.distributions if each.startswith(f"{name}-cu")]
        others = [each for each in built if each != f"{name}-cu{major}"]
        if others and len(others) == len(built):
            yield Finding(
                "versions",
                "fail",
                f"{others[0]} {machine.distributions[others[0]]} with torch for CUDA {machine.torch_cuda}",
                "libraries of two CUDA generations do not load together",
                f"pip uninstall {others[0]}, pip install {name}-cu{major}",
            )
