"""Traces of torch.profiler (Kineto's chrome JSON, also packed): kernels, groups by their description, steps.

Categories are Kineto's: kernel, gpu_memcpy, gpu_memset, cuda_runtime, cpu_op, user_annotation. NCCL kernels carry
"Process Group Description", "Group size", "In msg nelems" and "dtype" (torch 2.4 and later); gloo's operators are
annotations `gloo:all_reduce`. A trace without a device has operators alone: those outermost on each thread count.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executor.logs.lines import GZIP
from executor.profiles.intervals import Interval
from executor.profiles.profile import Activity, Profile, profile

# Larger traces hold hundreds of steps; a few say the same. [byte]
LARGEST = 4 << 30
MICRO = 1e-6
COPIES = {"gpu_memcpy": "copy", "gpu_memset": "memset"}
BYTES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "long": 8, "int": 4, "byte": 1, "uint8": 1}
COMMUNICATING = ("gloo:", "nccl:")


def read_chrome(path: Path) -> list[Profile]:
    """A profile for every device of the trace. ValueError in one line when it is no trace."""
    record = _load(path)
    events = record.get("traceEvents") if isinstance(record, dict) else record
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events[:100]):
        raise ValueError(
            f"{path} is JSON, but no trace: it has no traceEvents. Give what torch.profiler exports "
            "(prof.export_chrome_trace)."
        )
    whole = [event for event in events if _is_whole(event)]
    about = record.get("distributedInfo") if isinstance(record, dict) else None
    rank = int(_number(about.get("rank"))) if isinstance(about, dict) else 0
    steps = _steps(whole)
    devices: dict[str, list[Activity]] = defaultdict(list)
    launches = {
        _args(event)["correlation"]: float(event["ts"])
        for event in whole
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in _args(event)
    }
    for event in whole:
        if event.get("cat") in ("kernel", *COPIES):
            activity = _activity(event, launches)
            devices[str(_args(event).get("device", 0))].append(activity)
    if devices:
        return [
            profile(found, path=str(path), device=f"cuda:{name}", rank=rank, steps=steps)
            for name, found in sorted(devices.items())
        ]
    return [profile(_operators(whole), path=str(path), device="cpu", rank=rank, steps=steps)]


def _is_whole(event: Any) -> bool:
    """Whether it is a complete event with a start and a duration."""
    numbers = (int, float)
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("ts"), numbers)
        and isinstance(event.get("dur"), numbers)
    )


def _args(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _number(told: Any) -> float:
    """A number as it stands, 0 for anything else."""
    return float(told) if isinstance(told, int | float) else 0.0


def _load(path: Path) -> Any:
    if path.stat().st_size > LARGEST:
        raise ValueError(
            f"{path} is larger than 4 GiB. Profile fewer steps: two or three after the warm-up tell all."
        )
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
        with gzip.open(path, "rt") if packed else path.open(encoding="utf-8") as file:
            return json.load(file)
    except (UnicodeDecodeError, json.JSONDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        kind = str(error).splitlines()[0]
        raise ValueError(
            f"{path} is not the whole JSON of a trace: {kind}. Was the job killed while it wrote? Export it again."
        ) from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a trace. Export it again.") from None


def _steps(events: list[dict[str, Any]]) -> list[Interval]:
    """Intervals of ProfilerStep#N, each once, as the host marks them."""
    found = {}
    for event in events:
        if (
            str(event.get("name", "")).startswith("ProfilerStep#")
            and event.get("cat") != "gpu_user_annotation"
        ):
            start = float(event["ts"]) * MICRO
            found[event["name"]] = (start, start + float(event["dur"]) * MICRO)
    return sorted(found.values())


def _activity(event: dict[str, Any], launches: dict[Any, float]) -> Activity:
    told = _args(event)
    start = float(event["ts"])
    group = str(told.get("Process Group Description") or told.get("Process Group Name") or "")
    launched = launches.get(told.get("correlation"))
    size = BYTES.get(str(told.get("dtype", "")).lower(), 0)
    kind = COPIES.get(str(event.get("cat")), "kernel")
    if kind == "copy":
        words = str(event.get("name", ""))
        kind = next((name for mark, name in _COPY_NAMES if mark in words), "copy")
    return Activity(
        name=str(event.get("name", "")),
        start=start * MICRO,
        end=(start + float(event["dur"])) * MICRO,
        stream=f"stream {told.get('stream', '')}",
        kind=kind,
        group=group,
        size=int(_number(told.get("Group size"))),
        moved=_number(told.get("In msg nelems")) * size,
        lead=None if launched is None else (start - launched) * MICRO,
    )


_COPY_NAMES = (("HtoD", "host to device"), ("DtoH", "device to host"), ("DtoD", "device to device"))


def _operators(events: list[dict[str, Any]]) -> Iterator[Activity]:
    """Outermost leaves of a trace without a device: operators that compute, and collectives of gloo."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "cpu_op" or name.startswith(COMMUNICATING):
            threads[event.get("pid"), event.get("tid")].append(event)
    for thread, found in threads.items():
        until = float("-inf")
        for event in sorted(found, key=lambda each: (float(each["ts"]), -float(each["dur"]))):
            start, name = float(event["ts"]), str(event["name"])
            communicates = name.startswith(COMMUNICATING)
            if start < until and not communicates:
                continue  # inside the operator before it
            end = start + float(event["dur"])
            if not communicates:
                until = end
            if name.startswith(("c10d::", "record_param_comms")):
                continue  # the call; gloo's own range is the work
            yield Activity(
                name, start * MICRO, end * MICRO, f"thread {thread[1]}", group="gloo" if communicates else ""
            )
