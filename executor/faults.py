"""Why a run ended: one line with kind, cause and way out, from exit codes, what ranks left, the log, the machine.

What words mean stands in `faults.toml`. A rank's own reason outranks the log; what ranks say because another
one failed (a lost connection) counts last; a signal outranks both, unless the killed rank gave a reason first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import string
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

# A run that ends in silence with less room than this died of a full disk. [byte]
NO_ROOM = 64 * 1024
_QUOTED = re.compile(
    r"^(\[rank\d+\]: ?)? *File \"[^\"]+\", line \d+.*\n(?:(?:\[rank\d+\]: ?)?    .*\n)*", re.MULTILINE
)
_TORCHRUN = r"rank\s*:\s*(\d+).*?\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)"


@dataclass(frozen=True)
class Fault:
    """How a run ended. rank: None where it is not one rank's; evidence: the words or the file it was read from."""

    kind: str
    cause: str
    way_out: str
    rank: int | None
    evidence: str

    @property
    def line(self) -> str:
        """What happened, where it is read, and what to do."""
        who = f"rank {self.rank} failed: " if self.rank is not None else ""
        way = f" {self.way_out}." if self.way_out else ""
        return f"{who}{self.cause}. {self.evidence}.{way}"


@dataclass(frozen=True)
class Rule:
    """One entry of faults.toml."""

    kind: str
    pattern: str
    cause: str
    way_out: str
    source: str
    consequence: bool = False

    def match(self, text: str) -> str | None:
        """The cause in words of the text, None where the rule does not hold."""
        found = re.search(self.pattern, text, flags=re.DOTALL)
        return None if found is None else fill(self.cause, found.groupdict())


def fill(cause: str, groups: dict[str, str | None]) -> str:
    """A cause with what was read; parts that the words did not hold leave no trace."""
    names = [name for _, name, _, _ in string.Formatter().parse(cause) if name]
    if any(groups.get(name) for name in names) or not names:
        text = cause.format(**{name: groups.get(name) or "" for name in names})
    else:
        text = re.sub(r"\([^()]*\{\w+\}[^()]*\)", "", cause)
        text = re.sub(r"(at step )?\{\w+\}", "", text)
    text = re.sub(r"\(\s*(?:free|of\s+joined)?\s*\)", "", text)
    return re.sub(r"\s+(?=[:.,]|\s|$)", "", text).strip()


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """The table, causes before consequences."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        entries = [Rule(**entry) for entry in tomllib.load(file)["rule"]]
    return tuple(sorted(entries, key=lambda rule: rule.consequence))


def pattern_of(kind: str) -> str:
    """What a line of a kind holds, whichever of its rules: without what only one of them reads of it."""
    found = [re.sub(r"\(\?P<\w+>", "(?:", rule.pattern) for rule in rules() if rule.kind == kind]
    return "|".join(found)


def explain(text: str) -> tuple[Rule, str] | None:
    """The first rule that holds for a text, and the cause. Source lines that a traceback quotes do not count."""
    text = _QUOTED.sub("", text)
    for rule in rules():
        cause = rule.match(text)
        if cause is not None:
            return rule, cause
    return None


def classify(folder: Path, code: int, log: Path, kills_before: int | None = None) -> Fault:
    """Why the ranks of a record ended with torchrun's exit code. kills_before: `kernel_kills` at the start."""
    text = _read(log)
    failures = _failures(folder)
    return (
        _killed(text, code, log, kills_before)
        or _reason(failures, consequences=False)
        or _logged(text, log, consequences=False)
        or _full_disk(folder)
        or _unseen_kill(folder, failures, log, kills_before)
        or _reason(failures, consequences=True)
        or _logged(text, log, consequences=True)
        or Fault(
            "failed", f"the ranks ended with exit code {code}: {last_words_of(text)}", "", None, f"Log: {log}"
        )
    )


def _failures(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """What ranks left, earliest first; a file that a full disk cut short is left out."""
    found = []
    for path in sorted(folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns):
        with contextlib.suppress(json.JSONDecodeError, OSError):
            found.append((path, json.loads(path.read_text())))
    return found


def _killed(text: str, code: int, log: Path, kills_before: int | None) -> Fault | None:
    """A rank that a signal ended. torchrun ends the others with SIGTERM, and after 30 s for certain."""
    ended = set(re.findall(r"Unable to shutdown process (\d+)", text))
    killed = [
        (int(rank), -int(number))
        for rank, number, pid in re.findall(_TORCHRUN, text)
        if int(number) < 0 and -int(number) != signal.SIGTERM and pid not in ended
    ]
    if not killed and code < 0:
        name = signal.Signals(-code).name
        return Fault("launcher killed", f"torchrun was killed by {name}", "", None, f"Log: {log}")
    if not killed:
        return None
    rank, number = killed[0]
    name = signal.Signals(number).name
    # abort() says why before: an exception of C++, NCCL's watchdog.
    said = explain(text) if number == signal.SIGABRT else None
    if said is not None and not said[0].consequence:
        return Fault(said[0].kind, said[1], said[0].way_out, rank, f"Log: {log}")
    cause, kind, way = f"rank {rank} was killed by {name}", "killed", ""
    after = kernel_kills()
    if number == signal.SIGKILL and kills_before is not None and after is not None and after > kills_before:
        return _out_of_memory(cause, log)
    if number == signal.SIGKILL:
        counted = after is not None and kills_before is not None
        cause += " (not for memory: the kernel ended none)" if counted else " (often memory ran out)"
    elif number == signal.SIGBUS:
        cause, kind = f"{cause} (a mapped file lost its room: /dev/shm or the disk is full)", "disk full"
        way = "In a container: --shm-size=16g or --ipc=host"
    return Fault(kind, cause, way, None, f"Log: {log}")


def _out_of_memory(cause: str, log: Path) -> Fault:
    way = "Take a smaller model or micro_batch, fewer ranks here, or a higher limit of the container"
    return Fault(
        "out of memory", f"{cause}: memory ran out (the kernel's OOM killer)", way, None, f"Log: {log}"
    )


def _unseen_kill(
    folder: Path, failures: list[tuple[Path, dict[str, Any]]], log: Path, kills_before: int | None
) -> Fault | None:
    """A rank that the kernel killed, when torchrun saw first that another one lost its connection."""
    after = kernel_kills()
    if not failures or kills_before is None or after is None or after <= kills_before:
        return None
    told = {int(record["rank"]) for _, record in failures}
    silent = sorted({int(path.name.removeprefix("pulse-")) for path in folder.glob("pulse-*")} - told)
    who = f"rank {silent[0]}" if len(silent) == 1 else "a rank"
    return _out_of_memory(f"{who} was killed by SIGKILL", log)


def _reason(failures: list[tuple[Path, dict[str, Any]]], consequences: bool) -> Fault | None:
    """A rank's own reason: known words first, then the first that any rank gave."""
    for path, record in failures:
        known = explain(str(record["error"]))
        if known is None and consequences is False:
            first = (str(record["error"]).splitlines() or [""])[0].rstrip(".")[:300]
            where = f"Its traceback stands in {path}"
            return Fault("failed", first, "", int(record["rank"]), where)
        if known is not None and known[0].consequence is consequences:
            where = f"Its traceback stands in {path}"
            return Fault(known[0].kind, known[1], known[0].way_out, int(record["rank"]), where)
    return None


def _logged(text: str, log: Path, consequences: bool) -> Fault | None:
    known = explain(text)
    if known is None or known[0].consequence is not consequences:
        return None
    return Fault(known[0].kind, known[1], known[0].way_out, None, f"Log: {log}")


def _full_disk(folder: Path) -> Fault | None:
    free = room(folder)
    if free >= NO_ROOM:
        return None
    return Fault(
        "disk full",
        f"the disk of the record is full ({free} bytes free)",
        "Free room there, or set ADVISOR_HOME to another disk; finished steps are kept",
        None,
        f"Record: {folder}",
    )


def last_words_of(text: str) -> str:
    """The line of a log that says most: torchrun's report of its children follows what they said."""
    said = re.split(r"^(?:[EWI]\d{4} |.*ChildFailedError)", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.strip() for line in said.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b", line)]
    return (errors[0] if errors else lines[-1] if lines else "no output")[:200]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def room(folder: Path) -> int:
    """Bytes that this user can still write where the folder lies; the room set aside does not count."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def kernel_kills() -> int | None:
    """Processes that the kernel's OOM killer ended since boot, None where the kernel does not count them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def hang(cause: str, folder: Path, log: Path, kills_before: int | None = None) -> Fault:
    """No rank moves any more; where one gave its reason before, torchrun is only slow to end the others."""
    failures = _failures(folder)
    reason = (
        _reason(failures, consequences=False)
        or _unseen_kill(folder, failures, log, kills_before)
        or _reason(failures, consequences=True)
    )
    return reason or Fault("hang", cause, "", None, f"Stacks of the ranks stand in {folder}/stack-*.txt")


def port_taken(endpoint: str) -> Fault | None:
    """A port at which this node is to wait for the others, held by another process: torchrun may wait in vain."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        # An address of another machine is no business of ours.
        if error.errno != errno.EADDRINUSE:
            return None
        rule, cause = _known(f"Address already in use. port: {port}")
        return Fault(rule.kind, cause, rule.way_out, None, f"Asked for {endpoint}")
    return None


def _known(text: str) -> tuple[Rule, str]:
    found = explain(text)
    assert found is not None
    return found


def too_long(limit: float, log: Path) -> Fault:
    """A run that moves, or tells no pulse, and has used its time up. limit in seconds."""
    return Fault(
        "too long",
        f"no end after {limit:.0f} s: a rank hangs or the run is too long",
        "",
        None,
        f"Log: {log}",
    )
