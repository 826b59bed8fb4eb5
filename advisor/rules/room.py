"""Whether the plan that a way out leads to fits into memory, where the plan itself does."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.rules.ways import Way
from costmodel.columns import plan_columns
from costmodel.knobs import KNOBS
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.prediction import FITS_BELOW

if TYPE_CHECKING:
    from costmodel.prediction import Prediction

BATCH = re.compile(r"--global-batch (\d+)")
# What a way changes beside knobs and the batch is another question than this plan's.
ELSEWHERE = re.compile(r"--(seq-len|stack|gpu|gpus|cluster|model|task|mean-length|no-packed|packed)\b")
# The options of a way as they are typed.
OPTIONS = re.compile(r"--[a-z][a-z0-9-]*(?: (?!--)[a-z0-9_+.,-]*[a-z0-9_+])?")
GIB = 2**30


@dataclass(frozen=True)
class Room:
    """A predicted plan that fits, on its software stack; ways out are held against its GPU's memory."""

    prediction: Prediction
    stack: str | None

    def lacking(self, way: str) -> str:
        """What keeps a way, its numbers put in, from fitting; "" where it fits, changes no plan, or cannot be told.

        Where other formulas than the plan's own are needed it is not told: compiling them takes longer than the answer.
        """
        takes = {name: value for name, value in Way(way).takes.items() if name in KNOBS}
        if None in takes.values() or not takes or ELSEWHERE.search(way):
            return ""
        base = self.prediction
        batch = BATCH.search(way)
        load = replace(base.workload, global_batch=int(batch[1])) if batch else base.workload
        with contextlib.suppress(ValueError):
            plan = replace(base.plan, **takes)
            plan.num_microbatches(load.global_batch)
            plans = PlanArray(
                base.model, load, base.cluster, plan.precision, plan_columns([plan]), self.stack
            )
            if plans.features == base.features:
                peak = float(evaluate_plans(plans)["peak_memory"].max())
                if peak > FITS_BELOW * base.device_bytes:
                    options = " ".join(found[0] for found in OPTIONS.finditer(way))
                    return f"{options} takes {peak / GIB:.1f} GiB of {base.device_bytes / GIB:.1f} GiB"
        return ""


def room_of(prediction: Prediction | None, stack: str | None) -> Room | None:
    """Room for ways out of the rules that a plan breaks; None where the plan itself does not fit."""
    return Room(prediction, stack) if prediction is not None and prediction.fits else None
