"""Jobs of the dry run: what to trace, handed to a process of its own, and its answer. Imports no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.rank_amounts import RankAmounts
from costmodel.workload import Workload
from executor.megatron_args import core_fields
from executor.megatron_here import traced_fields, why_not_traced
from executor.megatron_model import config_class, model_arguments, model_class, not_expressed
from executor.megatron_training import ddp_fields, optimizer_fields

LIMIT = 600.0  # Longest that one stage may take. [s]


class DryRunFailed(Exception):
    """A stage that could not be traced, with Megatron-Core's own reason in one line."""


def make_job(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    stage: int,
    num_microbatches: int,
    with_optimizer: bool = True,
) -> dict[str, Any]:
    """Plain values that describe one stage's trace. ValueError, one line, for what cannot be traced."""
    problem = why_not_traced(plan, model)
    if problem:
        raise ValueError(problem)
    if not 0 <= stage < plan.pp:
        raise ValueError(
            f"--stage {stage} is not one of 0 to {plan.pp - 1} of --pp {plan.pp}. Try --stage 0."
        )
    fields, notes = traced_fields(core_fields(plan, model, workload))
    return {
        "plan": plan.to_dict(),
        "workload": workload.to_dict(),
        "model": model.name,
        "stage": stage,
        "num_microbatches": num_microbatches,
        "with_optimizer": with_optimizer,
        "notes": [*notes, *not_expressed(model)],
        "megatron": {
            "config_class": config_class(model),
            "model_class": model_class(model),
            "config": fields,
            "arguments": model_arguments(model, plan.tp, workload.seq_len),
            # Nothing has a value in a dry run, so nothing can be checked.
            "ddp": ddp_fields(plan) | {"fp8_param_gather": False, "check_for_nan_in_grad": False},
            "optimizer": optimizer_fields(plan),
        },
    }


def run_stage(job: dict[str, Any], folder: Path, limit: float = LIMIT) -> RankAmounts:
    """Trace one stage in a process of its own; its files stay in `folder`. DryRunFailed with one line if it cannot."""
    stage = job["stage"]
    path = folder / f"job-{stage}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(job))
    answer, failure = folder / f"amounts-{stage}.json", folder / f"failure-{stage}.json"
    for old in (answer, failure):
        old.unlink(missing_ok=True)
    environment = os.environ | {
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    with (folder / f"worker-{stage}.log").open("w") as log:
        command = [sys.executable, "-m", "executor.workers.dryrun", str(path)]
        try:
            done = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise DryRunFailed(f"stage {stage} took longer than {limit:.0f} s to trace") from None
    if failure.exists():
        raise DryRunFailed(json.loads(failure.read_text())["error"])
    if done.returncode or not answer.exists():
        raise DryRunFailed(
            f"the dry run of stage {stage} ended with status {done.returncode}: see {log.name}"
        )
    return RankAmounts.from_dict(json.loads(answer.read_text()))
