"""What the steps of a log amount to: the steady median, its spread, trend and spikes, and what was left out."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from executor.logs.record import LM, RUN, Iteration, Log

# A leading line slower than this times the median of the rest belongs to the warm-up.
WARM = 1.10
# At most this share of the lines is warm-up; what is slow for longer is slow.
WARMUP_SHARE = 0.3
# A step after a checkpoint or an evaluation counts as disturbed above this times the median.
DISTURBED = 1.15
# A spike stands above the median by this share of it, and by this many times the scatter of the others.
SPIKE_SHARE, SPIKE_SCATTERS = 0.10, 5.0
# Standard deviations of a normal distribution in one median absolute deviation.
MAD = 1.4826


@dataclass(frozen=True)
class Trend:
    """How the steady steps change over the log: relative change from beginning to end, and whether that is sure."""

    change: float
    sure: bool


@dataclass
class Steady:
    """Steady steps of a log. seconds: their median [s]; scatter: robust standard deviation over median [1].

    left_out: why and how many lines were not counted. delays: by what came before them (checkpoint, evaluation,
    restart), what lines left out take beyond the median [s]. spikes: steps far above the median; period: steps between
    them, 0 when irregular; spike_loss: share of the steady time that spikes add.
    """

    seconds: float
    low: float
    high: float
    mean: float
    scatter: float
    rounding: float
    num_lines: int
    num_steps: int
    first: int
    last: int
    left_out: dict[str, int] = field(default_factory=dict)
    trend: Trend = Trend(0.0, False)
    spikes: list[int] = field(default_factory=list)
    period: int = 0
    spike_loss: float = 0.0
    warmup_seconds: float | None = None
    delays: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def steady(log: Log) -> Steady:
    """The steady part of a log. ValueError in one line when no line tells a time."""
    timed = [each for each in log.iterations if each.seconds and each.seconds > 0]
    if not timed:
        raise ValueError(
            f"{log.path} tells no step time on any of its {len(log.iterations)} iteration lines. "
            "NeMo prints it with TimingCallback, Megatron always, as a number above 0: give the log of another run."
        )
    untimed = len(log.iterations) - len(timed)
    timed, ramp = _last_batch(timed)
    timed, left_out, warm = (timed, {}, None) if _all_count(log, timed) else _without_warmup(timed)
    kept, disturbed, delays = _without_disturbed(log, timed)
    left_out |= disturbed
    left_out |= ramp
    if untimed and log.framework == LM:  # which prints a time on every line
        left_out["without a time"] = untimed
    values = [each.seconds or 0.0 for each in kept]
    median = statistics.median(values)
    scatter, limit = scatter_of(values)
    spikes = [each.step for each, value in zip(kept, values, strict=True) if value > limit]
    ordered = sorted(values)
    rest = [value for value in values if value <= limit]
    return Steady(
        seconds=median,
        low=ordered[int(0.05 * (len(ordered) - 1))],
        high=ordered[-1 - int(0.05 * (len(ordered) - 1))],
        mean=statistics.fmean(values),
        scatter=scatter / median,
        rounding=max(each.rounding for each in kept),
        num_lines=len(kept),
        num_steps=sum(each.span for each in kept),
        first=kept[0].step,
        last=kept[-1].step,
        left_out=left_out,
        trend=_trend([each.step for each in kept if (each.seconds or 0) <= limit], rest, scatter),
        spikes=spikes,
        period=_period(spikes, kept),
        spike_loss=max(0.0, statistics.fmean(values) / statistics.fmean(rest) - 1) if spikes else 0.0,
        warmup_seconds=warm,
        delays=delays,
    )


def scatter_of(values: Sequence[float]) -> tuple[float, float]:
    """Robust standard deviation of step times, and the time above which a step is a spike. [s]"""
    median = statistics.median(values)
    scatter = MAD * statistics.median(abs(value - median) for value in values)
    return scatter, median + max(SPIKE_SHARE * median, SPIKE_SCATTERS * scatter)


def _last_batch(timed: list[Iteration]) -> tuple[list[Iteration], dict[str, int]]:
    """Only lines with the last global batch: a ramp-up trains smaller ones first."""
    last = timed[-1].global_batch
    kept = [each for each in timed if each.global_batch in (None, last) or last is None]
    return kept, {"other batch": len(timed) - len(kept)} if len(kept) < len(timed) else {}


def _all_count(log: Log, timed: list[Iteration]) -> bool:
    """Whether no line is warm-up: a record marks those, and a run of `--warmup 0` has none."""
    return log.framework == RUN and not any(each.warm for each in timed)


def _without_warmup(timed: list[Iteration]) -> tuple[list[Iteration], dict[str, int], float | None]:
    """Without the leading slow lines; the first line, which holds compilation and set-up, never counts."""
    told = [each for each in timed if each.warm]
    if told:
        rest = [each for each in timed if not each.warm]
        return (rest or timed), {"warm-up": len(told)}, told[0].seconds
    if len(timed) < 2:
        return timed, {}, None
    later = statistics.median(each.seconds or 0.0 for each in timed[len(timed) // 2 :])
    most = max(1, int(WARMUP_SHARE * len(timed)))
    number = 1
    while number < most and (timed[number].seconds or 0.0) > WARM * later:
        number += 1
    if timed[0].span == 1 and timed[0].step == 1 and timed[1].span > 1 and number == 1 and len(timed) > 3:
        number = 2  # Megatron's line of step 1 does not reset the timer: the next line holds that step again
    return timed[number:], {"warm-up": number}, timed[0].seconds


def _without_disturbed(
    log: Log, timed: list[Iteration]
) -> tuple[list[Iteration], dict[str, int], dict[str, float]]:
    """Without slow lines that follow a checkpoint, an evaluation or a restart; their number and delay [s] by kind."""
    median = statistics.median(each.seconds or 0.0 for each in timed)
    after = {step: kind for kind, steps in log.marks.items() for step in steps}
    after |= {step - 1: "restart" for step in log.restarts}
    kept: list[Iteration] = []
    left_out: dict[str, int] = {}
    delays: dict[str, float] = {}
    for each in timed:
        # A mark made at step k disturbs the line that ends after k, when that line starts there.
        kind = next((after[step] for step in range(each.step - each.span, each.step) if step in after), "")
        if kind and (each.seconds or 0.0) > DISTURBED * median:
            left_out[f"after {kind}"] = left_out.get(f"after {kind}", 0) + 1
            delays[kind] = delays.get(kind, 0.0) + ((each.seconds or 0.0) - median) * each.span
        else:
            kept.append(each)
    return (kept or timed), left_out, delays


def _trend(steps: Sequence[int], values: Sequence[float], scatter: float) -> Trend:
    """Theil and Sen's slope over the log, and Mann and Kendall's test of it at three standard deviations."""
    if len(values) < 8:
        return Trend(0.0, False)
    stride = max(1, len(values) // 300)  # all pairs of at most a few hundred lines
    steps, values = steps[::stride], values[::stride]
    slopes, score = [], 0
    for late in range(1, len(values)):
        for early in range(late):
            slopes.append((values[late] - values[early]) / (steps[late] - steps[early]))
            score += (values[late] > values[early]) - (values[late] < values[early])
    n = len(values)
    deviation = (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
    median = statistics.median(values)
    change = statistics.median(slopes) * (steps[-1] - steps[0]) / median
    return Trend(change, abs(score) > 3 * deviation and abs(change) > max(0.02, scatter / median))


def _period(spikes: Sequence[int], kept: Sequence[Iteration]) -> int:
    """Steps between spikes when at least four come at one regular distance, else 0."""
    gaps = [late - early for early, late in itertools.pairwise(spikes)]
    if len(gaps) < 3:
        return 0
    typical = round(statistics.median(gaps))
    regular = sum(abs(gap - typical) <= max(kept[-1].span, 1) for gap in gaps)
    return typical if typical > 1 and regular >= 0.8 * len(gaps) else 0


def median_of(log: Log, name: str, kept: Steady) -> float | None:
    """Median of a field of the steady lines, None when no line tells it."""
    values = [
        value
        for each in log.iterations
        if kept.first <= each.step <= kept.last and (value := getattr(each, name)) is not None
    ]
    return statistics.median(values) if values else None


def spikes_by_timer(log: Log, kept: Steady, name: str) -> float:
    """Share of the time that spikes add which a timer of the same steps tells; 0 where no timer tells. [1]

    The timer's excess over its own median counts, on the slowest rank, at most the spike's excess over the step's.
    """
    told = {timer.step: timer.high for timer in log.timers.get(name, [])}
    times = {each.step: each.seconds or 0.0 for each in log.iterations}
    usual = statistics.median(told.values()) if told else 0.0
    added = {step: times[step] - kept.seconds for step in kept.spikes}
    explained = sum(min(max(told.get(step, usual) - usual, 0.0), extra) for step, extra in added.items())
    return explained / sum(added.values()) if added else 0.0


def timer_medians(log: Log, kept: Steady) -> dict[str, tuple[float | None, float]]:
    """Steady median of every timer: seconds of a step on the quickest rank (None when unsaid) and the slowest."""
    found = {}
    for name, timers in log.timers.items():
        steady_ones = [timer for timer in timers if kept.first <= timer.step <= kept.last]
        if not steady_ones:
            continue
        lows = [timer.low for timer in steady_ones if timer.low is not None]
        found[name] = (
            statistics.median(lows) if lows else None,
            statistics.median(timer.high for timer in steady_ones),
        )
    return found
