"""Lines of Megatron-LM, which Megatron-Bridge shares: iterations, timers, memory, parameters, arguments.

Formats: megatron/training/training.py (training_log), utils/common_utils.py (report_memory), arguments.py
(_print_args), checkpointing.py and core/timers.py of megatron-core 0.19.2; older releases print no time stamp
and no microseconds, and `samples per second` or `TFLOPs` before 2022. The line of the padded vocabulary:
training/vocab_utils.py of 0.19.2 (0.17: core/tokenizers/utils/build_tokenizer.py); that of micro-batches:
core/num_microbatches_calculator.py.
"""

from __future__ import annotations

import math
import re

from executor.logs.record import LM, MIB, Iteration, Log, Memory, Timer, number

ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|(.*)")
ELAPSED = re.compile(
    r"elapsed time per iteration \(ms\):\s*(?:-?[\d.]+(?:e[+-]?\d+)?|-?nan|-?inf)\s*\|", re.IGNORECASE
)
FIELD = re.compile(r"\s*([^|:]+?)\s*:\s*(\S+)\s*(?:\||$)")
MEMORY = re.compile(r"^(?:.*\s)?\[Rank (\d+)\]\s+\(after (\d+) iterations\) memory \((MB|GB)\)(.*)")
MEMORY_FIELD = re.compile(r"\|\s*([a-z ]+):\s*([\d.]+)")
PARAMETERS = re.compile(
    r"number of parameters on \(tensor.*?pipeline\)\s+model parallel rank \(([\d, ]+)\):\s*(\d+)"
)
THEORETICAL = re.compile(
    r"Theoretical memory footprints: weight and optimizer=([\d.]+) MB(?:, activation=([\d.]+) MB, total=([\d.]+) MB)?"
)
DUMP_START = re.compile(r"-{10,} arguments -{10,}")
DUMP_END = re.compile(r"-{10,} end of arguments -{10,}")
ARGUMENT = re.compile(r"^\s{0,4}([A-Za-z_]\w*) (\.{3,}|\.*) ?(.*)$")
TIMER_HEAD = re.compile(r"(\(min, max\) time|max time|times) across ranks \(ms\):")
TIMER_PAIR = re.compile(r"^\s*([a-z][\w/ .-]*?) \.*: \(([\d.]+), ([\d.]+)\)$")
TIMER_MAX = re.compile(r"^\s*([a-z][\w/-]*?) \.{2,}: ([\d.]+)$")
TIMER_NAME = re.compile(r"^  ([a-z][\w/-]*):$")
TIMER_RANK = re.compile(r"^\s+rank\s+(\d+): ([\d.]+)$")
CHECKPOINT = re.compile(r"saving checkpoint (?:at|from) iteration\s+(\d+)|successfully saved checkpoint")
EVALUATION = re.compile(r"validation.* loss at iteration\s+(\d+)|^Evaluating (?:on|iter)")
WORLD = re.compile(r"using world size: (\d+)")
VOCABULARY = re.compile(r"> padded vocab \(size: (\d+)\) with \d+ dummy tokens")
MICROBATCHES = re.compile(r"setting number of micro-?batches to constant (\d+)")
STRAGGLER = re.compile(r"(M[nx](?:D?Rtt|Pwr|Tmp|Utl|Clk|Etpt)/Rnk): (-?[\d.]+)[A-Za-z%]*/(\d+)")


class Reader:
    """Reads line by line; knows which dump or table it is in."""

    def __init__(self) -> None:
        self.in_dump = False
        self.table = ""
        self.timer = ""
        self.per_rank: dict[str, list[float]] = {}

    def feed(self, line: str, log: Log) -> bool:
        """Whether the line was one of Megatron's."""
        if self.in_dump:
            return self._argument(line, log)
        if " arguments -" in line and DUMP_START.search(line):
            self.in_dump, log.framework = True, log.framework or LM
            return True
        found = ITERATION.search(line) if "elapsed time per iteration" in line else None
        if found and ELAPSED.search(line):  # with its bar: a value that the end of the file cut is none
            self._flush(log)
            _iteration(found, log)
            return True
        if "across ranks (ms):" in line and (head := TIMER_HEAD.search(line)):
            self.table = head[1]
            return True
        if self.table and self._timer(line, log):
            return True
        return _others(line, log)

    def finish(self, log: Log) -> None:
        """Keep what the last lines told."""
        self._flush(log)
        if self.in_dump:
            log.truncated = True

    def _argument(self, line: str, log: Log) -> bool:
        if DUMP_END.search(line):
            self.in_dump = False
        elif ITERATION.search(line):  # the end of the dump was lost
            self.in_dump = False
            return self.feed(line, log)
        elif found := ARGUMENT.match(line):
            log.arguments[found[1]] = found[3].strip()
        return True

    def _timer(self, line: str, log: Log) -> bool:
        if pair := TIMER_PAIR.match(line):
            _add_timer(log, pair[1], float(pair[2]), float(pair[3]))
        elif self.table == "max time" and (one := TIMER_MAX.match(line)):
            _add_timer(log, one[1], None, float(one[2]))
        elif self.table == "times" and (name := TIMER_NAME.match(line)):
            self.timer = name[1]
        elif self.table == "times" and self.timer and (rank := TIMER_RANK.match(line)):
            self.per_rank.setdefault(self.timer, []).append(float(rank[2]))
        else:
            return False  # lines of other ranks come between; the table goes on until the next iteration
        return True

    def _flush(self, log: Log) -> None:
        for name, values in self.per_rank.items():
            _add_timer(log, name, min(values), max(values))
        self.per_rank, self.table, self.timer = {}, "", ""


def _add_timer(log: Log, name: str, low: float | None, high: float) -> None:
    """Timers print milliseconds of a step. They follow the iteration that they belong to."""
    seconds = None if low is None else low / 1e3
    log.timers.setdefault(name.strip(" ."), []).append(Timer(log.last_step, seconds, high / 1e3))


def _iteration(found: re.Match[str], log: Log) -> None:
    log.framework = log.framework or LM
    log.planned = int(found[2])
    fields = {name.strip(): value for name, value in FIELD.findall(found[3])}
    told = fields.get("elapsed time per iteration (ms)", "")
    milliseconds = number(told)
    step = int(found[1])
    flops = fields.get("throughput per GPU (TFLOP/s/GPU)") or fields.get("TFLOPs") or ""
    batch = number(fields.get("global batch size", ""))
    losses = [number(value) for name, value in fields.items() if name in ("lm loss", "loss")]
    last = log.iterations[-1].step if log.iterations and log.iterations[-1].step < step else step - 1
    log.add(
        Iteration(
            step=step,
            seconds=milliseconds / 1e3 if milliseconds is not None and math.isfinite(milliseconds) else None,
            rounding=0.5e-3 / 10 ** len(told.partition(".")[2]),
            span=step - last,
            loss=losses[0] if losses else None,
            grad_norm=number(fields.get("grad norm", "")),
            tflops=number(flops),
            power=number(fields.get("power per GPU (W/GPU)", "")),
            global_batch=None if batch is None else int(batch),
            skipped=int(number(fields.get("number of skipped iterations", "")) or 0),
            nan=int(number(fields.get("number of nan iterations", "")) or 0),
        )
    )


def _others(line: str, log: Log) -> bool:
    if " memory (" in line and (found := MEMORY.search(line)):
        _memory(found, log)
    elif "number of parameters" in line and (found := PARAMETERS.search(line)):
        ranks = [int(rank) for rank in found[1].split(",")]
        log.parameters[ranks[0], ranks[-1]] = int(found[2])
    elif "Theoretical memory" in line and (found := THEORETICAL.search(line)):
        names = ("weight and optimizer", "activation", "total")
        told = zip(names, found.groups(), strict=True)
        log.theoretical |= {name: float(value) * MIB for name, value in told if value}
    elif "using world size" in line and (found := WORLD.search(line)):
        log.world = int(found[1])
    elif "padded vocab" in line and (found := VOCABULARY.search(line)):
        log.vocab = int(found[1])
    elif "setting number of micro" in line and (found := MICROBATCHES.search(line)):
        log.num_microbatches = int(found[1])
    elif "checkpoint" in line and (found := CHECKPOINT.search(line)):
        log.mark("checkpoint", int(found[1]) if found[1] else None)
    elif ("validation" in line or "Evaluating" in line) and (found := EVALUATION.search(line)):
        log.mark("evaluation", int(found[1]) if found[1] else None)
    elif "Rtt/Rnk:" in line or "Etpt/Rnk:" in line:
        told_ranks = {name: (float(value), int(rank)) for name, value, rank in STRAGGLER.findall(line)}
        log.stragglers += [told_ranks] if told_ranks else []
    else:
        return False
    return True


def _memory(found: re.Match[str], log: Log) -> None:
    unit = MIB if found[3] == "MB" else 2**30  # Megatron's MB are 2**20 bytes
    fields = {name.strip(): float(value) * unit for name, value in MEMORY_FIELD.findall(found[4])}
    log.memory.append(
        Memory(
            rank=int(found[1]),
            step=int(found[2]),
            allocated=fields.get("allocated"),
            max_allocated=fields.get("max allocated"),
            reserved=fields.get("reserved"),
            max_reserved=fields.get("max reserved"),
            device=fields.get("total device memory used"),
        )
    )
