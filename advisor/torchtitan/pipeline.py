"""Pipeline of a job file: its schedule, and which layers stand on which stage as torchtitan splits them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from advisor.measurements.sizes import INTERLEAVED_CHUNKS
from advisor.torchtitan.job import Job

# Schedules by name, which PyTorch's get_schedule_class takes in any letters: whether a rank has several stages, and
# what is not counted of it.
SCHEDULES = {
    "1F1B": (False, ""),
    "GPipe": (False, "1F1B counts, which has fewer micro-batches in flight"),
    "Interleaved1F1B": (True, ""),
    "LoopedBFS": (True, "interleaved 1F1B counts, which has fewer micro-batches in flight"),
    "InterleavedZeroBubble": (True, "interleaved 1F1B counts, whose bubble is larger"),
    "ZBVZeroBubble": (True, "interleaved 1F1B counts: other stages are neighbours, and its bubble is larger"),
    "DualPipeV": (True, "interleaved 1F1B counts: other stages are neighbours, and its bubble is larger"),
}
# Of a schedule in a file; its classes tell nothing more.
OF_FILE = ("pipelineschedulesingle", "pipelineschedulemulti", "_pipelinescheduleruntime")
UNDER = "parallelism.pipeline_parallel"


@dataclass(frozen=True)
class Pipeline:
    """Stages of a run. vpp: of a rank [1]; flags, layout: how a row of measurements says where layers stand."""

    vpp: int = 1
    flags: tuple[str, ...] = ()
    layout: str = ""


def pipeline_of(job: Job, layers: int, pp: int, notes: list[str]) -> Pipeline:
    """The stages of a job on `pp` ranks. notes: takes what is not counted. ValueError in one line where none fit.

    Source: torchtitan 0.2.2, distributed/pipeline_parallel.py, pipeline_llm and generate_llm_fqn_per_model_part; 0.1.0,
    distributed/pipeline.py, generate_split_points.
    """
    if pp == 1:
        return Pipeline()
    several = _schedule(job, notes)
    parts = _named_parts(job, layers)
    if not parts:
        first, last = (job[f"{UNDER}_{end}_stage_less_layers"] for end in ("first", "last"))
        stages = _stages(job, layers + first + last, pp, several)
        if first == last == 1 and (layers + 2) % stages == 0:
            flags = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
            return Pipeline(stages // pp, flags)
        parts = _split(layers, stages, first, last)
    if len(parts) % pp or (not several and len(parts) != pp):
        raise ValueError(
            f"{len(parts)} stages do not fit {UNDER}_degree = {pp} with {job[f'{UNDER}_schedule']}: "
            f"it wants {'a multiple of it' if several else 'as many'}. Change the split or the schedule."
        )
    return Pipeline(
        len(parts) // pp, (), "|".join(["E" + "t" * parts[0], *("t" * n for n in parts[1:])]) + "L"
    )


def _schedule(job: Job, notes: list[str]) -> bool:
    """Whether a rank has several stages."""
    named = str(job[f"{UNDER}_schedule"])
    if named.lower() in OF_FILE:
        return named.lower() == "pipelineschedulemulti"
    by_letters = {name.lower(): name for name in SCHEDULES}
    if named.lower() not in by_letters:
        near = difflib.get_close_matches(named.lower(), by_letters, n=1, cutoff=0.5)
        hint = f"Did you mean {by_letters[near[0]]}?" if near else f"Known: {', '.join(SCHEDULES)}."
        raise ValueError(f"{UNDER}_schedule {named!r} is no schedule of PyTorch. {hint}")
    several, words = SCHEDULES[by_letters[named.lower()]]
    if words:
        notes.append(f"Not modelled: {UNDER}_schedule {named}; {words}.")
    return several


def _stages(job: Job, weight: int, pp: int, several: bool) -> int:
    """Stages of all ranks. weight: layers, and those that embedding and output count as. [1]"""
    each: int | None = job[f"{UNDER}_layers_per_stage"]
    if each is None:
        return pp * (INTERLEAVED_CHUNKS if several else 1)
    if each < 1:
        raise ValueError(f"{UNDER}_layers_per_stage is {each}: a stage has 1 layer or more. Leave it out.")
    stages = -(-weight // each)
    if stages % pp or (stages == pp) == several:
        wants = f"a multiple of {pp} from {2 * pp} on" if several else f"{pp}"
        raise ValueError(
            f"{UNDER}_layers_per_stage = {each} makes {stages} stages of {weight} layers, with embedding and output; "
            f"{job[f'{UNDER}_schedule']} on {pp} ranks wants {wants}. Try {-(-weight // (pp * (1 + several)))}."
        )
    return stages


def _split(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Layers of each stage, the first ones of which take what is left over."""
    each, more = divmod(layers + first + last, stages)
    if max(first, last, 1) > each:
        raise ValueError(
            f"{layers} layers on {stages} stages leave one without: embedding and output count as {first} and {last}. "
            f"Lower {UNDER}_degree, or raise {UNDER}_layers_per_stage."
        )
    counts = [each + (place < more) for place in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _named_parts(job: Job, layers: int) -> list[int]:
    """Layers of each stage where modules or split points are named, else none."""
    parts: list[list[str]] | None = job["parallelism.module_fqns_per_model_part"]
    if parts:
        numbers = [[_number(name) for name in part if name.startswith("layers.")] for part in parts]
        return _counted("module_fqns_per_model_part", numbers, layers)
    points: Sequence[Any] = job[f"{UNDER}_split_points"]
    if not points:
        return []
    cuts = [0, *(_number(point) for point in points), layers]
    return _counted(
        "pipeline_parallel_split_points",
        [list(range(low, high)) for low, high in pairwise(cuts)],
        layers,
    )


def _number(name: str) -> int:
    if not re.fullmatch(r"layers\.\d{1,5}", name):
        raise ValueError(f"{name!r:.60} is no layer. Write it as layers.4.")
    return int(name.partition(".")[2])


def _counted(key: str, numbers: list[list[int]], layers: int) -> list[int]:
    if [each for part in numbers for each in part] != list(range(layers)):
        raise ValueError(
            f"parallelism.{key} does not name the model's {layers} layers in their order, each once."
        )
    return [len(part) for part in numbers]
