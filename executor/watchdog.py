"""Sees that a run no longer moves, and finds which rank holds the others up, and where.

Ranks show a pulse in the record at every step (workers/last_words.py). When none of them has moved for
`patience` seconds, each is asked for its Python stacks: those inside a collective wait for the one that is not.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

# Seconds without a pulse: before the first step, in which libraries load and the model is built; and after it.
PATIENCE_TO_START = 300.0
PATIENCE = 60.0
# Seconds in which ranks must show themselves at all: torchrun alone, and where nodes wait for each other. torchrun
# itself gives up after 600 s, but not where something else answers on its port.
PATIENCE_TO_MEET = 180.0
PATIENCE_OF_NODES = 660.0
# A step may take this many times the longest so far.
SLOWER = 10.0
# Seconds that a rank gets to answer with its stacks.
ANSWER = 3.0

# Where a frame of Megatron-Core stands tells whose collective it is. First match from the innermost frame out.
GROUPS = (
    ("pipeline_parallel/", "the pipeline stages"),
    ("distributed/param_and_grad_buffer", "the data-parallel group"),
    ("distributed/finalize_model_grads", "the data-parallel group"),
    ("optimizer/clip_grads", "all ranks of the model"),
    ("transformer/moe/", "the expert-parallel group"),
    ("tensor_parallel/", "the tensor-parallel group"),
    ("optimizer/", "the data-parallel group"),
)
# Names of functions that tell the phase, innermost first as frames come.
PHASES = {
    "backward_step": "backward",
    "forward_step": "forward",
    "step": "the optimizer",
    "gather": "the end of a step",
    "batches": "reading data",
    "build": "building the model",
    "init_process_group": "joining the process group",
    "initialize_model_parallel": "making process groups",
}
# Functions of torch.distributed that wrap others and say nothing.
_WRAPPERS = {"wrapper", "_coalescing_manager", "_exception_logger", "timed", "communication", "wait"}
# Files whose functions send and wait; synchronize of torch.cuda waits for NCCL's kernels.
COMMUNICATES = ("distributed/distributed_c10d.py", "distributed/c10d_logger.py", "workers/stopwatch.py")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass(frozen=True)
class Whereabouts:
    """One rank at the time of a hang. state: the kernel's letter; collective: None where it is in none."""

    rank: int
    state: str
    doing: str
    phase: str | None
    collective: str | None
    group: str | None
    frame: str | None

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        if self.state == "T":
            return "is stopped (SIGSTOP)"
        if self.state == "D":
            return "sleeps inside a driver or a disk (state D)"
        where = f" in {self.phase}" if self.phase else ""
        if self.collective:
            with_whom = f" of {self.group}" if self.group else ""
            return f"waits in {self.collective}{with_whom}{where}"
        if self.frame is None:
            return f"gives no answer{where}"
        return f"hangs{where} at {self.frame}"


class Watchdog:
    """Looks at the pulses of one record; `look` names the cause when they stand still."""

    def __init__(
        self,
        folder: Path,
        patience: float | None = None,
        to_start: float = PATIENCE_TO_START,
        to_meet: float = PATIENCE_TO_MEET,
    ) -> None:
        self.folder = folder
        self.patience = patience if patience is not None else asked_patience()
        self.to_start, self.to_meet = to_start, to_meet
        self._began = time.monotonic()
        self._last: tuple[float, ...] = ()
        self._moved = time.monotonic()
        self._longest = 0.0

    def look(self) -> str | None:
        """One line when the run hangs, else None. Cheap enough for five times a second."""
        pulses = read_pulses(self.folder)
        if not pulses and time.monotonic() - self._began > self.to_meet:
            return f"no rank began within {self.to_meet:.0f} s: nodes do not find each other, or something else answers"
        # Only ranks that tell how far they are can be missed: others run to their limit.
        if not any(doing for _, doing, _ in pulses.values()):
            self._moved = time.monotonic()
            return None
        moments = tuple(sorted(moment for _, _, moment in pulses.values()))
        now = time.monotonic()
        started = any(doing.startswith("step") for _, doing, _ in pulses.values())
        if moments != self._last:
            if started:
                self._longest = max(self._longest, now - self._moved)
            self._last, self._moved = moments, now
            return None
        # ADVISOR_PATIENCE is for steps: libraries take as long as they take.
        usual = self.patience or max(PATIENCE, SLOWER * self._longest)
        allowed = usual if started else max(self.to_start, self.patience or 0.0)
        if now - self._moved < allowed:
            return None
        return f"no progress for {allowed:.0f} s: {culprit(ask(self.folder))}"


def read_pulses(folder: Path) -> dict[int, tuple[int, str, float]]:
    """Process id, how far it came, and the pulse's time in seconds, by rank of this machine."""
    pulses = {}
    for path in folder.glob("pulse-*"):
        try:
            moment = path.stat().st_mtime_ns / 1e9
            process, host, doing = path.read_text().splitlines()[:3]
            if host == socket.gethostname():
                pulses[int(path.name.removeprefix("pulse-"))] = (int(process), doing.strip(), moment)
        except (OSError, ValueError):
            continue
    return pulses


def asked_patience() -> float | None:
    """Seconds of ADVISOR_PATIENCE, None where it is not set. ValueError for what is no time."""
    given = os.environ.get("ADVISOR_PATIENCE")
    if not given:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"ADVISOR_PATIENCE={given} is not a number of seconds above 0. Try ADVISOR_PATIENCE=60, or unset it."
        )
    return seconds


def ask(folder: Path) -> list[Whereabouts]:
    """Every rank's place: from the kernel, and from the stacks that it writes when it still can."""
    pulses = read_pulses(folder)
    sizes = {rank: _size(folder / f"stack-{rank}.txt") for rank in pulses}
    states = {rank: state(process) for rank, (process, _, _) in pulses.items()}
    for rank, (process, _, _) in pulses.items():
        if states[rank] not in ("T", "D", ""):
            os.kill(process, signal.SIGUSR1)
    end = time.monotonic() + ANSWER
    waiting = {rank for rank in pulses if states[rank] not in ("T", "D", "")}
    while waiting and time.monotonic() < end:
        time.sleep(0.1)
        waiting = {rank for rank in waiting if _size(folder / f"stack-{rank}.txt") == sizes[rank]}
    time.sleep(0.2)  # a stack that begins to be written is whole soon
    found = []
    for rank, (_, doing, _) in sorted(pulses.items()):
        path = folder / f"stack-{rank}.txt"
        text = path.read_text(errors="replace")[sizes[rank] :] if _size(path) > sizes[rank] else ""
        found.append(locate(rank, states[rank], doing, text))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def state(process: int) -> str:
    """The kernel's letter for a process of this machine: R, S, D, T, Z; empty when it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def locate(rank: int, letter: str, doing: str, stacks: str) -> Whereabouts:
    """A rank's place from what faulthandler wrote: innermost frames come first."""
    # A collective may stand in autograd's thread; ours is the one that passed through a worker.
    threads = [_FRAME.findall(part) for part in re.split(r"^(?:Current t|T)hread ", stacks, flags=re.M)]
    threads = [frames for frames in threads if any("/workers/" in path for path, _, _ in frames)] or threads
    frames = [frame for frame in max(threads, key=len, default=[]) if not frame[0].startswith("<")]
    group = next((words for path, _, _ in frames for part, words in GROUPS if f"core/{part}" in path), None)
    phase = next((PHASES[name] for _, _, name in frames if name in PHASES), None)
    place = None
    if frames:
        path, line, name = frames[0]
        place = f"{name} ({'/'.join(Path(path).parts[-2:])}:{line})"
    return Whereabouts(rank, letter, doing, phase, _collective(frames), group, place)


def _collective(frames: list[tuple[str, str, str]]) -> str | None:
    """The collective, or the wait for one, in which frames end; None where they end elsewhere."""
    own = [name for path, _, name in frames if path.endswith(COMMUNICATES)]
    # Innermost first: only a frame at the end counts, one further out is a caller such as gather.
    if not frames or not frames[0][0].endswith((*COMMUNICATES, "torch/_tensor.py", "cuda/__init__.py")):
        return None
    named = [name for name in own if name not in _WRAPPERS]
    if named and named[-1] in PHASES:
        return None  # joining a group is a phase of its own
    return named[-1] if named else "a wait for a message"


def culprit(ranks: list[Whereabouts]) -> str:
    """Which rank holds the others up, and where those wait."""
    gone = [each for each in ranks if each.state in ("", "Z")]
    still = [each for each in ranks if each.state in ("T", "D")]
    free = [each for each in ranks if each not in gone + still and each.collective is None]
    waiting = [each for each in ranks if each not in gone + still and each.collective is not None]
    after = waiting[0].doing if waiting else ranks[0].doing if ranks else ""
    guilty = gone or still or free
    if guilty:
        first = guilty[0]
        said = f"rank {first.rank} {'is gone' if first in gone else first.place}"
        more = f" (and {_who(guilty[1:])} likewise)" if guilty[1:] else ""
        others = f"; {_who(waiting)} {waiting[0].place.replace('waits', _verb(waiting))}" if waiting else ""
        return f"{said}{more}{others}, after {after or 'the start'}"
    if len({(each.collective, each.group) for each in waiting}) > 1:
        kinds = "; ".join(f"rank {each.rank} {each.place}" for each in waiting[:4])
        return f"ranks wait for different things, after {after or 'the start'}: {kinds}"
    if not waiting:
        return "no rank of this node shows a pulse"
    place = waiting[0].place.replace("waits", _verb(waiting))
    return f"{_who(waiting)} {place}, after {after or 'the start'}: a rank of another node hangs or is lost"


def _who(ranks: list[Whereabouts]) -> str:
    names = ", ".join(str(each.rank) for each in ranks[:4]) + (", ..." if len(ranks) > 4 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _verb(ranks: list[Whereabouts]) -> str:
    return "wait" if len(ranks) > 1 else "waits"
