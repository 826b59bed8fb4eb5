"""Jobs that the tests of exports to Megatron-LM share."""

from __future__ import annotations

from typing import Any

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.exported import Job

H100 = hardware_db.load_cluster("dgx-h100")
MUON = Plan(dp=8, optimizer="muon", precision="fp8-cs", fp8_param_gather=True)


def job_of(name: str, plan: Plan, **more: Any) -> Job:
    """A job on H100s."""
    return Job(plan, Workload(4096, 8 * plan.dp * plan.micro_batch), load_model(name), H100, **more)
