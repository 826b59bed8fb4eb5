"""The job of a record: what its workers were told, and whether a run that was cut can go on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.record import read_steps


def plan_of(job: dict[str, Any]) -> Plan:
    """The plan of a job, resolved. Records from before a knob ran without what it says.

    Checks for NaN are on unless a plan says otherwise, and Megatron-Core's own default is off.
    """
    plan = job["plan"]
    checked = job.get("megatron", {}).get("ddp", {}).get("check_for_nan_in_grad", False)
    return Plan(**{"check_for_nan_in_grad": checked} | plan)


def read_job(out: Path) -> dict[str, Any]:
    """The job of a record that can go on: whole, with its plan's prediction. ValueError in one line."""
    try:
        job: dict[str, Any] = json.loads((out / "job.json").read_text())
    except OSError:
        raise ValueError(
            f"{out} is no record of a run: it has no job.json. Try a folder under runs/."
        ) from None
    except ValueError as error:
        raise ValueError(f"{out}/job.json cannot be read ({error}). Run the plan again.") from None
    try:
        plan_of(job)
        Workload(**job["workload"])
        for name in ("wanted", "warmup", "model", "megatron", "variables"):
            _ = job[name]
        Plan(**json.loads((out / "requested.json").read_text()))
        _ = json.loads((out / "prediction.json").read_text())["interval"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{out} cannot go on: its record is not whole ({error}). Run the plan again."
        ) from None
    return job


def num_missing(job: dict[str, Any], done: Sequence[dict[str, Any]]) -> int:
    """Steps that a job still has to measure. [1]"""
    return int(job["wanted"] - sum(not step["warmup"] for step in done))


def way_on(folder: Path) -> str:
    """What to do about a record that was cut: the command that goes on with it where it can, else to run again."""
    try:
        missing = num_missing(read_job(folder), read_steps(folder))
    except (ValueError, TypeError):
        missing = 0
    again = shlex.join(("advisor", "run", "--resume-measure", str(folder)))
    return f"`{again}` goes on." if missing > 0 else "Run the plan again."
