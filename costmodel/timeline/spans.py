"""Spans of a simulated step: passes with what is exposed inside them, one by one or several together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.passes import Part
from costmodel.simulate import StagePasses

STREAMS = ("compute", "tp", "cp", "ep", "pp", "dp", "host")
FORWARD, BACKWARD = "forward", "backward"
# Messages by the pass that they come from.
SENT = {True: "activations to the next stage", False: "gradients to the stage before"}


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
        """Of the whole pass. [s]"""
        return self.compute + sum(part.seconds for part in self.parts)


@dataclass(frozen=True)
class Drawing:
    """What spans are drawn from: passes of each stage in order, what each consists of, and spans outside them.

    table: (stage, chunk, forward) to its pass. warm_ups: forward passes of each stage's warm-up. hop: of a message
    to the neighbour [s]; once: what happens once a step.
    """

    passes: tuple[StagePasses, ...]
    table: Mapping[tuple[int, int, bool], Pass]
    warm_ups: tuple[int, ...]
    hop: float
    once: tuple[Span, ...]

    def spans(self, ends: int = 1, steady: int = 1) -> tuple[Span, ...]:
        """All spans, with so many passes drawn as one: those of warm-up and flush, and those between."""
        found: list[Span] = []
        for stage, passes in enumerate(self.passes):
            total, warm_up = len(passes.start), self.warm_ups[stage]
            for first, last, size in (
                (0, warm_up, ends),
                (warm_up, total - warm_up, steady),
                (total - warm_up, total, ends),
            ):
                if size == 1:
                    self._one_by_one(stage, first, last, found)
                elif first < last:
                    self._together(stage, np.arange(first, last, size), last, found)
        return (*found, *self.once)

    def fit(self, most: int) -> tuple[int, int]:
        """Passes drawn as one (in warm-up and flush, between them) so that there are about `most` spans at most."""
        each = 1 + (self.hop > 0) + max(len(one.parts) + len(one.beside) for one in self.table.values())
        room = max(most - len(self.once), len(self.passes)) / each
        outside = 2 * sum(self.warm_ups)
        inside = sum(len(passes.start) for passes in self.passes) - outside
        if outside + inside <= room:
            return 1, 1
        # A stage's last group of a phase may be short.
        room = max(room - 3 * len(self.passes), len(self.passes))
        if outside <= room / 2:
            return 1, max(2, math.ceil(inside / (room - outside)))
        size = max(2, math.ceil((outside + inside) / room))
        return size, size

    def totals(self) -> tuple[dict[tuple[str, str], float], ...]:
        """Seconds of every stream and name on each stage, without drawing the spans."""
        found = []
        for stage, passes in enumerate(self.passes):
            sums: dict[tuple[str, str], float] = {}
            code, count = np.unique(2 * passes.chunk + passes.forward, return_counts=True)
            for each, times in zip(code.tolist(), count.tolist(), strict=True):
                chunk, forward = each // 2, bool(each % 2)
                made = self.table[stage, chunk, forward]
                own = [Part("compute", FORWARD if forward else BACKWARD, made.compute)]
                own += [Part("pp", SENT[forward], self.hop)] * (
                    self.hop > 0 and self._sends(stage, chunk, forward)
                )
                for part in (*own, *made.beside, *made.parts):
                    key = part.stream, part.name
                    sums[key] = sums.get(key, 0.0) + times * part.seconds
            found.append(sums)
        for span in self.once:
            sums, key = found[span.stage], (span.stream, span.name)
            sums[key] = sums.get(key, 0.0) + span.duration
        return tuple(found)

    def _one_by_one(self, stage: int, first: int, last: int, found: list[Span]) -> None:
        passes, run = self.passes[stage], slice(first, last)
        columns = (passes.forward, passes.chunk, passes.microbatch, passes.start, passes.end)
        for forward, chunk, microbatch, start, end in zip(
            *(column[run].tolist() for column in columns), strict=True
        ):
            made = self.table[stage, chunk, forward]
            title = FORWARD if forward else BACKWARD
            found.append(Span(stage, "compute", title, start, made.compute, microbatch, chunk))
            for part in made.beside:
                found.append(Span(stage, part.stream, part.name, start, part.seconds, microbatch, chunk))
            clock = start + made.compute
            for part in made.parts:
                found.append(Span(stage, part.stream, part.name, clock, part.seconds, microbatch, chunk))
                clock += part.seconds
            if self.hop and self._sends(stage, chunk, forward):
                found.append(Span(stage, "pp", SENT[forward], end, self.hop, microbatch, chunk))

    def _sends(self, stage: int, chunk: int, forward: bool) -> bool:
        if forward:
            return stage < len(self.passes) - 1 or (stage, chunk + 1, True) in self.table
        return stage > 0 or chunk > 0

    def _together(self, stage: int, firsts: NDArray[np.intp], last: int, found: list[Span]) -> None:
        """Groups of passes, each up to the next of firsts: compute with waits between, then the sum of each part."""
        passes = self.passes[stage]
        ends = np.append(firsts[1:], last)
        parts = self._part_sums(stage, firsts, ends)
        forwards = np.add.reduceat(passes.forward[:last].astype(np.intp), firsts)
        inside = np.sum(list(parts.values()), axis=0) if parts else np.zeros(len(firsts))
        starts, clocks = passes.start[firsts], passes.end[ends - 1] - inside
        for index, (count, forward) in enumerate(
            zip((ends - firsts).tolist(), forwards.tolist(), strict=True)
        ):
            kinds = [FORWARD] * (forward > 0) + [BACKWARD] * (forward < count)
            name = f"{count} passes, {' and '.join(kinds)}"
            clock, start = float(clocks[index]), float(starts[index])
            found.append(Span(stage, "compute", name, start, clock - start))
            for (stream, title), sums in parts.items():
                seconds = float(sums[index])
                if seconds:
                    found.append(Span(stage, stream, title, clock, seconds))
                clock += seconds

    def _part_sums(
        self, stage: int, firsts: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> dict[tuple[str, str], NDArray[np.float64]]:
        """Seconds of each part (stream and name) in each group of passes."""
        passes, last = self.passes[stage], ends[-1]
        chunks = int(passes.chunk.max()) + 1
        code = 2 * passes.chunk[:last] + passes.forward[:last]
        rows: dict[tuple[str, str], NDArray[np.float64]] = {}
        for chunk in range(chunks):
            for forward in (False, True):
                for part in self.table[stage, chunk, forward].parts:
                    row = rows.setdefault((part.stream, part.name), np.zeros(2 * chunks))
                    row[2 * chunk + forward] += part.seconds
        return {key: np.add.reduceat(row[code], firsts) for key, row in rows.items()}
