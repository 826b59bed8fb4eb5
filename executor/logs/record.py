"""What a training log tells, in one form for every framework. Base units: seconds, bytes, FLOP/s."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

MIB = 2**20
LM, BRIDGE, NEMO = "Megatron-LM", "Megatron-Bridge", "NeMo"
# The record of `advisor run`, which says itself what is warm-up.
RUN = "advisor run"


@dataclass
class Iteration:
    """One logged line: an average over `span` steps that end with `step`.

    rounding [s]: half of the last digit that the log prints. tflops [TFLOP/s] of one GPU, by the framework's own count.
    power [W] of one GPU. skipped and nan count steps among `span`. warm: the record itself
    calls it warm-up.
    """

    step: int
    seconds: float | None = None
    rounding: float = 0.0
    span: int = 1
    loss: float | None = None
    grad_norm: float | None = None
    tflops: float | None = None
    tokens_per_second_per_gpu: float | None = None
    power: float | None = None
    global_batch: int | None = None
    skipped: int = 0
    nan: int = 0
    warm: bool = False

    @property
    def loss_is_lost(self) -> bool:
        """Whether the loss is no number any more."""
        return self.loss is not None and not math.isfinite(self.loss)


@dataclass
class Memory:
    """One rank's memory as torch counts it. [byte]; None where the line does not say."""

    rank: int
    step: int
    allocated: float | None = None
    max_allocated: float | None = None
    reserved: float | None = None
    max_reserved: float | None = None
    device: float | None = None


@dataclass
class Timer:
    """One timer over one logged interval: seconds of a step on the quickest and on the slowest rank."""

    step: int
    low: float | None
    high: float


# Kinds of lines with which a run may end, and does where no step follows; the first of these is the evidence.
ENDS = ("killed", "traceback")


@dataclass
class Log:
    """Everything read from one file.

    timers: by Megatron's names. parameters: of every (tensor, pipeline) rank that told. arguments: a dump of
    Megatron-LM's arguments; configuration: lines of a YAML dump or summary of Megatron-Bridge, as overrides.
    marks: steps at which something other than training happened, by kind. counted: lines that mean trouble or
    tell the network, by kind, with the first of each in `examples`; since_step: those after the last step.
    stragglers: reports of Megatron's detector. world: ranks, planned: steps that the run was to take, vocab: tokens of
    the tokenizer before they are padded, num_microbatches: of a replica in one step; each 0 when the log does not say.
    told_rate: what a line of its own told before the line of its step [TFLOP/s of a GPU].
    """

    path: str
    framework: str = ""
    iterations: list[Iteration] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    timers: dict[str, list[Timer]] = field(default_factory=dict)
    parameters: dict[tuple[int, int], int] = field(default_factory=dict)
    theoretical: dict[str, float] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    configuration: list[str] = field(default_factory=list)
    yaml: list[str] = field(default_factory=list)
    marks: dict[str, list[int]] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)
    since_step: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    stragglers: list[dict[str, tuple[float, int]]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    world: int = 0
    planned: int = 0
    vocab: int = 0
    num_microbatches: int = 0
    told_rate: float | None = None
    restarts: list[int] = field(default_factory=list)
    lines: int = 0
    truncated: bool = False

    @property
    def last_step(self) -> int:
        """Of the line read last; 0 before the first."""
        return self.iterations[-1].step if self.iterations else 0

    @property
    def cold(self) -> bool:
        """Whether its only line holds the start of the run too: compilation, set-up, first messages."""
        return len(self.iterations) == 1 and not self.iterations[0].warm and self.framework != RUN

    def mark(self, kind: str, step: int | None = None) -> None:
        """Note that `kind` (checkpoint, evaluation) happened after the step read last."""
        self.marks.setdefault(kind, []).append(self.last_step if step is None else step)

    def count(self, kind: str, line: str) -> None:
        """Note one line of a kind, and keep the first as evidence: of what may end a run, since the last step."""
        if kind not in self.examples or (kind in ENDS and not self.since_step[kind]):
            self.examples[kind] = line[:300]
        self.counted[kind] += 1
        self.since_step[kind] += 1

    def add(self, found: Iteration) -> Iteration:
        """Append, or replace what was told of the same step: a bar drawn again, or several ranks printing."""
        if found.tflops is None:
            found.tflops, self.told_rate = self.told_rate, None
        last = self.iterations[-1] if self.iterations else None
        if last is not None and found.step == last.step:
            merge(last, found)
            return last
        if last is not None and found.step < last.step:
            earlier = next((each for each in reversed(self.iterations) if each.step == found.step), None)
            if earlier is not None and earlier.seconds == found.seconds and earlier.loss == found.loss:
                return earlier  # another rank's copy that comes late
            self.restarts.append(found.step)
            self.iterations = [each for each in self.iterations if each.step < found.step]
        self.iterations.append(found)
        self.since_step.clear()
        return found


def merge(old: Iteration, new: Iteration) -> None:
    """Fill in what the newer line tells of the same step."""
    for name, value in vars(new).items():
        if value is not None and name not in ("span", "warm", "skipped", "nan", "rounding"):
            setattr(old, name, value)
    if new.seconds is not None:
        old.rounding = new.rounding
    old.skipped, old.nan = max(old.skipped, new.skipped), max(old.nan, new.nan)


def number(text: str) -> float | None:
    """A number as frameworks print it, `nan` and `inf` included; None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None
