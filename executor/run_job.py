"""What a run needs before it starts: software, devices, data, and the job that its ranks are told."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.model_file import to_mapping
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor import megatron_here
from executor.launch import threads_of
from executor.resolve import Here, resolve

if TYPE_CHECKING:
    from costmodel.prediction import Prediction
    from hardware_db import Cluster

LEARNING_RATE = 1e-3


def missing_software() -> str | None:
    """One line when torch or Megatron-Core is not installed, else None."""
    for module, package in (("torch", "torch"), ("megatron.core", "megatron-core")):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"`advisor run` needs {package}, which is not installed. Try: pip install 'advisor[run]'."
    return None


def has_cuda() -> bool:
    """Whether NVIDIA devices stand ready, asked without importing torch."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def here() -> Here:
    """What this machine has, asked without importing torch."""

    def installed(module: str) -> bool:
        return importlib.util.find_spec(module) is not None

    cuda = has_cuda()
    return Here(
        cuda, cuda and installed("transformer_engine"), cuda and installed("fused_weight_gradient_mlp_cuda")
    )


def stack_of(cuda: bool) -> str | None:
    """The software that a run's prediction is for: on GPUs what is installed here, not a published release.

    A processor's profile has the constants of its own runs.
    """
    return "local" if cuda else None


def check_data(prefix: str) -> None:
    """Raise ValueError, one line, when an indexed dataset is not there or empty. "" is generated text."""
    if not prefix:
        return
    written = "Megatron-LM's tools/preprocess_data.py writes one."
    for file in (Path(f"{prefix}.bin"), Path(f"{prefix}.idx")):
        if not file.is_file():
            raise ValueError(
                f"--data {prefix}: there is no {file}. Give an indexed dataset's path without its ending; {written}"
            )
        if not file.stat().st_size:
            raise ValueError(f"--data {prefix}: {file} is empty. Write the dataset anew: {written}")


def cuda_variables(prediction: Prediction, cluster: Cluster) -> dict[str, str | None]:
    """Environment of ranks on GPUs, as the plan's export sets it."""
    from executor.export.environment import environment as exported
    from executor.export.exported import Job

    job = Job(prediction.plan, prediction.workload, prediction.model, cluster)
    return {variable.name: variable.value for variable in exported(job)}


def make_job(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    *,
    steps: int,
    warmup: int,
    cuda: bool,
    te: bool = False,
    apex: bool = False,
    data: str = "",
) -> dict[str, Any]:
    """What a worker is told: plain values only, so that job.json repeats the run. plan: as asked for or resolved."""
    machine = Here(cuda, te, apex)
    plan, _ = resolve(plan, model, machine)
    return {
        "plan": plan.to_dict(),
        "workload": workload.to_dict(),
        "model": to_mapping(model),
        "megatron": megatron_here.megatron_job(plan, workload, model, machine),
        "num_microbatches": plan.num_microbatches(workload.global_batch),
        "steps": steps + warmup,
        "warmup": warmup,
        "wanted": steps,
        "first_step": 0,
        "session": 0,
        "data": str(Path(data).resolve()) if data else "",
        "device": "cuda" if cuda else "cpu",
        "te": te,
        "apex": apex,
        "threads": threads_of(plan.world),
        "learning_rate": LEARNING_RATE,
    }
