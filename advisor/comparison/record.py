"""One side of a comparison, and the record of a run read as one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Side:
    """What `compare` knows of A or B.

    predicted: the object of `predict --json`; measured: as `executor.run.summarise` gives it, None for a plan.
    errors: ERROR rules that it breaks, in words. price [USD/h] of one GPU, None when none is on file. notes: what was
    taken for granted of a log.
    """

    path: str
    predicted: dict[str, Any]
    measured: dict[str, Any] | None = None
    errors: tuple[str, ...] = ()
    price: float | None = None
    stack: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`plan` or `run`."""
        return "run" if self.measured else "plan"

    @property
    def step_time(self) -> float:
        """Of a step: measured, else predicted. [s]"""
        return float((self.measured or self.predicted)["step_time_s"])

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Documents' own tokens: measured, else predicted. [1/s]"""
        return float((self.measured or self.predicted)["tokens_per_second_per_gpu"])

    @property
    def interval(self) -> tuple[float, float]:
        """Where the step time lies: the prediction's interval, or one standard deviation of measured steps. [s]"""
        if self.measured:
            step, spread = self.measured["step_time_s"], self.measured["spread"]
            return step * (1 - spread), step * (1 + spread)
        interval = self.predicted["interval"]
        return interval["low"], interval["high"]

    @property
    def holds(self) -> bool:
        """Whether it runs and fits; what has run did."""
        return bool(self.measured) or (bool(self.predicted["memory"]["fits"]) and not self.errors)

    @cached_property
    def leaves(self) -> dict[str, tuple[str, float]]:
        """Leaves of the time tree: name -> (title after its parent's, seconds)."""
        return dict(_leaves(self.predicted["terms"], ""))

    @cached_property
    def setting(self) -> dict[str, Any]:
        """Everything that is predicted for, but the knobs."""
        known = self.predicted
        named = {"model": known["model"], "cluster": known["cluster"], "gpus": known["gpus"]}
        workload: dict[str, Any] = known["workload"]
        return named | {"stack": self.stack or "default"} | workload

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "path": self.path,
            "kind": self.kind,
            "holds": self.holds,
            "errors": list(self.errors),
            "price_per_gpu_hour_usd": self.price,
            "prediction": self.predicted,
            "measured": self.measured,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def _leaves(term: dict[str, Any], parent: str) -> list[tuple[str, tuple[str, float]]]:
    if not term["parts"]:
        prefix = f"{parent.partition(',')[0]}: " if parent else ""
        return [(term["name"], (prefix + term["title"], term["seconds"]))]
    inner = "" if term["name"] == "step_time" else term["title"]
    return [leaf for part in term["parts"] for leaf in _leaves(part, inner)]


def run_side(folder: Path) -> Side:
    """The record of a run. ValueError in one line where it is none, or of another form."""
    from costmodel.plan import Plan
    from costmodel.workload import Workload
    from executor.run import summarise

    predicted = _json(folder, "prediction.json")
    try:
        finished = (folder / "comparison.json").is_file()
        if finished:
            comparison = _json(folder, "comparison.json")
            measured, warnings = comparison["measured"], comparison["warnings"]
        else:  # killed before its end: the steps that it finished count
            measured, warnings = summarise(folder, Workload(**predicted["workload"]), predicted["gpus"])
            warnings.append("the run did not end; these are the steps that it finished")
        side = Side(str(folder), predicted, measured, stack="local", warnings=tuple(warnings))
        Plan(**predicted["knobs"])
        _ = side.setting, side.leaves, side.interval, side.predicted["memory"]["components"]
        _ = predicted["interval"]["low"], predicted["interval"]["high"]
        if not side.step_time > 0:
            raise TypeError(f"a step of {side.step_time} s")
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{folder} is a run record of another form or version ({what}). Run the plan again."
        ) from None
    return side


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        record = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is no run record: it holds no {name}. `advisor run` tells the folder of its record."
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{folder / name} is not JSON. Run the plan again.") from None
    if not isinstance(record, dict):
        raise ValueError(f"{folder / name} holds no record. Run the plan again.")
    return record
