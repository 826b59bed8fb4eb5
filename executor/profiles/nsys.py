"""Exports of Nsight Systems as SQLite (`nsys export --type sqlite`): kernels, copies, launches, ranges.

Tables by NVIDIA's documentation of the export schema: CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET, _RUNTIME,
_GRAPH_TRACE, StringIds, NVTX_EVENTS, TARGET_INFO_GPU. Times are nanoseconds. NCCL's groups have no name there, but
each communicator runs on a stream of its own, so that collective and stream tell them apart.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from pathlib import Path

from executor.profiles.intervals import Interval
from executor.profiles.kernels import COPIES
from executor.profiles.profile import Activity, Profile, profile

NANO = 1e-9
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
STEP = re.compile(r"^(?:ProfilerStep#|train[_ ]?step|iteration|step)[ :_#]*(\d+)$", re.I)


def read_nsys(path: Path) -> list[Profile]:
    """A profile for every device in the export. ValueError in one line when it is none."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return _profiles(connection, path)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise ValueError(
            f"{path} cannot be read as SQLite: {error}. Export it again: nsys export --type sqlite REPORT.nsys-rep."
        ) from None


def _profiles(connection: sqlite3.Connection, path: Path) -> list[Profile]:
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table','view')")
    }
    if KERNELS not in tables and GRAPHS not in tables:
        raise ValueError(
            f"{path} is SQLite without {KERNELS}: no GPU was traced. Profile with `nsys profile --trace=cuda,nvtx`."
        )
    names = dict(connection.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    devices: dict[tuple[int, int], list[Activity]] = defaultdict(list)
    launches = _launches(connection, tables)
    for table, read in ((KERNELS, _kernels), (GRAPHS, _graphs)):
        if table in tables:
            read(connection, names, launches, devices)
    for table in ("MEMCPY", "MEMSET"):
        if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
            _copies(connection, table, devices)
    steps = _steps(connection, tables, names)
    several = len({device for device, _ in devices}) < len(devices)
    return [
        profile(
            found,
            path=str(path),
            device=f"cuda:{device}" + (f" of process {process >> 24 & 0xFFFFFF}" if several else ""),
            rank=number,
            steps=steps,
        )
        for number, ((device, process), found) in enumerate(sorted(devices.items()))
    ]


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _launches(connection: sqlite3.Connection, tables: set[str]) -> dict[tuple[int, int], int]:
    """Start of the call that launched, by process and correlation; a process is the upper half of globalTid."""
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables:
        return {}
    rows = connection.execute("SELECT correlationId, globalTid, start FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    return {((tid or 0) >> 24, correlation): start for correlation, tid, start in rows}


def _kernels(
    connection: sqlite3.Connection,
    names: dict[int, str],
    launches: dict[tuple[int, int], int],
    devices: dict[tuple[int, int], list[Activity]],
) -> None:
    has = _columns(connection, KERNELS)
    process = "globalPid" if "globalPid" in has else "0"
    name = "demangledName" if "demangledName" in has else "shortName"
    for start, end, device, stream, correlation, pid, text in connection.execute(
        f"SELECT start, end, deviceId, streamId, correlationId, {process}, {name} FROM {KERNELS}"
    ):
        launched = launches.get(((pid or 0) >> 24, correlation))
        devices[device, pid or 0].append(
            Activity(
                str(names.get(text, text)),
                start * NANO,
                end * NANO,
                f"stream {stream}",
                lead=None if launched is None else (start - launched) * NANO,
            )
        )


def _graphs(
    connection: sqlite3.Connection,
    names: dict[int, str],
    launches: dict[tuple[int, int], int],
    devices: dict[tuple[int, int], list[Activity]],
) -> None:
    """Graphs traced as a whole stand for their kernels; trace with --cuda-graph-trace=node to see inside."""
    process = "globalPid" if "globalPid" in _columns(connection, GRAPHS) else "0"
    for start, end, device, stream, pid in connection.execute(
        f"SELECT start, end, deviceId, streamId, {process} FROM {GRAPHS}"
    ):
        devices[device, pid or 0].append(Activity("CUDA graph", start * NANO, end * NANO, f"stream {stream}"))


def _copies(
    connection: sqlite3.Connection, table: str, devices: dict[tuple[int, int], list[Activity]]
) -> None:
    name = f"CUPTI_ACTIVITY_KIND_{table}"
    has = _columns(connection, name)
    process = "globalPid" if "globalPid" in has else "0"
    kind = "copyKind" if "copyKind" in has else "0"
    moved = "bytes" if "bytes" in has else "0"
    for start, end, device, stream, pid, copy, size in connection.execute(
        f"SELECT start, end, deviceId, streamId, {process}, {kind}, {moved} FROM {name}"
    ):
        told = "memset" if table == "MEMSET" else COPIES.get(copy, "copy")
        devices[device, pid or 0].append(
            Activity(told, start * NANO, end * NANO, f"stream {stream}", kind=told, moved=float(size or 0))
        )


def _steps(connection: sqlite3.Connection, tables: set[str], names: dict[int, str]) -> list[Interval]:
    """Ranges of NVTX that are named as steps; of one thread, as each rank marks its own."""
    if "NVTX_EVENTS" not in tables:
        return []
    identity = "textId" if "textId" in _columns(connection, "NVTX_EVENTS") else "NULL"
    found: dict[int, list[Interval]] = defaultdict(list)
    for start, end, text, number, thread in connection.execute(
        f"SELECT start, end, text, {identity}, globalTid FROM NVTX_EVENTS WHERE end IS NOT NULL"
    ):
        if STEP.match(str(text or names.get(number, ""))):
            found[thread or 0].append((start * NANO, end * NANO))
    marked: list[Interval] = []
    for each in found.values():
        marked = each if len(each) > len(marked) else marked
    return sorted(marked)
