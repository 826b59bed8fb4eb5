"""A log file read into one record, whatever framework wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from executor.diagnose import load_rules
from executor.logs import megatron_bridge, megatron_lm, nemo, troubles
from executor.logs.lines import lines
from executor.logs.record import Log

# What ends a run before its first step, most telling first -> its symptom in diagnoses.toml.
CURES = {
    "out of memory": "out_of_memory",
    "xid": "collective_timeout",
    "kernel fault": "kernel_fault",
    "nccl timeout": "collective_timeout",
    "lost rank": "collective_timeout",
    "killed": "ended_early",
    "traceback": "ended_early",
}

# Lines by which a log of a framework that is not read here is known.
OTHERS = {
    "torchtitan": re.compile(r"\bstep: +\d+ .*\btps: [\d,]+"),
    "DeepSpeed": re.compile(r"\bRunningAvgSamplesPerSec="),
    "Hugging Face's Trainer": re.compile(r"\{'loss': .*'learning_rate': .*'epoch': "),
}


def read_log(path: str | Path, progress: Callable[[float, str], None] | None = None) -> Log:
    """The record of a log. ValueError in one line when the file is none of Megatron-LM, Megatron-Bridge or NeMo.

    The file is streamed, so that its size does not matter. progress is told the share read and what, now
    and then.
    """
    file, other = Path(path).expanduser(), ""
    log, size = Log(str(path)), 0
    readers = (megatron_bridge.Reader(), megatron_lm.Reader(), nemo.Reader())
    for line in lines(file):
        log.lines += 1
        size += len(line) + 1
        if progress and not log.lines % 20_000:
            progress(min(1.0, size / max(1, file.stat().st_size)), f"{log.lines:,} lines of {path}")
        for reader in readers:
            if reader.feed(line, log):
                break
        else:
            troubles.feed(line, log)
            if not log.framework and not other:
                other = next((name for name, known in OTHERS.items() if known.search(line)), "")
    for reader in readers:
        reader.finish(log)
    if not log.lines:
        raise ValueError(f"{path} holds no line of text. Check the path, or wait for the first step.")
    if not log.iterations:
        raise ValueError(_none(log, other))
    return log


def _ways_out(rule: str) -> str:
    """What the symptom of that name is told to do about it."""
    return next(each.do for each in load_rules() if each.id == rule)


def _none(log: Log, other: str) -> str:
    """Why a file without iterations is of no use, as precisely as its lines allow. other: whose log it is, if known."""
    formats = "`elapsed time per iteration (ms)` of Megatron or `train_step_timing in s` of NeMo"
    trouble = next((kind for kind in CURES if log.counted[kind]), "")
    if trouble:
        ends = f"of {other} tells of trouble" if other else "ends before the first iteration"
        return (
            f"{log.path} {ends}: {trouble} (`{log.examples[trouble][:120].strip()}`). "
            f"Mend that first. {_ways_out(CURES[trouble])}"
        )
    if log.framework:
        return (
            f"{log.path} is a log of {log.framework} without one iteration: it ended before the first, or "
            "--log-interval is longer than the run. Try --log-interval 1."
        )
    if other:
        return (
            f"{log.path} is a log of {other}: here those of Megatron-LM, Megatron-Bridge and NeMo are read. Give a "
            "trace of its run by torch.profiler in its place; with --plan FILE it is set beside a plan."
        )
    return (
        f"{log.path} is no training log that is known here: none of its {log.lines:,} lines holds {formats}. "
        "Give the output of the rank that prints the steps (the last one in Megatron-LM)."
    )
