"""Traces in Chrome's trace event format, as Perfetto and chrome://tracing open them.

Complete events ("X") in microseconds with whole nanoseconds, names and order of processes and threads as metadata,
counters for memory, and arrows between stages. A track holds one slice at a time: what would overlap gets a track
of its own. Format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.timeline import STREAMS

Event = dict[str, Any]
# Threads of a process: its phases, then a number for each stream, with room for tracks beside the first.
PHASES, LANES = 1, 10
# What a thread is called in the viewer, where its name alone tells a stranger little.
TITLES = {
    "tp": "tensor parallel (tp)",
    "cp": "context parallel (cp)",
    "ep": "expert parallel (ep)",
    "pp": "pipeline messages (pp)",
    "dp": "data parallel (dp)",
    "host": "host and waiting",
}
NANO = 1e9
# Ends and starts that are the same moment may differ by rounding. [ns]
SLACK = 3


@dataclass
class Trace:
    """Events as they are added. Times are given in seconds."""

    events: list[Event] = field(default_factory=list)
    _ends: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    _named: set[tuple[int, int]] = field(default_factory=set)

    def process(self, pid: int, name: str, labels: str = "") -> None:
        """Name a process; processes are listed in order of their numbers."""
        self._metadata(pid, 0, "process_name", name=name)
        self._metadata(pid, 0, "process_sort_index", sort_index=pid)
        if labels:
            self._metadata(pid, 0, "process_labels", labels=labels)

    def slice(
        self,
        pid: int,
        thread: str,
        name: str,
        start: float,
        seconds: float,
        category: str,
        about: Mapping[str, Any] | None = None,
    ) -> int:
        """One slice on the first free track of a thread, which is returned. A thread's slices come in order of time."""
        first, last = round(start * NANO), round((start + seconds) * NANO)
        base = thread_number(thread)
        lane = next(
            (lane for lane in range(LANES) if self._ends[pid, base + lane] <= first + SLACK), LANES - 1
        )
        track = base + lane
        if (pid, track) not in self._named:
            self._named.add((pid, track))
            title = TITLES.get(thread, thread)
            self._metadata(pid, track, "thread_name", name=title if not lane else f"{title} {lane + 1}")
            self._metadata(pid, track, "thread_sort_index", sort_index=track)
        first = max(first, self._ends[pid, track])
        self._ends[pid, track] = max(last, first)
        event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": track}
        event |= {"ts": first / 1000, "dur": max(last - first, 0) / 1000}
        if about:
            event["args"] = dict(about)
        self.events.append(event)
        return track

    def counter(self, pid: int, name: str, second: float, values: Mapping[str, float]) -> None:
        """A number over time."""
        ts = round(second * NANO) / 1000
        self.events.append({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts, "args": dict(values)})

    def arrow(
        self, number: int, name: str, start: tuple[int, int, float], end: tuple[int, int, float]
    ) -> None:
        """From a slice to another: (process, track, second) inside each."""
        for phase, (pid, track, second) in (("s", start), ("f", end)):
            event = {"ph": phase, "id": number, "name": name, "cat": "send", "pid": pid, "tid": track}
            event["ts"] = round(second * NANO) / 1000
            self.events.append(event | ({"bp": "e"} if phase == "f" else {}))

    def _metadata(self, pid: int, track: int, kind: str, **values: Any) -> None:
        self.events.append({"ph": "M", "name": kind, "pid": pid, "tid": track, "args": values})

    def to_dict(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """The object of the file. about: what it is of, kept under otherData."""
        return {"displayTimeUnit": "ms", "otherData": dict(about), "traceEvents": self.events}


def thread_number(thread: str) -> int:
    """Number of a thread's first track: phases, then streams in their order."""
    return PHASES if thread == "phase" else LANES * (1 + STREAMS.index(thread))


def write_trace(path: Path, record: Mapping[str, Any]) -> None:
    """Write a trace whole or not at all, one event a line; packed where the name ends in .gz."""
    head = {key: value for key, value in record.items() if key != "traceEvents"}
    packed, partial = path.suffix == ".gz", path.with_name(f".{path.name[:64]}.{os.getpid()}.tmp")
    try:
        with (
            gzip.open(partial, "wt", encoding="utf-8")
            if packed
            else partial.open("w", encoding="utf-8") as file
        ):
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
            file.write(",\n".join(map(json.dumps, record["traceEvents"])))
            file.write("\n]}\n")
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # not the name of the partial file
    finally:
        partial.unlink(missing_ok=True)


def shifted(events: Iterable[Event], by: int) -> list[Event]:
    """Events with other numbers of processes, so that two traces stand in one file; arrows keep apart too."""
    found = []
    for event in events:
        moved = event | {"pid": event["pid"] + by}
        if event["ph"] == "M" and event["name"] == "process_sort_index":
            moved["args"] = {"sort_index": event["args"]["sort_index"] + by}
        if "id" in event:
            moved["id"] = event["id"] + by * 10**6
        found.append(moved)
    return found
