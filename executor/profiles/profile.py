"""What a trace of one rank tells: computing, communicating by group, copying, idle, and what of it is exposed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from executor.profiles.intervals import Interval, length, less, union, within
from executor.profiles.kernels import collective, compute_class


@dataclass(frozen=True)
class Activity:
    """One kernel or copy on a device. [s]; group: of the communicator, as far as known; size: its ranks."""

    name: str
    start: float
    end: float
    stream: str = ""
    kind: str = "kernel"
    group: str = ""
    size: int = 0
    moved: float = 0.0
    lead: float | None = None


@dataclass(frozen=True)
class Group:
    """Communication of one collective in one group: busy and exposed time [s], calls, bytes given to it."""

    group: str
    collective: str
    size: int
    seconds: float
    exposed: float
    calls: int
    moved: float


@dataclass
class Profile:
    """Seconds of one rank over `window`, which holds `steps` steps (0 when the trace does not say).

    compute: by class of kernel, overlaps between streams counted once in `computing`. exposed: communication
    while nothing computes. idle: nothing runs on the device. gaps: how much of idle lies in pauses below 1 ms,
    which are launches, not waiting. lead: median time from a launch to the start of its kernel; a short one means
    that the device waits for the host.
    """

    path: str
    device: str
    rank: int
    window: float
    steps: int
    computing: float
    communicating: float
    exposed: float
    copying_exposed: float
    idle: float
    gaps: float
    kernels: int
    compute: dict[str, float] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    copies: dict[str, float] = field(default_factory=dict)
    lead: float | None = None

    @property
    def step_seconds(self) -> float:
        """Time of a step, or of the whole window."""
        return self.window / max(self.steps, 1)

    def share(self, seconds: float) -> float:
        """Of the window. [1]"""
        return seconds / self.window if self.window else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


PAUSE = 1e-3


def profile(
    activities: Iterable[Activity],
    *,
    path: str,
    device: str,
    rank: int = 0,
    steps: list[Interval] | None = None,
) -> Profile:
    """The profile of one device's activities, over whole steps when the trace marks them."""
    given = [each for each in activities if each.end > each.start]
    if not given:
        raise ValueError(
            f"{path} holds no kernel and no operator of rank {rank}. Profile a few training steps."
        )
    marked = union(steps or [])
    first = marked[0][0] if marked else min(each.start for each in given)
    last = marked[-1][1] if marked else max(each.end for each in given)
    inside = [each for each in given if each.end > first and each.start < last]
    spans: dict[str, list[Interval]] = defaultdict(list)
    classes: dict[str, list[Interval]] = defaultdict(list)
    groups: dict[tuple[str, str, int], list[Activity]] = defaultdict(list)
    copies: dict[str, list[Interval]] = defaultdict(list)
    for each in inside:
        span = (each.start, each.end)
        found = collective(each.name) if each.kind == "kernel" else ""
        if each.kind != "kernel":
            copies[each.kind].append(span)
            spans["copy"].append(span)
        elif found:
            groups[each.group or each.stream, found, each.size].append(each)
            spans["communication"].append(span)
        else:
            classes[compute_class(each.name)].append(span)
            spans["compute"].append(span)
    joined = {kind: within(union(spans[kind]), first, last) for kind in ("compute", "communication", "copy")}
    compute, communication, copy = joined["compute"], joined["communication"], joined["copy"]
    idle = less([(first, last)], union([*compute, *communication, *copy]))
    leads = [each.lead for each in inside if each.lead is not None]
    return Profile(
        path=path,
        device=device,
        rank=rank,
        window=last - first,
        steps=len(steps or []),
        computing=length(compute),
        communicating=length(communication),
        exposed=length(less(communication, compute)),
        copying_exposed=length(less(copy, union([*compute, *communication]))),
        idle=length(idle),
        gaps=length([(a, b) for a, b in idle if b - a < PAUSE]),
        kernels=len(inside),
        compute={name: length(within(union(each), first, last)) for name, each in sorted(classes.items())},
        groups=_groups(groups, compute, first, last),
        copies={name: length(within(union(each), first, last)) for name, each in sorted(copies.items())},
        lead=statistics.median(leads) if leads else None,
    )


def _groups(
    groups: dict[tuple[str, str, int], list[Activity]], compute: list[Interval], first: float, last: float
) -> list[Group]:
    """Groups by exposed time, largest first."""
    found = []
    for (group, kind, size), calls in groups.items():
        busy = within(union((each.start, each.end) for each in calls), first, last)
        moved = sum(each.moved for each in calls)
        found.append(Group(group, kind, size, length(busy), length(less(busy, compute)), len(calls), moved))
    return sorted(found, key=lambda each: -each.exposed)
