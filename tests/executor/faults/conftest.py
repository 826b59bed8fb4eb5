"""A real training run on two ranks, in which a fault is planted."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.launch import RunFailed, run_worker
from executor.record import read_steps, write_json
from executor.run import make_job, missing_software

HERE = Path(__file__).parent
LONG = 5000  # steps; far more than a test waits for
# Seconds in which every fault must have ended: loading on a busy machine, steps, patience, torchrun's grace.
BOUND = 120.0


def pytest_collection_modifyitems(items):
    """Real launches need Linux and the libraries."""
    missing = missing_software() is not None or sys.platform != "linux"
    for item in items:
        if HERE in item.path.parents and "training" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.launch)
            if missing:
                item.add_marker(pytest.mark.skip(reason="needs Linux, torch and megatron-core"))


def processes_with(word: str) -> list[int]:
    """Processes whose command line holds the word; zombies have none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


class Training:
    """Two ranks of data-parallel training in `folder`; `end_with` plants a fault and gives what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_job(self, **changes) -> Path:
        plan, workload = Plan(dp=2, precision="fp32"), Workload(64, 4)
        job = make_job(plan, workload, load_model("tiny-gpt"), steps=LONG, warmup=0, cuda=False)
        write_json(self.folder / "job.json", job | changes)
        return self.folder / "job.json"

    def end_with(self, fault: str, rank: int = 1, poll=lambda: None, least: int = 2, **changes) -> RunFailed:
        """The failure of a run with that fault; bounded, one line, nobody left, `least` finished steps readable."""
        job = self.write_job(**changes)
        start = time.monotonic()
        with pytest.raises(RunFailed) as failed:
            run_worker("faulty_rank", [str(job), str(rank), fault], 2, self.folder, 300, poll)
        assert time.monotonic() - start < BOUND
        assert "\n" not in str(failed.value)
        assert processes_with(str(job)) == []
        self.steps_read(least)
        return failed.value

    def steps_read(self, least: int = 2) -> None:
        """Finished steps stand in the record, whole and in order."""
        numbers = [step["step"] for step in read_steps(self.folder)]
        assert len(numbers) >= least
        assert numbers == list(range(len(numbers)))


@pytest.fixture
def one_fault():
    """One planted fault at a time on this machine: the kernel counts whom its OOM killer ended for all of it."""
    with (Path(tempfile.gettempdir()) / f"advisor-one-fault-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def training(tmp_path, monkeypatch, one_fault):
    """A Training whose ranks find the faulty worker."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("ADVISOR_PATIENCE", "5")
    return Training(tmp_path)
