"""Run records as a fit sees them: what ran, and the seconds of its parts beside what the cost model says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.family import compiled_family
from costmodel.model_file import from_mapping
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.symbols import BY_NAME
from costmodel.workload import Workload
from executor.job_file import plan_of
from executor.record import most_on_device, read_ranks, read_steps
from executor.run_job import stack_of
from executor.term_phases import phases_of
from hardware_db import Cluster

# A record whose ranks queued for a core longer than this share of a step was not alone on the machine.
BUSY = 0.10
BUSY_WEIGHT = 0.3
# Parts below this share of a step count less: they are lost in its noise.
FULL_SHARE = 0.2


@dataclass(frozen=True)
class Observed:
    """One run: what ran, and median seconds of its parts ("step", and where they are seen apart "compute",
    "optimizer", "communication"). busy: other work shared the machine. device: "cpu", "cuda", "" when not said.
    """

    name: str
    model: ModelSpec
    workload: Workload
    plan: Plan
    seconds: Mapping[str, float]
    spread: float = 0.0
    busy: bool = False
    device: str = ""

    def same_job(self, other: Observed) -> bool:
        """Whether the other is a repeat of this run."""
        return (self.model, self.workload, self.plan) == (other.model, other.workload, other.plan)

    def weights(self) -> dict[str, float]:
        """What each part counts in a fit. [1]"""
        whole = max(self.seconds.get("step", 0.0), sum(self.seconds.values()) - self.seconds.get("step", 0.0))
        base = BUSY_WEIGHT if self.busy else 1.0
        return {
            part: base * min(1.0, seconds / whole / FULL_SHARE) ** 0.5
            for part, seconds in self.seconds.items()
            if seconds > 0
        }


class NoStepError(ValueError):
    """A folder that teaches nothing; why: it has no job, no measured step, or ranks that shared a GPU."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def read_all(folders: Sequence[Path]) -> tuple[list[Observed], list[str]]:
    """The runs of records, and what was left out: those that teach nothing. ValueError when none is left."""
    runs, left_out, first = [], [], None
    for folder in folders:
        try:
            runs.append(read_observed(folder))
        except NoStepError as error:
            first = first or error
            left_out.append(f"{folder.name}: left out, {error.why}")
    if first is not None and not runs:
        raise first
    return named(runs), left_out


def read_observed(folder: Path) -> Observed:
    """The run of a record. ValueError in one line when it is no record, or holds no measured step."""
    try:
        job = json.loads((folder / "job.json").read_text())
        plan, workload = plan_of(job), Workload(**job["workload"])
        model = _model(job)
    except (FileNotFoundError, NotADirectoryError):
        said = f"{folder} is no record of a run: it has no job.json. Give a folder that `advisor run` wrote."
        # Among records stand folders of jobs that were given to Slurm, and of runs that were refused.
        error = NoStepError(said, "it has no job.json") if folder.is_dir() else ValueError(said)
        raise error from None
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder}/job.json cannot be read ({error}). Run the plan again.") from None
    steps = [step for step in read_steps(folder) if not step["warmup"]]
    if not steps:
        raise NoStepError(
            f"{folder} holds no measured step. Give a record of a run that measured some.",
            "it holds no measured step",
        )
    if most_on_device(read_ranks(folder)) > 1:
        raise NoStepError(
            f"ranks of {folder} shared a GPU, so its seconds teach nothing. Give a record with a GPU a rank.",
            "its ranks shared a GPU",
        )
    found = observed(folder.name, model, workload, plan, steps, job.get("clock", "wall"))
    return replace(found, device=str(job.get("device", "")))


def _model(job: Mapping[str, Any]) -> ModelSpec:
    """Newer records hold the whole model; older ones its name and some sizes."""
    if "num_layers" in job["model"]:
        return from_mapping(job["model"])
    return load_model(job["model"]["name"])


def observed(
    name: str,
    model: ModelSpec,
    workload: Workload,
    plan: Plan,
    steps: list[dict[str, Any]],
    clock: str = "wall",
) -> Observed:
    """The median step of measured ones, in its parts; a pipeline's stay together: its waiting is other stages' work."""
    ordered = sorted(steps, key=lambda step: step["seconds"])
    typical = ordered[(len(ordered) - 1) // 2]
    phases = typical.get("phases", {})
    parts = {"step": typical["seconds"]}
    queued = float(np.median([step.get("queued", 0.0) for step in steps])) / typical["seconds"]
    if plan.pp == 1 and "forward" in phases:
        parts["compute"] = phases["forward"] + phases["backward"]
        parts["optimizer"] = phases.get("optimizer", 0.0)
        # Of a data-parallel run most is waiting for the slowest rank, and numbers that the model has in fixed time.
        if plan.tp * plan.cp * plan.ep > 1:
            parts["communication"] = phases.get("communication", 0.0)
    if clock == "quiet" and plan.world > 1 and queued > BUSY and "compute" in parts:
        # A rank's own queueing is taken out of its time; what it waited for others' is not.
        parts = {name: spent for name, spent in parts.items() if name not in ("step", "communication")}
    seconds = [step["seconds"] for step in steps]
    spread = float(np.std(seconds) / np.mean(seconds))
    return Observed(name, model, workload, plan, parts, spread, queued > BUSY and clock != "quiet")


class Modelled:
    """The cost model's seconds of one run's parts, as a function of some inputs."""

    def __init__(self, run: Observed, cluster: Cluster, stack: str | None = None) -> None:
        self.run = run
        stack = stack or stack_of(run.device == "cuda")
        found: Prediction = predict(run.model, run.workload, cluster, run.plan, stack)
        self.compiled = compiled_family(found.features)
        self.inputs = {name: np.float64(found.values[name]) for name in BY_NAME if name in found.values}

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Leaves of the time tree."""

        def below(term: Any) -> list[str]:
            return [name for part in term.parts for name in below(part)] if term.parts else [term.name]

        return tuple(below(self.compiled.trees["step_time"]))

    def seconds(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Seconds of the run's parts with some inputs changed, numbers or arrays; names as in `Observed.seconds`."""
        values = self.compiled.full(self.inputs | dict(changed))
        found: dict[str, Any] = dict.fromkeys(("compute", "optimizer", "communication"), 0.0)
        for leaf in self.leaves:
            part = part_of(leaf)
            if part:
                found[part] = found[part] + values[leaf]
        return found | {"step": values["step_time"]}


def part_of(leaf: str) -> str:
    """The part of a step in which a run would see a term, "" for what it sees nowhere apart."""
    phase = next(iter(phases_of(leaf)), "")
    return "compute" if phase in ("forward", "backward") else phase


def named(runs: list[Observed]) -> list[Observed]:
    """Runs with names that differ."""
    seen: dict[str, int] = {}
    found = []
    for run in runs:
        number = seen[run.name] = seen.get(run.name, 0) + 1
        found.append(run if number == 1 else replace(run, name=f"{run.name} ({number})"))
    return found
