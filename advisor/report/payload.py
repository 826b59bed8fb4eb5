"""All numbers of a page as one value: what `explain --json` prints, and what the charts are drawn from."""

from __future__ import annotations

from datetime import date
from typing import Any

from advisor.report.formulas import formulas_of
from advisor.report.roofline import roofline
from advisor.report.schedule import schedule
from advisor.report.subject import Subject
from advisor.sections import gpus_told
from costmodel.plan_file import advisor_version
from costmodel.prediction import FITS_BELOW, TIGHT_ABOVE, Prediction, resource_shares


def payload(subject: Subject) -> dict[str, Any]:
    """The page's numbers.

    prediction: the object of `predict --json` (that of a plan of `explain --json` and its GPUs); explain: the object of
    `explain --json`, null where no plan is legal. The others are told at the functions that make them.
    """
    prediction = subject.prediction
    explained = subject.explanation.to_dict() if subject.explanation else None
    return {
        "advisor": advisor_version(),
        "made_on": date.today().isoformat(),
        "plan": prediction.plan.describe(),
        "prediction": prediction.to_dict() | gpus_told(prediction, subject.gpus),
        "explain": explained,
        "violations": [violation.to_dict() for violation in subject.found],
        "bound": resource_shares(prediction.time),
        "formulas": formulas_of(prediction),
        "schedule": schedule(prediction),
        "cloud": {
            "feasible": subject.cloud.feasible,
            "front": subject.cloud.front,
            "points": subject.cloud.points,
            "layouts": [_point(each.prediction) for each in subject.layouts],
            "chosen": _point(prediction),
            "device_bytes": prediction.device_bytes,
            "fits_below": FITS_BELOW,
            "tight_above": TIGHT_ABOVE,
            "tokens_per_step": prediction.workload.tokens_per_step,
        },
        "roofline": roofline(prediction),
        "scaling": subject.scaling,
        "records": list(subject.records),
    }


def _point(prediction: Prediction) -> dict[str, Any]:
    """A plan as a point of the cloud, its pipeline simulated."""
    return {
        "step_time_s": prediction.step_time_s,
        "memory_bytes": prediction.peak_memory_bytes,
        "gpus": prediction.plan.world,
        "plan": prediction.plan.describe(),
    }
