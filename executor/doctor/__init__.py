"""Checks of a machine before a run: devices, versions, network, environment, memory, limits, disk."""

from executor.doctor.checks import CHECKS, examine
from executor.doctor.finding import Finding, worst
from executor.doctor.machine import Machine, this_machine

__all__ = ["CHECKS", "Finding", "Machine", "examine", "this_machine", "worst"]
