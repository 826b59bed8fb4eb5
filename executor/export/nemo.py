"""Export to NeMo 2: a Python file around one of its recipes, and configurations read back."""

from __future__ import annotations

from executor.export.exported import Exported, Job, Reading
from executor.export.megatron_bridge import DATA, SCHEDULE
from executor.export.nemo_code import python_file
from executor.export.nemo_settings import recipe, recipe_module
from executor.export.python_text import option
from executor.export.target_names import Names, names_of
from executor.export.unsaid import (
    refuse_custom_heads,
    refuse_heads_apart,
    refuse_hybrid_experts,
    refuse_hybrid_stages,
    refuse_indexer,
)

TARGET = "nemo"
FILE = "train_nemo.py"


def export(job: Job) -> Exported:
    """The job as NeMo 2 takes it. ValueError in one line for what it cannot train."""
    names, note = names_of("nemo", job.version)
    _refuse(job, names)
    found = recipe(job, names)
    needed = inputs(job)
    return Exported(
        target=TARGET,
        version=names.release,
        settings=found.settings,
        command=(FILE, *(word for name in needed for word in (option(name), f"${{{name}}}"))),
        files={FILE: python_file(job, names, found, needed)},
        notes=(*([note] if note else []), *found.notes),
    )


def read(text: str) -> Reading:
    """A recipe dumped as YAML, or a Python file of ours, read back."""
    from executor.export.nemo_read import reading

    return reading(text)


def inputs(job: Job) -> dict[str, tuple[str, str]]:
    """Shell variables of the launch script: name to default ("" when it must be given) and meaning."""
    needed = {} if job.benchmark or job.workload.task != "pretrain" else dict(DATA)
    names, _ = names_of("nemo", job.version)
    return needed if recipe_module(job, names) else needed | SCHEDULE


def _refuse(job: Job, names: Names) -> None:
    release = names.release
    refuse_indexer(job.model, names.core_numbers, f"NeMo {release}", "--to megatron-bridge")
    refuse_hybrid_experts(job.model, names.core_numbers, f"NeMo {release}", "--to megatron-bridge")
    refuse_hybrid_stages(job.plan, job.model, f"NeMo {release}")
    refuse_custom_heads(job.model, f"NeMo {release}")
    refuse_heads_apart(job.model, f"NeMo {release}")
    if job.model.gated_delta is not None or job.model.compressed_attention is not None:
        raise ValueError(
            f"{job.model.name} has layers that NeMo {release} does not build. Try --to megatron-bridge."
        )
    if job.plan.optimizer != "adam":
        raise ValueError(
            f"--optimizer {job.plan.optimizer}: NeMo {release} sets up Adam alone. Try --to megatron-bridge."
        )
    if job.plan.precision == "nvfp4" and release < "2.6":
        raise ValueError(f"--precision nvfp4: NeMo {release} has no FP4. Try --target-version 2.6.0.")
