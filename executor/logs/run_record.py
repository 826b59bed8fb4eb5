"""The record of `advisor run` in the form of a log, so that one set of rules serves both."""

from __future__ import annotations

from pathlib import Path

from executor.job_file import way_on
from executor.logs.record import RUN, Iteration, Log, Memory, Timer
from executor.record import read_memory, read_steps


def log_of_run(folder: str | Path) -> Log:
    """Steps, phases and memory of a record; also of one that a kill cut short. ValueError when it holds none."""
    home = Path(folder)
    steps = [each for each in read_steps(home) if isinstance(each.get("seconds"), int | float)]
    if not steps:
        if not (home / "job.json").is_file():
            raise ValueError(
                f"{folder} is no run record: it holds no job.json. `advisor run` tells the folder of its record."
            )
        raise ValueError(f"{folder} holds no finished step. {way_on(home)}")
    log = Log(str(folder), framework=RUN)
    for each in steps:
        number = int(each["step"]) + 1
        log.iterations.append(
            Iteration(number, float(each["seconds"]), loss=each.get("loss"), warm=bool(each.get("warmup")))
        )
        for name, seconds in (each.get("phases") or {}).items():
            if isinstance(seconds, int | float):
                log.timers.setdefault(name, []).append(Timer(number, None, float(seconds)))
    for rank, entry in enumerate(read_memory(home)):
        peak = max(0, entry.get("peak_bytes", 0) - entry.get("base_bytes", 0))
        log.memory.append(Memory(int(entry.get("rank", rank)), log.last_step, max_allocated=peak))
    return log
