"""All checks in their order; one that itself breaks says so and does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from executor.doctor.devices import devices
from executor.doctor.finding import Finding
from executor.doctor.host import host
from executor.doctor.machine import Machine
from executor.doctor.network import network
from executor.doctor.software import software
from executor.doctor.variables import variables

Check = Callable[[Machine, "Mapping[str, Any] | None"], Iterable[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("devices", devices),
    ("software", software),
    ("network", lambda machine, plan: network(machine)),
    ("environment", lambda machine, plan: variables(machine)),
    ("host", host),
)


def examine(machine: Machine, plan: Mapping[str, Any] | None = None) -> list[Finding]:
    """Everything found, in the order of the checks. plan: its knobs, for what it needs of versions."""
    return list(_examine(machine, plan))


def _examine(machine: Machine, plan: Mapping[str, Any] | None) -> Iterator[Finding]:
    for name, check in CHECKS:
        try:
            yield from check(machine, plan)
        except Exception as error:
            # A machine that writes what we did not expect must not keep a run from starting.
            yield Finding(
                name,
                "warn",
                f"the check itself failed: {type(error).__name__}: {error}",
                "what it would have found is not known",
                "Tell us, with the output of `advisor doctor --json`",
            )
