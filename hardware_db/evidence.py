"""Published training runs that predictions are judged by: one line of `calibrated/evidence.csv` each.

The file is written by `tools/write_evidence.py`; `calibrated/evidence.toml` beside it says how far errors
spread around a prediction, and over which runs that was learnt.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from hardware_db.catalogue import ROOT

EVIDENCE_FILE = ROOT / "calibrated" / "evidence.csv"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What was trained on what and how, as far as it tells how near two runs are.

    family: of the model (dense, moe, mla-moe, ...). layers, hidden: counts [1]. parameters: those that work on a
    token [1]. generation: of the GPU. seq_len [token], global_batch [sequence]; fsdp: GPUs of a sharding group
    shard, 0 none. recompute: none, selective or full. stack: software family and release, as nemo-26.06.
    techniques: words of what else moves a step: the experts' dispatcher, overlapped-dispatch, graphs, offload.
    effects: every other setting that is not at its default, with what it changes, as name=value@log; see
    `costmodel.evidence.effects`. kernels: the GPU whose kernel tables are used in place of own ones, "" with own ones.
    """

    model: str
    family: str
    layers: int
    hidden: int
    parameters: float
    task: str
    cluster: str
    gpu: str
    generation: str
    gpus: int
    precision: str
    seq_len: int
    global_batch: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    dp: int
    micro_batch: int
    fsdp: int
    recompute: str
    stack: str
    techniques: str = ""
    effects: str = ""
    kernels: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence(Setting):
    """A published run. error: log(predicted / measured) of the fit to all runs; held_error: of the fit without
    the run's model, the error that a new model must expect. near_error, near_held_error: the same as other runs near
    it would have them, and runs of other models near it. parameter_spread: what the uncertainty of the constants alone
    lets expect, as a standard deviation. [1]"""

    id: str
    source: str
    date: str
    measured_step_time_s: float
    error: float
    held_error: float
    near_error: float = 0.0
    near_held_error: float = 0.0
    parameter_spread: float = 0.0


NAMES = (
    *("id", "source", "date"),
    *(field.name for field in fields(Setting)),
    *("measured_step_time_s", "error", "held_error", "near_error", "near_held_error", "parameter_spread"),
)
TYPES = {field.name: {"str": str, "int": int, "float": float}[str(field.type)] for field in fields(Evidence)}


@lru_cache(maxsize=4)
def load_evidence(path: Path = EVIDENCE_FILE) -> tuple[Evidence, ...]:
    """Every published run of the file; none when there is no file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(line for line in file if not line.startswith("#"))
            return tuple(
                Evidence(**{name: TYPES[name](text) for name, text in line.items()}) for line in lines
            )
    except FileNotFoundError:
        return ()


@lru_cache(maxsize=4)
def load_spread(path: Path = EVIDENCE_FILE) -> dict[str, Any]:
    """The record beside the runs: table [spread] of the interval's constants, [coverage] of what they reach."""
    try:
        with path.with_suffix(".toml").open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}


def save_evidence(runs: Sequence[Evidence], path: Path, header: str) -> None:
    """Write runs as CSV under comment lines."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("".join(f"# {line}\n" for line in header.splitlines()))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(NAMES)
        writer.writerows([_text(getattr(run, name)) for name in NAMES] for run in runs)


def _text(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
