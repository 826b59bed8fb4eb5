"""A plan of a GPU check, resolved, predicted and trained on this machine, into an emptied record."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor import run
from executor.resolve import resolve
from hardware_db import Cluster


def run_fresh(
    asked: Plan,
    workload: Workload,
    model: ModelSpec,
    cluster: Cluster,
    folder: Path,
    *,
    steps: int,
    warmup: int,
    limit: float,
    tell: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> run.RunResult:
    """Train the plan as it runs here; what `folder` held is gone. cluster: what the prediction is for.

    limit: seconds until the ranks are ended [s]. tell: is told the prediction, then each step. variables: environment
    of the ranks beside the plan's own, on CUDA. ValueError where it cannot run here, RunFailed where a rank fails.
    """
    machine = run.here()
    plan, _ = resolve(asked, model, machine)
    predicted = predict(model, workload, cluster, plan, run.stack_of(machine.cuda))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tell(f"{folder.name}: {predicted.step_time_s:.2f} s a step predicted")
    return run.execute(
        plan,
        workload,
        model,
        predicted=predicted.to_dict(),
        steps=steps,
        warmup=warmup,
        out=folder,
        progress=tell,
        limit=limit,
        requested=asked,
        variables=run.cuda_variables(predicted, cluster) | dict(variables or {}) if machine.cuda else None,
    )
