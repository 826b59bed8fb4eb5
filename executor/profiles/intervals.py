"""Sets of time as sorted, disjoint intervals: union, difference, length. Times in one unit, whatever it is."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint intervals in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def less(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """What of `left` is not in `right`; both disjoint and in order."""
    found: list[Interval] = []
    at = 0
    for start, end in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        here = at
        while here < len(right) and right[here][0] < end:
            if right[here][0] > start:
                found.append((start, right[here][0]))
            start = max(start, right[here][1])
            here += 1
        if start < end:
            found.append((start, end))
    return found


def within(intervals: list[Interval], start: float, end: float) -> list[Interval]:
    """What lies between start and end."""
    return [(max(a, start), min(b, end)) for a, b in intervals if b > start and a < end]


def length(intervals: Iterable[Interval]) -> float:
    """Time in disjoint intervals."""
    return sum(end - start for start, end in intervals)
