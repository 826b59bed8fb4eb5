"""What surrounds a run in its record: cleared before, room set aside for last words, outcome.json after."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from executor.watchdog import read_pulses, state
from executor.workers.last_words import RECORD, RESERVE

# Kept free in a record's folder for the reasons of a run that fills the disk. [byte]
RESERVED = 256 * 1024
OUTCOME = "outcome.json"


def rank_environment(folder: Path) -> dict[str, str]:
    """The caller's environment for torchrun: ranks find the record in it, and no rank of another run.

    Nor options of torchrun, each of which it reads in a variable too: PET_NNODES=2, as Kubeflow's trainer sets it,
    would have it wait for a node that nobody starts. Source: PyTorch, torch/distributed/argparse_util.py.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE") and not name.startswith("PET_")
    }
    return kept | {RECORD: str(folder.resolve())}


def prepare(folder: Path) -> None:
    """Clear what an earlier run of this record left, and keep room for last words on a disk that fills."""
    for rank, (process, _, _) in read_pulses(folder).items():
        if not state(process):
            (folder / f"pulse-{rank}").unlink(missing_ok=True)
    if (folder / OUTCOME).exists():
        for path in [*folder.glob("failure-*.json"), folder / OUTCOME]:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError), (folder / RESERVE).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, RESERVED)


@contextlib.contextmanager
def outcome(folder: Path) -> Iterator[None]:
    """Write outcome.json however the run ends: finished, a fault, or the signal that ended it."""
    found: dict[str, Any] = {"outcome": "finished"}
    try:
        yield
    except BaseException as error:
        fault = getattr(error, "fault", None)
        name = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        said = asdict(fault) if fault else {"cause": str(error) or type(error).__name__}
        found = {"outcome": name} | said
        raise
    finally:
        (folder / RESERVE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            temporary = folder / f"{OUTCOME}.tmp"
            temporary.write_text(json.dumps(found, indent=2))
            os.replace(temporary, folder / OUTCOME)
