"""Lines of NeMo 2 and Lightning: the printer's lines and the drawn bar, once for every step.

Formats: nemo/lightning/pytorch/callbacks/progress_printer.py (`Training epoch 0, iteration 12/99 | lr: ... |
train_step_timing in s: 46.84`, four significant figures, means over its interval but for global_step) and
flops_callback.py of nemo-toolkit 2.4.0; Lightning's bar (tqdm) writes `name=value` in brackets.
"""

from __future__ import annotations

import math
import re

from executor.logs.record import NEMO, Iteration, Log, Memory, number

PRINTED = re.compile(r"Training epoch (\d+), iteration (\d+)/(-?\d+|inf|-?nan)\s*\|(.*)")
PAIR = re.compile(r"\s*([A-Za-z_][\w/ ]*?)\s*:\s*([^|]+?)\s*(?:\||$)")
WRAPPED = re.compile(r"^\s*[A-Za-z_][\w/ ]*: \S+(?: \||$)")
DRAWN = re.compile(r"^(?:Epoch|Training)\b.*\|\s*(\d+)/(\d+|\?)\s*\[(.*)\]?\s*$")
DRAWN_PAIR = re.compile(r"([A-Za-z_][\w/]*(?: in s)?)=([-+\w.]+)")
LOOSE = re.compile(r"train_step_timing in s\s*[:=]\s*([\d.eE+-]+)")
LOOSE_STEP = re.compile(r"global_step\s*[:=]\s*(\d+)")
TIMING = "train_step_timing in s"
VALIDATION = re.compile(r"^(?:Validation(?: DataLoader \d+)?\b|.*\bvalidation: iteration)")
CHECKPOINT = re.compile(r"Global Checkpoint Save\s*:.*|Saving checkpoint|Scheduled async checkpoint save")


class Reader:
    """Reads line by line; a bar that is drawn again replaces its step. A line that was wrapped ends in `|`."""

    def __init__(self) -> None:
        self.begun = ""

    def feed(self, line: str, log: Log) -> bool:
        """Whether the line was one of NeMo's."""
        if self.begun and WRAPPED.match(line):
            line, self.begun = f"{self.begun} {line}", ""
        if line.endswith("|") and TIMING not in line and PRINTED.search(line):
            self.begun = line
            return True
        self.begun = ""
        if "Training epoch" in line and (found := PRINTED.search(line)):
            fields = dict(PAIR.findall(found[4]))
            _add(log, fields, int(found[2]) + 1)
            log.planned = int(found[3]) + 1 if found[3].isdigit() else 0
            return True
        if TIMING in line or "reduced_train_loss=" in line:
            drawn = DRAWN.search(line)
            fields = dict(DRAWN_PAIR.findall(drawn[3] if drawn else line))
            fields |= {name: value for name, value in PAIR.findall(line) if name == TIMING}
            loose = LOOSE.search(line)
            if loose:
                fields.setdefault(TIMING, loose[1])
            if TIMING in fields or "reduced_train_loss" in fields:
                step = LOOSE_STEP.search(line)
                _add(log, fields, int(drawn[1]) if drawn else int(step[1]) + 1 if step else 0)
                return True
        if "alidation" in line and VALIDATION.search(line):
            log.mark("evaluation")
            return True
        if "heckpoint" in line and CHECKPOINT.search(line):
            log.mark("checkpoint")
            return True
        return False

    def finish(self, log: Log) -> None:
        """Nothing is kept back."""


def _add(log: Log, fields: dict[str, str], counted: int) -> None:
    """A step; global_step counts from 0, and goes on after a restart where the bar begins again."""
    log.framework = log.framework or NEMO
    whole = number(fields.get("global_step", ""))
    step = int(whole) + 1 if whole is not None and math.isfinite(whole) else counted
    if not step:
        step = log.last_step + 1
    told = fields.get(TIMING, "")
    batch = number(fields.get("global_batch_size", ""))
    last = log.iterations[-1].step if log.iterations and log.iterations[-1].step < step else step - 1
    log.add(
        Iteration(
            step=step,
            seconds=number(told),
            rounding=_rounding(told),
            span=step - last,
            loss=number(fields.get("reduced_train_loss", "")),
            grad_norm=number(fields.get("grad_norm", "")),
            tflops=number(fields.get("TFLOPS_per_GPU", "")),
            tokens_per_second_per_gpu=number(fields.get("tokens_per_sec_per_gpu", "")),
            global_batch=int(batch) if batch else None,
        )
    )
    peak, reserved = (number(fields.get(f"max_memory_{name}", "")) for name in ("allocated", "reserved"))
    if peak or reserved:
        log.memory.append(Memory(0, step, max_allocated=peak, max_reserved=reserved))
    if len(log.memory) > 64:  # maxima grow; the newest stand for all
        del log.memory[1:-32]


def _rounding(told: str) -> float:
    """Half of the last digit printed. [s]"""
    mantissa, _, exponent = told.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - digits) if mantissa else 0.0
