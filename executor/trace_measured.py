"""A measured step as a trace, in the form of a predicted one: a process for each rank, a thread for each stream.

A run keeps the spans of one typical step in timeline.json: phases of Megatron-Core, and every collective or wait
with the group it is of. A pass is drawn without the waits inside it, which stand on the thread of their group, as
exposed communication of a predicted step does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from costmodel.simulate import schedule_order
from executor.job_file import way_on
from executor.profiles.intervals import Interval, less, union
from executor.trace import Trace, shifted

STEP, RANKS = 1, 2  # numbers of the processes: the step itself, and rank 0
# Streams of the cost model for groups of Megatron-Core; the others are told as "host", with their name.
STREAMS = {
    "tp": "tp",
    "etp": "tp",
    "cp": "cp",
    "ep": "ep",
    "tp_ep": "ep",
    "pp": "pp",
    "dp": "dp",
    "edp": "dp",
    "optimizer_instance": "dp",
}
TIMELINE, PREDICTED = "timeline.json", "predicted-trace.json"
# Measured processes stand after the predicted ones of the same file.
BESIDE = 10_000


def record_trace(folder: Path) -> dict[str, Any]:
    """The measured step of a record, beside the prediction of the run where the record keeps it.

    ValueError in one line for a folder that holds no measured step.
    """
    measured = measured_trace(folder)
    predicted = _json(folder / PREDICTED)
    if predicted is None:
        return measured
    events = [*predicted["traceEvents"], *shifted(measured["traceEvents"], BESIDE)]
    about = measured["otherData"] | predicted["otherData"] | {"kind": "predicted and measured"}
    return predicted | {"otherData": about, "traceEvents": events}


def measured_trace(folder: Path) -> dict[str, Any]:
    """The measured step of a record alone."""
    job, timeline = _json(folder / "job.json"), _json(folder / TIMELINE)
    if job is None:
        raise ValueError(
            f"{folder} is no record of a run: it holds no job.json. `advisor run` tells the folder of its record."
        )
    if timeline is None:
        raise ValueError(
            f"{folder} holds no {TIMELINE}: the run did not reach its end, or is of an earlier version. "
            f"{way_on(folder)}"
        )
    try:
        return _drawn(job, timeline)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{folder / TIMELINE} is of another form: {error} is missing or wrong. Run the plan again."
        ) from None


def _drawn(job: dict[str, Any], timeline: dict[str, Any]) -> dict[str, Any]:
    seconds = float(timeline["seconds"])
    trace = Trace()
    trace.process(STEP, "measured step", f"step {int(timeline['step']) + 1}")
    trace.slice(STEP, "phase", "step", 0.0, seconds, "measured", {"seconds": seconds})
    for rank in timeline["ranks"]:
        pid = RANKS + int(rank["rank"])
        trace.process(pid, f"measured rank {rank['rank']}", f"stage {rank['stage']}")
        for start, end, thread, name, about in sorted(_slices(job, rank, seconds), key=lambda row: row[:2]):
            trace.slice(pid, thread, name, start, end - start, "measured", about)
    return trace.to_dict(
        {
            "kind": "measured",
            "model": job["model"].get("name", ""),
            "step": timeline["step"],
            "measured_step_s": seconds,
            "workload": job["workload"],
            "plan": job["plan"],
        }
    )


Row = tuple[float, float, str, str, dict[str, Any]]


def _slices(job: dict[str, Any], rank: dict[str, Any], seconds: float) -> Iterator[Row]:
    """start, end, thread, name and what else is known, of one rank. [s]"""
    rows = [
        (str(group), str(name), max(float(start), 0.0), min(float(start) + float(spent), seconds))
        for group, name, start, spent in rank["spans"]
    ]
    waits = union((start, end) for group, _, start, end in rows if group)
    passes = _labels(job, int(rank["stage"]))
    seen: Counter[str] = Counter()
    for group, name, start, end in sorted(rows, key=lambda row: row[2]):
        if group:
            stream = STREAMS.get(group, "host")
            yield start, end, stream, name if stream == group else f"{name}, {group}", {}
            continue
        place = passes.get((name, seen[name]), {})
        seen[name] += 1
        for first, last in _without((start, end), waits):
            yield first, last, "compute", "optimizer step" if name == "optimizer" else name, place


def _without(span: Interval, waits: list[Interval]) -> list[Interval]:
    start, end = span
    return less([span], [wait for wait in waits if wait[1] > start and wait[0] < end])


def _labels(job: dict[str, Any], stage: int) -> dict[tuple[str, int], dict[str, int]]:
    """Micro-batch and chunk of the n-th forward and backward pass of a stage, by the order of its schedule."""
    plan = job["plan"]
    counts: Counter[str] = Counter()
    found = {}
    for forward, chunk, microbatch in schedule_order(
        stage, plan["pp"], plan["vpp"], job["num_microbatches"], plan.get("vpp_group_size", 0)
    ):
        kind = "forward" if forward else "backward"
        found[kind, counts[kind]] = {"micro-batch": microbatch, "chunk": chunk}
        counts[kind] += 1
    return found


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{path} is not JSON. Run the plan again.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no record. Run the plan again.")
    return found
