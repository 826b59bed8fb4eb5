"""Spans of a simulated step: passes with what is exposed inside them, one by one or several together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from costmodel.passes import Part
from costmodel.simulate import Event

STREAMS = ("compute", "tp", "cp", "ep", "pp", "dp", "host")
FORWARD, BACKWARD, SENT = "forward", "backward", "send/recv"
TITLES = {"F": FORWARD, "B": BACKWARD}


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a stage does or waits for. start and duration in seconds from the start of the step.

    stage: of the pipeline, an encoder's own stages first. stream: one of STREAMS. microbatch and chunk are -1 where
    the span belongs to none, or to several.
    """

    stage: int
    stream: str
    name: str
    start: float
    duration: float
    microbatch: int = -1
    chunk: int = -1

    @property
    def end(self) -> float:
        """When it is over. [s]"""
        return self.start + self.duration


class Phases(NamedTuple):
    """When a stage's warm-up, steady state (one forward, one backward) and flush end. [s]"""

    warm_up: float
    steady: float
    flush: float


@dataclass(frozen=True)
class Pass:
    """One direction of a stage's chunk, laid out from its start: compute, then the parts; beside runs under it. [s]"""

    compute: float
    parts: tuple[Part, ...]
    beside: tuple[Part, ...] = ()

    @property
    def seconds(self) -> float:
        """Of the whole pass."""
        return self.compute + sum(part.seconds for part in self.parts)


@dataclass(frozen=True)
class Drawing:
    """What spans are drawn from: passes of each stage in order, what each consists of, and spans outside them.

    table: (stage, chunk, "F" or "B") to its pass. warm_ups: forward passes of each stage's warm-up. hop: of a message
    to the neighbour [s]; once: what happens once a step.
    """

    passes: tuple[tuple[Event, ...], ...]
    table: Mapping[tuple[int, int, str], Pass]
    warm_ups: tuple[int, ...]
    hop: float
    once: tuple[Span, ...]

    def spans(self, ends: int = 1, steady: int = 1) -> tuple[Span, ...]:
        """All spans, with so many passes drawn as one: those of warm-up and flush, and those between."""
        found: list[Span] = []
        for stage, events in enumerate(self.passes):
            warm_up = self.warm_ups[stage]
            for part, size in (
                (events[:warm_up], ends),
                (events[warm_up : len(events) - warm_up], steady),
                (events[len(events) - warm_up :], ends),
            ):
                if size == 1:
                    for event in part:
                        self._draw(event, found)
                else:
                    for first in range(0, len(part), size):
                        found.extend(self._together(part[first : first + size]))
        return (*found, *self.once)

    def fit(self, most: int) -> tuple[int, int]:
        """Passes drawn as one (in warm-up and flush, between them) so that there are about `most` spans at most."""
        each = 1 + (self.hop > 0) + max(len(one.parts) + len(one.beside) for one in self.table.values())
        room = max(most - len(self.once), len(self.passes)) / each
        outside = 2 * sum(self.warm_ups)
        inside = sum(map(len, self.passes)) - outside
        if outside + inside <= room:
            return 1, 1
        # A group of several passes has no message; a stage's last group of a phase may be short.
        room = max(room - 3 * len(self.passes), len(self.passes))
        if outside <= room / 2:
            return 1, max(2, math.ceil(inside / (room - outside)))
        size = max(2, math.ceil((outside + inside) / room))
        return size, size

    def _draw(self, event: Event, found: list[Span]) -> None:
        stage, chunk, microbatch, kind, start, end = event
        made = self.table[stage, chunk, kind]
        found.append(Span(stage, "compute", TITLES[kind], start, made.compute, microbatch, chunk))
        for part in made.beside:
            found.append(Span(stage, part.stream, part.name, start, part.seconds, microbatch, chunk))
        clock = start + made.compute
        for part in made.parts:
            found.append(Span(stage, part.stream, part.name, clock, part.seconds, microbatch, chunk))
            clock += part.seconds
        if self.hop and self._sends(stage, chunk, kind):
            found.append(Span(stage, "pp", SENT, end, self.hop, microbatch, chunk))

    def _sends(self, stage: int, chunk: int, kind: str) -> bool:
        last = len(self.passes) - 1
        if kind == "F":
            return stage < last or (stage, chunk + 1, "F") in self.table
        return stage > 0 or chunk > 0

    def _together(self, events: Sequence[Event]) -> Iterator[Span]:
        """A group of passes: compute (and waiting between them) first, then the sum of each part."""
        if not events:
            return
        stage, start, end = events[0].stage, events[0].start, events[-1].end
        sums: dict[tuple[str, str], float] = {}
        for event in events:
            for part in self.table[event.stage, event.chunk, event.kind].parts:
                key = part.stream, part.name
                sums[key] = sums.get(key, 0.0) + part.seconds
        clock = end - sum(sums.values())
        kinds = " and ".join(TITLES[kind] for kind in "FB" if any(event.kind == kind for event in events))
        yield Span(stage, "compute", f"{len(events)} passes, {kinds}", start, clock - start)
        for (stream, name), seconds in sums.items():
            yield Span(stage, stream, name, clock, seconds)
            clock += seconds
