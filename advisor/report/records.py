"""Runs of a plan beside its prediction: records named by the user, or those that this machine keeps of the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.comparison.record import Side
from advisor.comparison.sides import read_side
from advisor.options import value_text
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from costmodel.prediction import Prediction
from executor.compare import compare
from executor.record import read_steps

if TYPE_CHECKING:
    from advisor.case import Case

# Newest records of a plan that a page shows when none are named.
MOST = 5


def run_records(
    prediction: Prediction, named: Sequence[str], case: Case | None = None
) -> list[dict[str, Any]]:
    """What each run measured beside what was predicted for it, term by term; for a log that is the page's plan.

    named: folders of records and logs; without any, the newest kept records of this plan. case: the page's plan.
    ValueError in one line when a path that was named is no run.
    """
    if named:
        for path in named:
            if not Path(path).expanduser().exists():
                raise ValueError(
                    f"--record {path} is neither a folder nor a file. Name the folder of a run's record, or a log."
                )
        sides = [read_side(str(Path(path).expanduser()), case=case) for path in named]
        for side in sides:
            if side.predicted["model"] != prediction.model.name:
                raise ValueError(
                    f"--record {side.path} is a run of {side.predicted['model']}, and the plan is of "
                    f"{prediction.model.name}. Name a run of the plan's model."
                )
        return [_record(side, prediction.plan) for side in sides]
    found = []
    for folder in kept_records(prediction):
        try:
            found.append(_record(read_side(str(folder)), prediction.plan))
        except ValueError:
            continue  # a run that failed before its first step
    return found[:MOST]


def kept_records(prediction: Prediction) -> list[Path]:
    """Folders of this machine's runs that were asked for this plan and model, newest first."""
    from executor.local_profile import home

    wanted, model = prediction.plan.to_dict(), prediction.model.name
    runs = home() / "runs"
    found = []
    for folder in sorted(runs.glob("*/requested.json"), reverse=True) if runs.is_dir() else []:
        try:
            asked = json.loads(folder.read_text(encoding="utf-8"))
            told = json.loads((folder.parent / "prediction.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if asked == wanted and isinstance(told, dict) and told.get("model") == model:
            found.append(folder.parent)
    return found


def _record(side: Side, plan: Plan) -> dict[str, Any]:
    if side.measured is None:
        raise ValueError(
            f"--record {side.path} is a plan, not a run. Name the folder of a run's record, or a log."
        )
    rows = compare(side.predicted, side.measured) if side.measured.get("phases") else _step_only(side)
    return {
        "path": side.path,
        "plan": (ran := Plan(**side.predicted["knobs"])).describe(),
        "otherwise": _otherwise(ran, plan),
        "model": side.predicted["model"],
        "cluster": side.predicted["cluster"],
        "num_steps": side.measured["num_steps"],
        "rows": [row.to_dict() for row in rows],
        "steps": _steps(Path(side.path)),
        "predicted_s": side.predicted["step_time_s"],
        "interval": side.predicted["interval"],
        "warnings": list(side.warnings),
    }


def _otherwise(ran: Plan, plan: Plan) -> list[str]:
    """Knobs that the run had otherwise than the page's plan, in words: what its machine lacks is switched off."""
    return [
        f"{name} {value_text(there)} instead of {value_text(here)}"
        for (name, there), here in zip(ran.to_dict().items(), plan.to_dict().values(), strict=True)
        if there != here and name in KNOBS
    ]


def _step_only(side: Side) -> list[Any]:
    """A log tells its step and its memory, not its phases."""
    assert side.measured is not None
    measured = side.measured | {"phases": {}}
    told = ("step time", "tokens/s of each process", "memory of the worst rank")
    return [row for row in compare(side.predicted, measured) if row.name in told]


def _steps(folder: Path) -> list[dict[str, Any]]:
    """Seconds of every step of a record's folder; empty for a log."""
    if not folder.is_dir():
        return []
    return [
        {"seconds": step["seconds"], "warmup": bool(step.get("warmup"))}
        for step in read_steps(folder)
        if "seconds" in step
    ]
