"""Switches of a job that several knobs follow: what is compiled, captured, and in which precision it computes."""

from __future__ import annotations

from typing import Any

from advisor.torchtitan.job import Job
from advisor.torchtitan.python_job import NVFP4, RELEASE
from advisor.torchtitan.sizes import Sizes

# Converters of linear layers by name: 0.1.0's and those since. Those of grouped products are told of.
FLOAT8, MX = ("float8", "quantize.linear.float8"), ("mx", "quantize.linear.mx")
GROUPED = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")
# Recipes of torchao that are named; none is the first.
RECIPES = {None: "tensorwise", "rowwise_with_gw_hp": "rowwise"}
OUTPUT = "output"  # the output layer's name in filters
ASYNC = "parallelism.enable_async_tensor_parallel"
EARLY_STOP = "activation_checkpoint.early_stop"
# What only configurations in Python say, under names that no release has.
ATTENTION, MTP, CHUNKED, FOUR_BITS = "model.attention", "model.mtp", "loss.chunked", "nvfp4.layers"
CAPACITY = "model.non_blocking_capacity_factor"
GRAPHS = "training.disable_cuda_graphs"
BACKEND = "parallelism.expert_parallel_comm_backend"
DISPATCHERS = {"deepep": "deepep", "hybridep": "hybridep"}
ROTATION = "parallelism.context_parallel_rotate_method"


def captures(job: Job) -> bool:
    """Whether a whole pass is captured. Source: torchtitan 0.3.0, trainer.py, _validate_cuda_graphs."""
    return job.has(GRAPHS) and not job[GRAPHS]


def compiles(job: Job, part: str) -> bool:
    """Whether torch.compile takes the model or the loss. 0.1.0's switch takes both."""
    if not job.has("compile.enable") or "training.compile" in job.said:
        return bool(job["training.compile"])
    return bool(job["compile.enable"]) and part in job["compile.components"]


def float8_recipe(job: Job) -> Any:
    """The recipe of FP8 that is named, None where none is."""
    return job.first("quantize.linear.float8.recipe_name", "float8.recipe_name")


def in_fp32(job: Job, fsdp: bool, ranks: int) -> bool:
    """Whether nothing casts parameters and activations to 16 bits. ranks: of tensor and pipeline parallelism [1].

    Before 0.3.0 FSDP casts where it is, else autocast on one GPU and in copies alone. Source: torchtitan 0.1.0 to
    0.2.2, distributed/utils.py, maybe_enable_amp; 0.3.0, models/llama3/parallelize.py, parallelize_llama.
    """
    uncast = not fsdp and ranks > 1 and job.release != RELEASE
    return uncast or bool(job["training.mixed_precision_param"] == "float32")


def gathers_quantised(job: Job, sizes: Sizes) -> bool:
    """Whether FSDP gathers parameters in 8 bits, as it does where shards are asked for."""
    said = job.first(
        "float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather"
    )
    return bool(said and sizes.shard > 1 and any(name in job["model.converters"] for name in FLOAT8))


def precision_of(job: Job, sizes: Sizes) -> str:
    """Format of its matrix products, as the column of a table of measurements."""
    converters = job["model.converters"]
    if NVFP4 in converters:
        return "nvfp4 (bf16 tail)"
    if any(name in converters for name in FLOAT8):
        return f"fp8-{RECIPES.get(float8_recipe(job), float8_recipe(job))}"
    if any(name in converters for name in MX):
        return "mxfp8"
    return "fp32" if in_fp32(job, sizes.fsdp, sizes.tp * sizes.pp) else "bf16"


def shares_sequences(job: Job) -> bool:
    """Whether sequence parallelism is on, as it always is beside tensor parallelism before 0.3.0."""
    return bool(job["parallelism.enable_sequence_parallel"])
