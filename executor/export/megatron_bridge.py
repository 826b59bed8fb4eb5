"""Export to Megatron-Bridge: a Python file around its recipe or its model provider, and configurations read back."""

from __future__ import annotations

from executor.export.exported import SCHEDULE, Exported, Job, Reading
from executor.export.megatron_bridge_code import python_file
from executor.export.megatron_bridge_settings import overrides, recipe_of
from executor.export.python_text import option
from executor.export.target_names import Names, names_of, releases
from executor.export.unsaid import (
    refuse_custom_heads,
    refuse_heads_apart,
    refuse_hybrid_experts,
    refuse_hybrid_stages,
    refuse_indexer,
)

TARGET = "megatron-bridge"
FILE = "train_megatron_bridge.py"
# Shell variables of the launch script: default ("" when it must be given) and meaning.
DATA = {
    "DATA_PATH": ("", "prefixes of tokenised data, or weights and prefixes in turn"),
    "TOKENIZER_MODEL": ("", "the tokenizer: a name on Hugging Face or a folder"),
    "CHECKPOINTS": ("$PWD/checkpoints", "where checkpoints are kept, on a file system all nodes share"),
}
TUNING = {"PRETRAINED": ("", "the checkpoint to start from, converted to the form of Megatron-Bridge")}


def export(job: Job) -> Exported:
    """The job as Megatron-Bridge takes it. ValueError in one line for what would train something else."""
    names, note = names_of("megatron_bridge", job.version)
    _refuse(job, names)
    found = overrides(job, names)
    needed = inputs(job)
    notes = [note] if note else []
    return Exported(
        target=TARGET,
        version=names.release,
        settings=found.settings,
        command=(FILE, *(word for name in needed for word in (option(name), f"${{{name}}}"))),
        files={FILE: python_file(job, names, found, needed)},
        notes=(*notes, *found.notes),
    )


def read(text: str) -> Reading:
    """A ConfigContainer dumped as YAML, override lines, or a Python file of ours, read back."""
    from executor.export.megatron_bridge_read import reading

    return reading(text)


def inputs(job: Job) -> dict[str, tuple[str, str]]:
    """Shell variables of the launch script: name to default ("" when it must be given) and meaning."""
    tuning = job.workload.task != "pretrain"
    needed = (
        {} if job.benchmark else {name: DATA[name] for name in DATA if not (tuning and name == "DATA_PATH")}
    )
    if tuning:
        needed |= TUNING
    names, _ = names_of("megatron_bridge", job.version)
    return needed if overrides(job, names).recipe else needed | SCHEDULE


def _refuse(job: Job, names: Names) -> None:
    release = names.release
    refuse_indexer(
        job.model, names.core_numbers, f"Megatron-Bridge {release}", "--target-version 0.6.2 or later"
    )
    refuse_hybrid_experts(
        job.model, names.core_numbers, f"Megatron-Bridge {release}", "--target-version 0.3.1 or later"
    )
    refuse_hybrid_stages(job.plan, job.model, f"Megatron-Bridge {release}")
    has_recipe = bool(recipe_of(job, names))
    later = [
        each for each in releases("megatron_bridge") if recipe_of(job, names_of("megatron_bridge", each)[0])
    ]
    way = f"Try --target-version {later[0]} or later." if later else "`advisor predict` knows its cost."
    refuse_custom_heads(job.model, f"Megatron-Bridge {release}", way, recipe=has_recipe)
    if not has_recipe:
        refuse_heads_apart(job.model, f"Megatron-Bridge {release}")
    if job.model.compressed_attention is not None and not has_recipe:
        raise ValueError(
            f"{job.model.name} has compressed sparse attention, and Megatron-Bridge {release} no recipe that builds "
            f"it. {way}"
        )
    if job.workload.task != "pretrain" and release.startswith("0.2"):
        raise ValueError(
            f"--task {job.workload.task}: Megatron-Bridge {release} has no recipes for fine-tuning. "
            "Try --target-version 0.3.1 or later."
        )
    if job.plan.optimizer != "adam" and release.startswith("0.2"):
        raise ValueError(
            f"--optimizer {job.plan.optimizer}: Megatron-Bridge {release} has Adam alone. "
            "Try --target-version 0.3.1 or later."
        )
    if job.model.encoder is not None and job.plan.encoder_pp:
        raise ValueError(
            f"--encoder-pp {job.plan.encoder_pp}: Megatron-Bridge has no stages for encoders any more. "
            "Try --encoder-pp 0."
        )
