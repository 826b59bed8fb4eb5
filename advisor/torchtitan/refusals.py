"""Jobs that torchtitan refuses before they train, and those whose flavour lacks a part."""

from __future__ import annotations

import difflib

from advisor.torchtitan.flavors import Flavor
from advisor.torchtitan.job import Job
from advisor.torchtitan.python_job import RELEASE as PYTHON
from advisor.torchtitan.python_job import RENAMED
from advisor.torchtitan.sizes import Sizes
from advisor.torchtitan.switches import (
    ASYNC,
    BACKEND,
    CAPACITY,
    GRAPHS,
    captures,
    compiles,
    float8_recipe,
    gathers_quantised,
)

OPTIMIZERS = ("AdamW", "Adam")


def check_starts(job: Job, sizes: Sizes) -> None:
    """ValueError in one line for what torchtitan refuses before it trains.

    Source: torchtitan 0.1.0 to 0.2.2, parallelize.py (apply_ddp, async TP), models/deepseek_v3 (DeepEP) and
    components/optimizer.py (build_optimizers), but for optimizers of a module of one's own.
    """
    older = job.release != PYTHON
    if older and job["optimizer.name"] not in OPTIMIZERS and not job["experimental.custom_import"]:
        near = difflib.get_close_matches(job["optimizer.name"], OPTIMIZERS, n=1)
        raise ValueError(
            f"optimizer.name {job['optimizer.name']!r:.60} is none that torchtitan builds: {' and '.join(OPTIMIZERS)}. "
            f"Try {(near or OPTIMIZERS)[0]}."
        )
    if older and sizes.replicate > 1 and not sizes.fsdp and sizes.tp * sizes.pp > 1:
        raise ValueError(
            f"data_parallel_replicate_degree {sizes.replicate} without shards is DDP, which torchtitan refuses beside "
            "tensor or pipeline parallelism. Try data_parallel_replicate_degree = 1, data_parallel_shard_degree = -1."
        )
    if job[ASYNC] and sizes.tp > 1 and not compiles(job, "model"):
        name = "training.compile" if job.release == "0.1.0" else "compile.enable"
        own = ASYNC if older else next(key for key, before in RENAMED.items() if before == ASYNC)
        raise ValueError(
            f"{own} is torch.compile's, without which torchtitan refuses it. Try {name} = true, or leave it out."
        )
    if older and job[BACKEND] == "deepep" and sizes.ep == 1:
        raise ValueError(
            "parallelism.expert_parallel_comm_backend deepep is for experts on several ranks, and torchtitan refuses "
            "it without. Try expert_parallel_degree = 8, or leave it out."
        )
    if gathers_quantised(job, sizes) and float8_recipe(job) is not None:
        raise ValueError(
            f"enable_fsdp_float8_all_gather with recipe_name {float8_recipe(job)!r} is refused by torchtitan, which "
            "gathers in 8 bits with scales of whole tensors alone. Leave one of them out."
        )
    if captures(job):
        _check_captured(job, sizes)


def _check_captured(job: Job, sizes: Sizes) -> None:
    """ValueError in one line for what no graph takes. Source: torchtitan 0.3.0, trainer.py, _validate_cuda_graphs."""
    bounded = job[BACKEND] == "minimal_async_ep" or (job[BACKEND] == "hybridep" and CAPACITY in job.said)
    what = "experts on several ranks by this dispatcher" if sizes.ep > 1 and not bounded else ""
    what = "pipeline stages" if sizes.pp > 1 else what
    if not what:
        return
    hint = ""
    if sizes.pp == 1 and job[BACKEND] == "hybridep":
        what += " without a bound on their tokens"
        hint = ", or non_blocking_capacity_factor=1.0 in model_registry"
    raise ValueError(
        f"CUDA graphs, which torchtitan {PYTHON} has on, do not take {what}. Try {GRAPHS} = true{hint}."
    )


def unstarted(flavor: Flavor, sizes: Sizes, job: Job) -> list[str]:
    """What the flavour's own code lacks, a line each: a release that is not on file may have it."""
    lacks = {
        "pipeline parallelism": sizes.pp > 1 and not flavor.pipelined,
        "context parallelism with its attention": sizes.cp > 1 and not flavor.split,
    }
    named = f"{job['model.name']} {job['model.flavor']}"
    return [f"torchtitan {job.release} has no {what} for {named}." for what, acts in lacks.items() if acts]
