"""Executes a plan with Megatron-Core on this machine and compares it with its prediction."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor import megatron_here
from executor.job_file import num_missing, plan_of, read_job
from executor.launch import Nodes, run_worker
from executor.record import alone, environment, read_steps, write_json
from executor.resolve import resolve
from executor.run_job import (
    check_data,
    cuda_variables,
    has_cuda,
    here,
    make_job,
    missing_software,
    stack_of,
)
from executor.summary import RunResult, conclude, summarise

__all__ = [
    "ElsewhereError",
    "RunResult",
    "check",
    "check_data",
    "cuda_variables",
    "execute",
    "has_cuda",
    "here",
    "make_job",
    "missing_software",
    "resume",
    "stack_of",
    "summarise",
]


# A rank that hangs is seen much earlier (`executor.watchdog`). [s]
LIMIT = 24 * 3600.0


def check(plan: Plan, workload: Workload, model: ModelSpec) -> None:
    """Raise ValueError, one line with the way out, for what cannot run here."""
    problem = missing_software() or megatron_here.why_not_here(plan, workload, model, here())
    if problem:
        raise ValueError(problem)


def execute(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    *,
    predicted: dict[str, Any],
    steps: int,
    warmup: int,
    out: Path,
    progress: Callable[[str], None],
    limit: float = LIMIT,
    requested: Plan | None = None,
    data: str = "",
    nodes: Nodes | None = None,
    variables: dict[str, str | None] | None = None,
) -> RunResult:
    """Train `warmup + steps` steps and compare the median step with the prediction.

    out is the record's folder. plan: as it runs here (`executor.resolve`); requested: as it was asked for. data:
    prefix of an indexed dataset, "" for generated text. nodes: where other nodes run the same. variables: environment
    of the ranks. Raises ValueError when the plan cannot run here, RunFailed when a rank fails; the record then still
    holds every step that ended, and `resume` goes on with it.
    """
    check(plan, workload, model)
    machine = here()
    resolved, _ = resolve(plan, model, machine)
    job = make_job(
        resolved,
        workload,
        model,
        steps=steps,
        warmup=warmup,
        cuda=machine.cuda,
        te=machine.te,
        apex=machine.apex,
        data=data,
    )
    job["variables"] = variables
    with held(out, nodes):
        write_json(out / "job.json", job)
        write_json(out / "prediction.json", predicted)
        write_json(out / "requested.json", (requested or plan).to_dict())
        write_json(out / "environment.json", environment())
        return train(out, job, progress, limit, nodes)


def held(out: Path, nodes: Nodes | None) -> contextlib.AbstractContextManager[None]:
    """The record for this run alone; several nodes may share a folder."""
    return alone(out) if nodes is None or nodes.count == 1 else contextlib.nullcontext()


def resume(
    out: Path, progress: Callable[[str], None], limit: float = LIMIT, nodes: Nodes | None = None
) -> RunResult:
    """Go on measuring a run that was cut: the steps that are missing, after a warm-up of their own.

    Weights start anew, as nothing but the measurement was kept. Raises ValueError where the record cannot go on.
    """
    read_job(out)  # refuses what is no record
    with held(out, nodes):
        return go_on(out, progress, limit, nodes)


def go_on(out: Path, progress: Callable[[str], None], limit: float, nodes: Nodes | None) -> RunResult:
    """The missing steps of a record that nothing else writes."""
    job, done = read_job(out), read_steps(out)
    missing = num_missing(job, done)
    if missing <= 0:
        raise ValueError(f"{out} is complete: {job['wanted']} steps are measured. Try `advisor run` anew.")
    session = 1 + max((step.get("session", 0) for step in done), default=-1)
    job |= {"session": session, "steps": job["warmup"] + missing, "first_step": len(done)}
    for path in (*out.glob("failure-*.json"), *out.glob("memory-*.json")):
        path.unlink()
    write_json(out / "job.json", job)
    progress(f"going on after {len(done)} steps: {missing} to measure, {job['warmup']} to warm up")
    return train(out, job, progress, limit, nodes)


def train(
    out: Path,
    job: dict[str, Any],
    progress: Callable[[str], None],
    limit: float,
    nodes: Nodes | None,
) -> RunResult:
    """Start the ranks of a record's job, tell their steps, and compare."""
    tell = Teller(out, job, progress)
    plan = plan_of(job)
    local = plan.world // (nodes.count if nodes else 1)
    arguments = [str(out / "job.json")]
    run_worker(
        "executor.workers.train",
        arguments,
        local,
        out,
        limit,
        tell.poll,
        nodes=nodes,
        variables=job["variables"],
    )
    if nodes is not None and not read_steps(out):
        raise ElsewhereError(f"these ranks ended well; the record is on the node of rank 0, not in {out}")
    return conclude(out, job)


class ElsewhereError(Exception):
    """A node that ran ranks, but not the one that keeps the record."""


class Teller:
    """Tells each step of a run once, with the time that is left."""

    def __init__(self, out: Path, job: dict[str, Any], progress: Callable[[str], None]) -> None:
        self.out, self.progress = out, progress
        self.told = job["first_step"]
        self.total = job["first_step"] + job["steps"]

    def poll(self) -> None:
        """Tell what ended since the last time."""
        done = read_steps(self.out)
        for step in done[self.told :]:
            loss = f"loss {step['loss']:.3f}  " if step["loss"] is not None else ""
            kind = "warm-up" if step["warmup"] else "measured"
            left = (self.total - step["step"] - 1) * statistics.median(each["seconds"] for each in done[-5:])
            self.progress(
                f"step {step['step'] + 1}/{self.total}  {step['seconds']:.3f} s  {loss}{kind}, {left:.0f} s left"
            )
        self.told = len(done)
