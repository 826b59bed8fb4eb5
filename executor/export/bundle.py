"""Everything that an export consists of: the files of the target, the launch script, the job script."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from costmodel.stack import shown_stack, vendor_note
from executor.export.environment import environment
from executor.export.exported import Exported, Job
from executor.export.launch import SCRIPT, train_script
from executor.export.slurm import JOB_SCRIPT, boosts, placement_note, sbatch_script, segment_note
from executor.megatron_model import ENCODER_NOTE
from hardware_db import platform_of

VBOOST = "vboost: `sudo nvidia-smi boost-slider --vboost 1` once a node before the run; --slurm writes it into the job"


@dataclass(frozen=True)
class Bundle:
    """An export ready to be written. files: name to text; start: the line that starts it, in their folder."""

    job: Job
    exported: Exported
    files: dict[str, str]
    start: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        exported = self.exported
        return {
            "target": exported.target,
            "version": exported.version,
            "settings": dict(exported.settings),
            "command": list(exported.command),
            "environment": {each.name: each.value for each in environment(self.job, exported.target)},
            "files": self.files,
            "start": self.start,
            "notes": list(exported.notes),
            "plan": self.job.plan.to_dict(),
        }


def target_module(name: str) -> ModuleType:
    """The module of a target, with its `export` and `read`."""
    return importlib.import_module(f"executor.export.{name.replace('-', '_')}")


def other_makers_note(job: Job, target: str) -> list[str]:
    """A line where the target is not what trains on the GPUs of their maker, as `costmodel.stack` has it."""
    vendor = job.cluster.gpu.vendor
    usual = shown_stack(None, vendor).names.replace("_", "-")
    if not vendor_note(vendor) or target == usual:
        return []
    platform = platform_of(vendor).name
    return [
        f"that {target} runs on {job.cluster.gpu.title} ({platform}) is not checked here; --to {usual} writes what "
        f"{vendor}'s builds take"
    ]


def bundle(job: Job, target: str, slurm: bool, told: Sequence[str] = (), encoder_time: str = "") -> Bundle:
    """The job for a target, with notes of the caller's. ValueError in one line when it cannot be expressed there.

    encoder_time: what the step takes without the model's encoder, for the note on it.
    """
    module = target_module(target)
    exported: Exported = module.export(job)
    first = [ENCODER_NOTE.format(job.model.name)] if job.model.encoder is not None else []
    others = [each for each in exported.notes if each not in first]
    first = [f"{each}{encoder_time}" for each in first] + other_makers_note(job, target)
    exported = replace(exported, notes=(*first, *told, *others))
    inputs = module.inputs(job) if hasattr(module, "inputs") else {}
    if not slurm and (placed := placement_note(job)):
        exported = replace(exported, notes=(*exported.notes, placed))
    files = {SCRIPT: train_script(job, exported, inputs), **exported.files}
    start = f"bash {SCRIPT}"
    if boosts(job) and not slurm:
        exported = replace(exported, notes=(*exported.notes, VBOOST))
    if slurm:
        files[JOB_SCRIPT] = sbatch_script(job)
        exported = replace(
            exported, notes=(*exported.notes, *([note] if (note := segment_note(job)) else []))
        )
        start = f"sbatch {JOB_SCRIPT}"
    return Bundle(job, exported, files, start)
