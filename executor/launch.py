"""Starts worker processes through torchrun and ends them, all of them, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor import faults
from executor.outcome import outcome, prepare, rank_environment
from executor.watchdog import PATIENCE_OF_NODES, PATIENCE_TO_MEET, Watchdog, asked_patience

# Seconds that ranks get to end by themselves before they are killed.
GRACE = 5.0
LEASH = "executor.workers.leash"
# torchrun's own folder, empty as its ranks write into worker.log: in the record, or one stays in /tmp for every run.
TORCHRUN = "torchrun"
# Signals that end a run.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunFailed(RuntimeError):
    """A worker died or hung; the message names rank and cause in one line."""

    def __init__(self, fault: faults.Fault) -> None:
        super().__init__(fault.line)
        self.fault = fault


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, unwound as Ctrl-C is; number: the signal, for the exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@dataclass(frozen=True)
class Nodes:
    """Several nodes that run the same command. endpoint: HOST:PORT where they meet; rank: this node's place, None
    where the rendezvous deals them out in the order in which nodes come."""

    count: int
    endpoint: str
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"--nodes {self.count} is not a number of nodes. Try --nodes 2.")
        host, _, port = self.endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(
                f"--rdzv {self.endpoint!r} is not HOST:PORT of the first node. Try --rdzv node0:29500."
            )
        if self.rank is not None and not 0 <= self.rank < self.count:
            raise ValueError(
                f"--node-rank {self.rank} is not one of 0 to {self.count - 1} of --nodes {self.count}. "
                "Try --node-rank 0 on the first node."
            )

    def check_host(self) -> None:
        """ValueError where nothing here knows the name of the host to meet at; one that may be known later passes."""
        host, _, port = self.endpoint.rpartition(":")
        try:
            socket.getaddrinfo(host.strip("[]"), int(port))
        except socket.gaierror as error:
            if error.errno == socket.EAI_NONAME:
                raise ValueError(
                    f"--rdzv {self.endpoint}: no host of the name {host} is known here. Give the first node's name, as "
                    "`hostname -f` tells it there, or its address."
                ) from None

    def arguments(self) -> list[str]:
        """Of torchrun. A fixed rank decides which ranks share a node, so what talks over which link."""
        if self.rank is None:
            meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=advisor"]
        else:
            host, _, port = self.endpoint.rpartition(":")
            meeting = [f"--node-rank={self.rank}", f"--master-addr={host}", f"--master-port={port}"]
        return [f"--nnodes={self.count}", *meeting]


def threads_of(processes: int) -> int:
    """Threads that each of so many ranks of this machine computes with: OMP_NUM_THREADS, else its share of the cores.

    ValueError, one line, where the variable is no number of threads. [1]
    """
    given = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not given:
        return max(1, (os.cpu_count() or 1) // processes)
    outermost = given.split(",")[0].strip()  # OpenMP takes one number for each level of nesting
    if not outermost.isdigit() or int(outermost) < 1:
        raise ValueError(
            f"OMP_NUM_THREADS={given} is not a number of threads above 0. Try OMP_NUM_THREADS=2, or unset it."
        )
    return int(outermost)


def check_variables() -> None:
    """ValueError, one line, for a variable of ours or of the threads that no run can use."""
    asked_patience()
    threads_of(1)


# Where ranks run on a CPU; on CUDA the plan's own variables take their place.
CPU_VARIABLES: dict[str, str | None] = {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def run_worker(
    module: str,
    arguments: list[str],
    processes: int,
    folder: Path,
    limit: float,
    poll: Callable[[], None] = lambda: None,
    *,
    nodes: Nodes | None = None,
    variables: Mapping[str, str | None] | None = None,
) -> None:
    """Run `python -m module arguments` in `processes` ranks of this node until all end.

    nodes: the others, where there are several. variables: environment of the ranks, None for those they must not
    see; those of a CPU when not given. folder receives worker.log. Raises RunFailed after `limit` seconds or when a
    rank fails; an interrupt ends the ranks first and is then passed on. `poll` is called about five times a second.
    How it ended stands in the folder's outcome.json.
    """
    environment = {
        **rank_environment(folder),
        "OMP_NUM_THREADS": str(threads_of(processes)),
        "PYTHONWARNINGS": "ignore",
        "PYTHONUNBUFFERED": "1",
    }
    for name, value in (CPU_VARIABLES if variables is None else variables).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    # Each process ends with its parent: torchrun ends its ranks when asked, a rank cannot be asked when it hangs.
    command = [
        *(sys.executable, "-m", LEASH, "SIGTERM", "torch.distributed.run"),
        *(nodes.arguments() if nodes is not None else ["--standalone"]),
        *(f"--nproc-per-node={processes}", "--max-restarts=0", f"--log-dir={folder / TORCHRUN}"),
        *("-m", LEASH, "SIGKILL", module, *arguments),
    ]
    log = folder / "worker.log"
    kills = faults.kernel_kills()
    several = nodes is not None and nodes.count > 1
    watchdog = Watchdog(folder, to_meet=PATIENCE_OF_NODES if several else PATIENCE_TO_MEET)
    prepare(folder)
    with outcome(folder), log.open("w") as sink, signals_kept() as kept:
        if nodes is not None and (nodes.rank == 0 or not several):
            taken = faults.port_taken(nodes.endpoint)
            if taken is not None:
                raise RunFailed(taken)
        # A process group of its own: Ctrl-C in the terminal reaches this process alone, which then ends torchrun.
        child = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            end = time.monotonic() + limit
            while child.poll() is None:
                if time.monotonic() > end:
                    raise RunFailed(faults.too_long(limit, log))
                hang = watchdog.look()
                if hang is not None:
                    raise RunFailed(faults.hang(hang, folder, log, kills))
                poll()
                kept.unwind()
                time.sleep(0.2)
        finally:
            end_group(child)
            shutil.rmtree(folder / TORCHRUN, ignore_errors=True)
        poll()
        if child.returncode:
            raise RunFailed(faults.classify(folder, child.returncode, log, kills))


class KeptSignals:
    """Signals that asked a run to end, kept until it looks.

    A handler that raises can do so anywhere, as inside of Popen while it holds its lock, or of a destructor, where the
    exception is lost: a run that nothing ends any more.
    """

    def __init__(self) -> None:
        self._number: int | None = None

    def keep(self, number: int, _: Any) -> None:
        """A handler; the first signal counts, as a second Ctrl-C waits for the end that goes on."""
        if self._number is None:
            self._number = number

    def unwind(self) -> None:
        """Raise KeyboardInterrupt where a signal came: Terminated for SIGTERM and SIGHUP."""
        if self._number is not None:
            raise KeyboardInterrupt if self._number == signal.SIGINT else Terminated(self._number)


@contextmanager
def signals_kept() -> Iterator[KeptSignals]:
    """Keep Ctrl-C, SIGTERM and a closed terminal for `unwind`, at the latest when the block ends.

    Ranks have a session of their own, so the run must end them. A signal that is ignored, as SIGHUP under nohup, stays
    ignored. Outside of the main thread none comes.
    """
    kept = KeptSignals()
    if threading.current_thread() is not threading.main_thread():
        yield kept
        return
    numbers = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, kept.keep) for number in numbers}
    try:
        yield kept
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    kept.unwind()


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End torchrun and every rank it started: politely, then for certain."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        stop = time.monotonic() + GRACE
        while time.monotonic() < stop and _alive(child.pid):
            child.poll()
            time.sleep(0.05)
        if not _alive(child.pid):
            break
    # One that the kernel does not let go, as of a dead network disk, is left to it: nothing here would end it.
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
