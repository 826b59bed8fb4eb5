"""Environment variables: names that nobody reads, values that cost or break a run, and what a plan needs of them."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.knobs import CATALOGUE
from executor.doctor.finding import Finding
from executor.doctor.machine import Machine
from executor.doctor.software import holds

# A variable with one of these beginnings is meant for a library that we know.
BEGINNINGS = (
    "NCCL_",
    "NVTE_",
    "TORCH_NCCL_",
    "CUDA_",
    "PYTORCH_",
    "FI_",
    "GLOO_",
    "OMP_",
    "NVSHMEM_",
    "TORCH_DIST",
)
# As similar as two names must be for one to be a slip of the other; measured on swapped, missing and doubled letters.
SLIP = 0.88


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("variables.toml").read_text())


@lru_cache(maxsize=1)
def known_names() -> frozenset[str]:
    """Every variable that some library reads, as far as we know: the catalogue's and the table's."""
    own = {name.strip() for record in CATALOGUE.values() for name in record.env.split(",") if name.strip()}
    return frozenset(own | {name for names in _table()["known"].values() for name in names.split()})


def slip_of(name: str) -> str | None:
    """The known name that this one is a slip of, None for a known name or one unlike all."""
    known = known_names()
    if name in known:
        return None
    if name.upper() in known:
        return name.upper()
    beginning = name.split("_")[0].upper()
    same = [each for each in known if each.split("_")[0] == beginning]
    near = difflib.get_close_matches(name.upper(), same, n=1, cutoff=SLIP)
    if near:
        return near[0]
    # A slip in the library's own letters: NCLL_DEBUG. Only with the rest as known.
    rest = name.upper().partition("_")[2]
    for each in sorted(known):
        start, _, end = each.partition("_")
        if rest and end == rest and difflib.SequenceMatcher(None, start, beginning).ratio() >= 0.75:
            return each
    return None


def variables(machine: Machine) -> Iterator[Finding]:
    """Slips of names, and values against each other."""
    found = [
        *_slips(machine.environment),
        *_values(machine),
        *_allocators(machine.environment),
        *_threads(machine),
    ]
    yield from found
    if not found:
        seen = [name for name in machine.environment if name.startswith(BEGINNINGS)]
        yield Finding(
            "environment", "ok", f"{len(seen)} variables of libraries set, none misspelt or in conflict"
        )


def _slips(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environment):
        meant = slip_of(name)
        if meant is not None:
            yield Finding(
                "environment",
                "warn",
                f"{name}={environment[name]}",
                "no library reads that name",
                f"Did you mean {meant}? Unset {name}",
            )


def _values(machine: Machine) -> Iterator[Finding]:
    spoken: set[str] = set()
    # Rules with more conditions first: they say more of the same variables.
    for rule in sorted(_table()["rule"], key=lambda rule: -len(rule["when"])):
        if not _there(rule.get("gpu"), machine):
            continue
        names = rule["when"]
        values = {name: machine.environment.get(name) for name in names}
        if all(
            value is not None and re.fullmatch(names[name], value.strip()) for name, value in values.items()
        ):
            if set(names) <= spoken:
                continue
            spoken |= set(names)
            said = " with ".join(f"{name}={value}" for name, value in values.items())
            yield Finding("environment", rule["status"], said, rule["why"], rule["way_out"], rule["source"])


def _there(needed: bool | str | None, machine: Machine) -> bool:
    """Whether the machine has a GPU where a rule is about any, or one of the compute capability that it is about."""
    if not needed:
        return True
    return any(needed is True or holds(gpu.get("compute_cap", ""), str(needed)) for gpu in machine.gpus)


def _allocators(environment: Mapping[str, str]) -> Iterator[Finding]:
    """PyTorch 2.9 renamed its allocator's variable; with both set one of them is passed over."""
    old, new = environment.get("PYTORCH_CUDA_ALLOC_CONF"), environment.get("PYTORCH_ALLOC_CONF")
    if old is not None and new is not None and old != new:
        yield Finding(
            "environment",
            "warn",
            f"PYTORCH_CUDA_ALLOC_CONF={old} and PYTORCH_ALLOC_CONF={new}",
            "only one of the two counts",
            "Keep one",
            "PyTorch c10/cuda/CUDAAllocatorConfig.cpp",
        )


def _threads(machine: Machine) -> Iterator[Finding]:
    text = machine.environment.get("OMP_NUM_THREADS", "")
    ranks = len(machine.gpus)
    if ranks and text.isdigit() and int(text) * ranks > machine.affinity:
        yield Finding(
            "environment",
            "warn",
            f"OMP_NUM_THREADS={text} for {ranks} ranks on {machine.affinity} cores",
            "threads of the ranks take turns, and launches wait",
            f"Set OMP_NUM_THREADS={max(1, machine.affinity // ranks)}",
        )
