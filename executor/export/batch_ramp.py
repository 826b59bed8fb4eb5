"""Batches that grow in the course of training, read back: a plan has the full one, and a line tells of the others.

Sources: Megatron-Core 0.16.1 and 0.17.1, num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator, and
training.py, update_train_iters; 0.18.2 and 0.19.2, StepBatchsizeNumMicroBatchesCalculator, whose thresholds are tokens
(global_vars.py hands it the sequence length) and beside which --rampup-batch-size "is ignored".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

RAMP, SCHEDULE = "--rampup-batch-size", "--step-batch-size-schedule"
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
IGNORED = f"Megatron-LM from 0.18 on ignores it and wants {SCHEDULE}"


@dataclass(frozen=True)
class Ramp:
    """said: as the text has it. levels: samples from which on a batch holds, and the batch; the last is the full."""

    said: str
    levels: tuple[tuple[Fraction, int], ...]

    @property
    def full(self) -> int:
        """The batch at the end. [1]"""
        return self.levels[-1][1]

    @property
    def smaller(self) -> tuple[int, ...]:
        """The batches before the full one. [1]"""
        return tuple(batch for _, batch in self.levels[:-1])

    def before(self, samples: int | None = None) -> tuple[int, int]:
        """Samples and steps that are trained below the full batch, within `samples` of the training if known. [1]"""
        consumed = steps = 0
        for (_, batch), (until, _) in zip(self.levels, self.levels[1:], strict=False):
            end = until if samples is None else min(until, Fraction(samples))
            more = max(0, math.ceil((end - consumed) / batch))
            consumed, steps = consumed + more * batch, steps + more
        return consumed, steps


def ramp_of(values: Sequence[Any] | None, full: Any, name: str = RAMP) -> Ramp | None:
    """The ramp of three numbers up to the batch `full`; None without it. ValueError for what Megatron-LM refuses."""
    if not values or not isinstance(full, int):
        return None
    said = f"{name} {' '.join(map(str, values))}"
    try:
        start, increment, samples = (int(value) for value in values)
    except ValueError:
        raise ValueError(
            f"{said}: three whole numbers are START INCREMENT SAMPLES. Try {name} 32 32 100000."
        ) from None
    if start <= 0 or increment <= 0 or samples <= 0 or start >= full or (full - start) % increment:
        raise ValueError(
            f"{said} does not lead to the global batch {full}: from START below it, it wants a whole number of "
            f"positive INCREMENTs, and SAMPLES. Try {name} {max(1, full // 8)} {max(1, full // 8)} 100000."
        )
    steps = (full - start) // increment
    levels = ((Fraction(number * samples, steps), start + number * increment) for number in range(steps + 1))
    return Ramp(said, tuple(levels))


def schedule_of(text: str | None, seq_len: Any) -> Ramp | None:
    """The ramp of a schedule such as "0:768 250B:1536", thresholds in tokens; None without it."""
    if not text or not isinstance(seq_len, int):
        return None
    try:
        pairs = [entry.split(":") for entry in text.replace(",", " ").split()]
        levels = sorted((Fraction(_number(tokens) // seq_len), _number(batch)) for tokens, batch in pairs)
    except ValueError:
        levels = []
    starts = [start for start, _ in levels]
    if (
        not levels
        or starts[0] != 0
        or len(set(starts)) < len(starts)
        or min(batch for _, batch in levels) < 1
    ):
        raise ValueError(
            f'{SCHEDULE} "{text}" is no schedule: it wants TOKENS:BATCH, the first from 0 on. Try "0:768 250B:1536".'
        )
    return Ramp(f'{SCHEDULE} "{text}"', tuple(levels))


def _number(text: str) -> int:
    text = text.strip().upper()
    times = SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1] if times > 1 else text) * times)


def ramp_line(ramp: Ramp, samples: int | None = None, steps: int | None = None) -> str:
    """How much is trained below the full batch, and the steps that it takes.

    samples, steps: of the whole training, where one of them is known.
    """
    if not ramp.smaller:
        return f"{ramp.said}: one batch throughout, {ramp.full:,} sequences"
    if samples is None and steps is not None:
        ramped, number = ramp.before()
        samples = ramped + (steps - number) * ramp.full if steps > number else None
    consumed, number = ramp.before(samples)
    plain = math.ceil(consumed / ramp.full)
    share = f" ({100 * min(1, consumed / samples):.3g} % of {samples:,})" if samples else ""
    never = samples is not None and samples <= ramp.levels[-1][0]
    low, high = min(ramp.smaller), max(ramp.smaller)
    sizes = f"{low:,} to {high:,} sequences" if low < high else f"{low:,} sequences"
    return (
        f"{ramp.said}: the step of the full batch, {ramp.full:,}, is told"
        f"{', which this training never reaches' if never else ''}; before it {consumed:,} samples{share} are trained "
        f"in {number:,} steps of {sizes}, where {plain:,} of the full batch would do, {number - plain:,} fewer. "
        f"--global-batch {low} prices the first steps"
    )


def uneven(batches: Sequence[int], replicas: int) -> str:
    """A line where smaller batches are no multiple of micro_batch x dp, at which Megatron-LM stops; "" if all are."""
    wrong = [batch for batch in batches if batch % replicas]
    if not wrong:
        return ""
    few = ", ".join(map(str, wrong[:3])) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return (
        f"Batches of the ramp are no multiple of micro_batch x dp = {replicas}, where Megatron-LM stops: {few}. Start "
        f"and grow by multiples of {replicas}, or add --decrease-batch-size-if-needed, which rounds them down."
    )


def ramp_in(given: Mapping[str, list[str]], fields: Mapping[str, Any]) -> Ramp | None:
    """The ramp of Megatron-LM's arguments. ValueError where both ways, or a batch beside a schedule, are said."""
    text = " ".join(given.get(SCHEDULE, []))
    if text and "--global-batch-size" in given:
        raise ValueError(
            f"{SCHEDULE} with --global-batch-size: Megatron-LM refuses the two together. Leave out one of them."
        )
    return schedule_of(text, fields.get("seq_length")) or ramp_of(
        given.get(RAMP), fields.get("global_batch_size")
    )
