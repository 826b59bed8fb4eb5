"""Short training runs in one launch, each in a process state of its own: `trained_in_turn`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.launch import run_worker
from executor.record import write_json

HERE = Path(__file__).parent
LIMIT = 600.0  # Longest that all of them may take. [s]


def train_all(jobs: dict[Path, dict], launch: Path, ranks: int = 2) -> None:
    """Train each job of one rank or of all in its folder, which is made; `launch` holds the launch's log."""
    for folder, job in jobs.items():
        folder.mkdir(parents=True)
        write_json(folder / "job.json", job)
    launch.mkdir(parents=True)
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        run_worker("trained_in_turn", [str(folder) for folder in jobs], ranks, launch, LIMIT)
    for folder in jobs:
        failures = [path.read_text() for path in sorted(folder.glob("failure-*.json"))]
        assert not failures, f"{folder}: {failures[0]}"
        assert (folder / "steps.jsonl").exists(), f"{folder} was not trained: see {launch / 'worker.log'}"
