"""A node that is lost in a run over two hosts: both sides end in time, with the cause, and nobody is left."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.outcome import OUTCOME
from executor.record import read_steps

FILE = Path(__file__).parents[3] / "benchmarks" / "namespaces.py"
SPEC = importlib.util.spec_from_file_location("namespaces", FILE)
namespaces = importlib.util.module_from_spec(SPEC)
sys.modules["namespaces"] = namespaces
SPEC.loader.exec_module(namespaces)

NODE = """\
import sys
from pathlib import Path
from executor.launch import Nodes, RunFailed, run_worker
folder, endpoint, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
try:
    nodes, job = Nodes(2, endpoint, rank), str(folder / "job.json")
    run_worker("executor.workers.train", [job], 1, folder, 300, nodes=nodes)
except RunFailed as failed:
    print(failed)
"""


@pytest.fixture
def hosts():
    """Two hosts, or the reason why there are none."""
    problem = namespaces.why_not()
    if problem:
        pytest.skip(problem)
    with namespaces.two_hosts() as made:
        yield made


def until(true, seconds: float) -> None:
    """Wait for a condition, no longer than that."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("loss", ["cable", "power"])
def test_a_lost_node_ends_the_run(training, hosts, loss):
    job = training.write_job()
    folders = [training.folder / host.name for host in hosts]
    nodes = []
    for rank, (host, folder) in enumerate(zip(hosts, folders, strict=True)):
        folder.mkdir()
        (folder / "job.json").write_text(job.read_text())
        words = [sys.executable, "-c", NODE, str(folder), f"{hosts[0].address}:29533", str(rank)]
        nodes.append(
            subprocess.Popen(
                host.command(words), env=os.environ | host.variables, stdout=subprocess.PIPE, text=True
            )
        )
    until(lambda: len(read_steps(folders[0])) >= 2, 90)
    if loss == "cable":
        namespaces.cut(hosts[1])
    else:
        nodes[1].send_signal(signal.SIGKILL)
    said = [node.communicate(timeout=100)[0].strip() for node in nodes]
    outcome = json.loads((folders[0] / OUTCOME).read_text())
    if loss == "cable":
        # Packets vanish and no connection ends: only the pulse tells.
        assert said[0].startswith("no progress for 5 s: rank 0 waits in ")
        assert "a rank of another node hangs or is lost" in said[0]
        assert said[1].startswith("no progress for 5 s: rank 1 waits in ")
        assert outcome["kind"] == "hang"
    else:
        # On a busy machine the pulse may tell before the connection does.
        assert outcome["kind"] in ("connection lost", "hang")
        assert "lost" in said[0]
    assert "\n" not in said[0]
    numbers = [step["step"] for step in read_steps(folders[0])]
    assert numbers == list(range(len(numbers)))
    left = [path for path in Path("/proc").glob("[0-9]*") if named(path, str(training.folder))]
    assert left == []


def named(process: Path, word: str) -> bool:
    """Whether a process's command line holds the word."""
    try:
        return word.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False
