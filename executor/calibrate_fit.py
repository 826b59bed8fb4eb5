"""Constants of a step learned from runs: what kernels measured alone do not show.

A run's parts (compute, optimizer, communication, the whole step) are compared with the cost model's on
log(predicted / measured), robustly, and constants move from what the profile says only as far as the runs ask for:
the beliefs are the profile's values with the widths below, so that few runs do not overfit. The loss is of the
kind that the shipped constants are fitted with (`costmodel.robust`, tools/fit_solver.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.robust import STEP, TRIALS, Belief, Numbers, fit
from costmodel.step_constants import PRIORS
from costmodel.symbols import COLLECTIVES
from executor.calibrate_records import Modelled, Observed
from hardware_db import Cluster

# Runs of one machine repeat within some per cent; what lies beyond is an outlier.
SCATTER = 0.08
# A constant that moves no part of any run by more than this (log of it for log of the constant) keeps its value.
MOVES = 0.01
# Fewer runs that differ say nothing of how far a further one may lie.
ENOUGH_RUNS = 5
# 90 % over 50 % quantile of the size of a normal error.
QUANTILES = 1.645 / 0.6745
# Without one run the optimum lies near that of all.
FEW_TRIALS = 6


@dataclass(frozen=True)
class Constant:
    """One that runs can teach. symbols: inputs that it multiplies or is; places: its leaves under [calibration].

    width: relative width of the belief; start: value to begin with where the profile has zero, in base units.
    unit, per: as the leaf is written, and its base units. where: "cpu", "gpu" or "". factor: it multiplies what its
    leaves have, and begins at 1.
    """

    name: str
    symbols: tuple[str, ...]
    places: tuple[tuple[str, ...], ...]
    width: float
    unit: str = "1"
    per: float = 1.0
    start: float = 0.0
    where: str = ""
    low: float = 0.1
    high: float = 10.0
    factor: bool = False


# Latencies of every kind of message: a processor has one protocol, so that both forms of the formula are the same.
LATENCIES = tuple(
    (kind, name)
    for kind in (*COLLECTIVES, "send_recv")
    for name in ("latency", "low_latency")
    if (kind, name) != ("send_recv", "low_latency")
)

CONSTANTS = (
    Constant("gemm_rate", ("linear_scale", "gemm_scale"), (("step", "gemm_rate"),), 0.15),
    Constant("wgrad_rate", ("wgrad_scale",), (("step", "wgrad_rate"),), 0.1),
    Constant("attention_rate", ("attention_scale",), (("step", "attention_rate"),), 0.3),
    # One rate of both kinds: a few runs of one machine do not tell norms from activations.
    Constant(
        "elementwise_rate",
        ("elementwise_scale", "tuned_stream_scale"),
        (("step", "elementwise_rate"), ("step", "tuned_stream_rate")),
        0.4,
    ),
    Constant("stream", ("stream_fraction",), (("memory", "stream"),), 0.4),
    Constant(
        "kernel_launch",
        ("kernel_launch",),
        (("host", "kernel_launch"),),
        1.0,
        "us",
        1e-6,
        2e-5,
        "cpu",
        0.1,
        30.0,
    ),
    Constant("pass", ("pass_host",), (("host", "pass"),), 1.5, "us", 1e-6, 5e-4, "cpu", 1e-3, 100.0),
    Constant(
        "layer_update",
        ("layer_update_host",),
        (("host", "layer_update"),),
        1.5,
        "us",
        1e-6,
        3e-4,
        "cpu",
        1e-3,
        100.0,
    ),
    Constant("host_kernel", ("host_kernel",), (("step", "host_kernel"),), 0.5, "us", 1e-6, 25e-6, "gpu"),
    Constant("intra_rate", ("intra_scale",), (("step", "intra_rate"),), 0.3),
    Constant("inter_rate", ("inter_scale",), (("step", "inter_rate"),), 0.3, where="gpu"),
    Constant("one_card_rate", ("one_card_scale",), (("step", "one_card_rate"),), 0.3, where="gpu"),
    Constant("overlap_slowdown", ("overlap_slowdown",), (("step", "overlap_slowdown"),), 0.5, where="gpu"),
    Constant("straggler", ("straggler",), (("step", "straggler"),), 0.5, where="gpu", start=0.004),
    Constant("lateness", ("straggler",), (("step", "straggler"),), 1.0, where="cpu", start=0.01, high=30.0),
    Constant(
        "expert_wait", ("expert_wait",), (("step", "expert_wait"),), 1.5, "us", 1e-6, 1e-3, "cpu", 1e-2, 100.0
    ),
    Constant("step_overhead", ("step_overhead",), (("step", "step_overhead"),), 1.0, "ms", 1e-3, 5e-3),
    Constant("grouped_rate", ("grouped_scale",), (("step", "grouped_rate"),), 0.3),
    Constant("expert_kernels", ("expert_kernels",), (("step", "expert_kernels"),), 0.7),
    Constant(
        "message_time",
        tuple(f"{kind}_{name}" for kind, name in LATENCIES),
        tuple(("collective", kind, name) for kind, name in LATENCIES),
        1.0,
        where="cpu",
        high=50.0,
        factor=True,
    ),
)


# A constant that the runs leave as uncertain as this share of its belief is not written: they did not teach it.
TAUGHT = 0.9


@dataclass(frozen=True)
class Learned:
    """One constant before and after, in base units; error: standard error of its logarithm; runs: that move it."""

    constant: Constant
    before: float
    after: float
    error: float
    runs: int

    @property
    def taught(self) -> bool:
        """Whether the runs narrowed it: one that stays as open as its belief is not written."""
        return self.error <= TAUGHT * self.constant.width


@dataclass(frozen=True)
class Outcome:
    """What runs taught, and log(predicted / measured) of each run's step before and after it.

    apart: of each run by constants learned without it, empty for few runs.
    """

    learned: tuple[Learned, ...]
    before: dict[str, float]
    after: dict[str, float]
    apart: dict[str, float] = field(default_factory=dict)

    @property
    def half_width(self) -> float:
        """Half of an interval that nine of ten further runs lie in, 0 for few runs. [log]

        The median error of the runs told apart, times what a normal distribution has between its median and its 90 %
        quantile: probes are extremes by design, and the few that only themselves could teach say nothing of a run.
        """
        if not self.apart:
            return 0.0
        return QUANTILES * float(np.median(np.abs(list(self.apart.values()))))

    @staticmethod
    def median(errors: dict[str, float]) -> float:
        """Median |predicted / measured - 1|. [1]"""
        return float(np.median(np.abs(np.expm1(list(errors.values())))))


def learn(runs: Sequence[Observed], cluster: Cluster, stack: str | None = None) -> Outcome:
    """Fit the constants that these runs move, from the values that the cluster's profile has."""
    return _learn([Modelled(run, cluster, stack) for run in runs], cluster)


def tell_apart(
    outcome: Outcome, runs: Sequence[Observed], cluster: Cluster, stack: str | None = None
) -> Outcome:
    """The outcome with each run told by constants that were learned without it, where there are enough runs.

    Repeats of a run (the same model, workload and plan) are left out with it and count as one: what they teach is how
    well a run repeats, not how far another one may lie.
    """
    models = [Modelled(run, cluster, stack) for run in runs]
    apart: dict[str, float] = {}
    near = {each.constant.name: each.after for each in outcome.learned}
    jobs: list[list[Modelled]] = []
    for one in models:
        same = next((job for job in jobs if job[0].run.same_job(one.run)), None)
        if same is None:
            jobs.append([one])
        else:
            same.append(one)
    for job in jobs if len(jobs) >= ENOUGH_RUNS else ():
        learned = _learn([each for each in models if each not in job], cluster, near).learned
        apart |= _step_errors([each.constant for each in learned], [each.after for each in learned], job)
    return replace(outcome, apart=apart)


def _learn(models: Sequence[Modelled], cluster: Cluster, near: Mapping[str, float] | None = None) -> Outcome:
    """near: values of constants that are about the optimum, by name."""
    kind = "cpu" if cluster.gpu.generation == "cpu" else "gpu"
    chosen = [constant for constant in CONSTANTS if constant.where in ("", kind)]
    present = [_present(constant, models) for constant in chosen]
    begin = [value or constant.start for constant, value in zip(chosen, present, strict=True)]
    moved = _moved(chosen, begin, models)
    kept = [index for index, number in enumerate(moved) if number]
    chosen, present, begin = ([each[index] for index in kept] for each in (chosen, present, begin))
    if not chosen:
        errors = _step_errors([], [], models)
        return Outcome((), errors, errors)

    def residuals(values: Numbers) -> Numbers:
        return _residuals(chosen, values, models)

    beliefs = [
        Belief(value, constant.width, constant.low * value, constant.high * value)
        for constant, value in zip(chosen, begin, strict=True)
    ]
    start = [(near or {}).get(constant.name, value) for constant, value in zip(chosen, begin, strict=True)]
    found = fit(residuals, beliefs, SCATTER, start, TRIALS if near is None else FEW_TRIALS)
    learned = tuple(
        Learned(constant, before, float(after), float(error), moved[index])
        for constant, before, after, error, index in zip(
            chosen, present, found.values, found.errors, kept, strict=True
        )
    )
    return Outcome(
        learned, _step_errors(chosen, present, models), _step_errors(chosen, list(found.values), models)
    )


def _present(constant: Constant, models: Sequence[Modelled]) -> float:
    """Its value in the profile: that of its first symbol, 0 where no run has it."""
    symbol = constant.symbols[0]
    if constant.factor:
        return float(any(symbol in each.inputs for each in models))
    return float(next((each.inputs[symbol] for each in models if symbol in each.inputs), 0.0))


def _changed(constants: Sequence[Constant], values: Numbers, model: Modelled) -> dict[str, Numbers]:
    return {
        symbol: value * model.inputs[symbol] if constant.factor else value
        for constant, value in zip(constants, values, strict=True)
        for symbol in constant.symbols
        if symbol in model.inputs
    }


def _residuals(constants: Sequence[Constant], values: Numbers, models: Sequence[Modelled]) -> Numbers:
    """Weighted log(predicted / measured) of every run's parts, for each column of values."""
    found = []
    for each in models:
        seconds = each.seconds(_changed(constants, values, each))
        for part, weight in each.run.weights().items():
            # What the model has no time for at all cannot be moved by a rate.
            row = np.log(np.maximum(seconds[part], 1e-12) / each.run.seconds[part])
            found.append(weight * np.where(seconds[part] > 0, row, 0.0) * np.ones(values.shape[1]))
    return np.array(found)


def _moved(constants: Sequence[Constant], begin: Sequence[float], models: Sequence[Modelled]) -> list[int]:
    """Runs that each constant moves."""
    point = np.log(begin)[:, None]
    sets = np.exp(np.column_stack([point, point + STEP * np.eye(len(begin))]))
    counts = np.zeros(len(begin), dtype=int)
    for each in models:
        every = _residuals(constants, sets, [each])
        counts += np.abs(every[:, 1:] - every[:, :1]).max(axis=0) / STEP > MOVES
    return [int(count) for count in counts]


def _step_errors(
    constants: Sequence[Constant], values: Sequence[float], models: Sequence[Modelled]
) -> dict[str, float]:
    """log(predicted / measured) of each run's step, or of its compute where only that was seen."""
    found = {}
    for each in models:
        changed = _changed(constants, np.array(values), each)
        part = "step" if "step" in each.run.seconds else "compute"
        found[each.run.name] = float(np.log(each.seconds(changed)[part] / each.run.seconds[part]))
    return found


def meaning(constant: Constant) -> str:
    """What a constant is, in words."""
    words = {
        "stream": "optimizer's bandwidth over a copy's",
        "kernel_launch": "host time of one kernel's worth of operations, eager",
        "pass": "host time of a micro-batch's embedding, logits and loss",
        "layer_update": "host time of the optimizer for one layer",
        "lateness": PRIORS["straggler"].meaning,
        "message_time": "latency of messages in a step over that back to back",
    }
    return words.get(constant.name) or PRIORS[constant.name].meaning
