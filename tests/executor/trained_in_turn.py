"""Trains many jobs in one launch: `python -m trained_in_turn FOLDER ...`, each folder with its job.json.

Every rank loads the libraries once and forks for each job, which the product's worker then runs as if launched alone:
its process has seen no other job. Jobs of all ranks come one after the other; those of one process are dealt out.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from pathlib import Path

from executor.workers import train

# Beside those of the worker: what its first job would load (torch's optimizers load the compiler).
LIBRARIES = (*train.LIBRARIES, "megatron.core.pipeline_parallel", "torch._dynamo")


def main(folders: list[Path]) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for library in LIBRARIES:
        importlib.import_module(library)
    for number, folder in enumerate(folders):
        job = json.loads((folder / "job.json").read_text())
        plan = job["plan"]
        world = plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"]
        assert world in (1, ranks), f"{folder}: {world} ranks, not 1 or {ranks}"
        if world == 1 and number % ranks != rank:
            continue
        child = os.fork()
        if not child:
            run(folder, alone=world == 1)
        os.waitpid(child, 0)  # a job that fails says so in its folder, where its test looks


def run(folder: Path, alone: bool) -> None:
    """Train one job, and end."""
    status = 1
    try:
        if alone:
            os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
        # torchrun's own store still has the keys under which the ranks met for the job before.
        os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": port(folder)})
        train.main(folder / "job.json")
        status = 0
    finally:
        os._exit(status)


def port(folder: Path) -> str:
    """Where the ranks of a job meet: rank 0 finds a free port and tells the others."""
    told = folder / "port"
    if os.environ["RANK"] == "0":
        with socket.socket() as free:
            free.bind(("", 0))
            train.write_whole(told, free.getsockname()[1])
    while not told.exists():
        time.sleep(0.02)
    return told.read_text()


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
