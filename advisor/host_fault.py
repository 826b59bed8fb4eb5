"""Plans that a node's host memory cannot hold: what the rules say of them once they are predicted."""

from __future__ import annotations

from advisor.rules import Violation, violations
from advisor.rules.predicted_words import predicted_words
from costmodel.prediction import Prediction


def host_fault(prediction: Prediction) -> Violation | None:
    """What the rules say of a plan whose offloaded state its host cannot hold, None where it can."""
    if prediction.fits_host:
        return None
    case = (prediction.model, prediction.workload, prediction.cluster, prediction.plan)
    found = violations(*case, predicted=predicted_words(prediction))
    return next((each for each in found if each.id == "host_memory_over"), None)
