"""Parallel sizes, GPUs and batches of a job file, with options over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.torchtitan.job import Job
from costmodel.model_spec import ModelSpec
from costmodel.workload import Workload

P = "parallelism."
# Sizes that an option may give in place of a key.
KEYS = {
    "tp": f"{P}tensor_parallel_degree",
    "pp": f"{P}pipeline_parallel_degree",
    "cp": f"{P}context_parallel_degree",
    "ep": f"{P}expert_parallel_degree",
    "etp": f"{P}expert_tensor_parallel_degree",
}
SHARD, REPLICATE = f"{P}data_parallel_shard_degree", f"{P}data_parallel_replicate_degree"
MICRO = f"{P}pipeline_parallel_microbatch_size"
LARGEST = 1 << 20  # of a degree or a batch
LENGTH = "training.seq_len"
LOCAL, GLOBAL = "training.local_batch_size", "training.global_batch_size"


@dataclass(frozen=True)
class Sizes:
    """Ranks of each kind of parallelism. replicate x shard: data parallel [1]; gpus: in all [1]."""

    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    replicate: int
    shard: int
    gpus: int

    @property
    def dp(self) -> int:
        """Data-parallel ranks. [1]"""
        return self.replicate * self.shard

    @property
    def fsdp(self) -> bool:
        """Whether parameters are sharded. Source: torchtitan, parallel_dims.py, fsdp_enabled."""
        return self.shard > 1 or self.cp > 1


@dataclass(frozen=True)
class Batches:
    """Sequences of a pipeline's micro-batch or of one pass, of a rank's pass, and of a step. [1]"""

    micro: int
    local: int
    whole: int


def sizes_of(
    job: Job, model: ModelSpec, given: Mapping[str, Any], gpus: int | None, notes: list[str]
) -> Sizes:
    """The sizes of a job. given: knobs that options name, which win; gpus: of --gpus. ValueError where they do not fit.

    Source: torchtitan 0.2.2, distributed/parallel_dims.py, ParallelDims.
    """
    for key in (*KEYS.values(), REPLICATE):
        _in_range(key, job[key])
    shard = job[SHARD]
    if shard == 0 or not -1 <= shard <= LARGEST:
        raise ValueError(
            f"{SHARD} is {shard}: it is 1 to {LARGEST}, or -1 for the ranks that are left. Correct it."
        )
    replicate = job[REPLICATE]
    said = {name: job[key] for name, key in KEYS.items()}
    if shard > 0 and {"tp", "pp", "cp", "dp"} & set(
        given
    ):  # as of other frameworks: other sizes on the same GPUs
        gpus = gpus or (
            None
            if "dp" in given
            else replicate * shard * math.prod(said[name] for name in ("tp", "pp", "cp"))
        )
        shard = -1
    said |= {name: given[name] for name in KEYS if name in given}
    if model.moe is None:
        said |= {"ep": 1, "etp": 1}
    elif said["ep"] == 1 and "etp" not in given:
        # models/llama4/infra/parallelize.py, apply_moe_ep_tp: experts over the tensor ranks
        said["etp"] = said["tp"]
    others = replicate * said["tp"] * said["pp"] * said["cp"]
    if "dp" in given:
        shard, left = divmod(given["dp"], replicate)
        if left or not shard:
            raise ValueError(
                f"--dp {given['dp']} is not a multiple of {REPLICATE} = {replicate}. Try --dp {replicate}."
            )
    if shard == -1:
        shard = _left_over(said, replicate, others, gpus, notes)
    world = others * shard
    if gpus is not None and world != gpus and "dp" in given:
        fits = f", or --dp {gpus // others * replicate}" if gpus % others == 0 else ""
        raise ValueError(
            f"--gpus {gpus} is not --dp {given['dp']} x tensor {said['tp']} x pipeline {said['pp']} x context "
            f"{said['cp']} = {world}. Try --gpus {world}{fits}."
        )
    if gpus is not None and world != gpus:
        raise ValueError(
            f"--gpus {gpus} is not the product of the degrees, replicate {replicate} x shard {shard} x tensor "
            f"{said['tp']} x pipeline {said['pp']} x context {said['cp']} = {world}. Try --gpus {world}, or "
            "data_parallel_shard_degree = -1 for what is left."
        )
    if model.moe is not None:
        _check_experts(said, shard)
    return Sizes(**said, replicate=replicate, shard=shard, gpus=world)


def length_of(job: Job) -> int:
    """Tokens of a sequence of a job. [1] ValueError in one line where there are none, or more than a workload takes."""
    try:
        return Workload(seq_len=job[LENGTH], global_batch=1).seq_len
    except ValueError as error:
        raise ValueError(str(error).replace("--seq-len", LENGTH)) from None


def _in_range(key: str, value: int) -> None:
    if not 1 <= value <= LARGEST:
        raise ValueError(
            f"{key} is {value}: it is a whole number from 1 to {LARGEST}. Correct it, or leave it out."
        )


def _left_over(
    said: Mapping[str, int], replicate: int, others: int, gpus: int | None, notes: list[str]
) -> int:
    """Ranks to shard over: those that the other degrees leave of the GPUs, else the fewest that experts allow."""
    if gpus is None:
        whole = said["etp"] * said["ep"]
        shard = whole // math.gcd(whole, said["cp"] * said["tp"])
        notes.append(
            f"GPUs not said, and {SHARD} takes those that are left: {others * shard}, the least that the other degrees "
            "allow; --gpus says more."
        )
        return shard
    if gpus % others or gpus < others:
        raise ValueError(
            f"--gpus {gpus} is not a multiple of replicate {replicate} x tensor {said['tp']} x pipeline {said['pp']} x "
            f"context {said['cp']} = {others}. Try --gpus {max(1, round(gpus / others)) * others}."
        )
    return gpus // others


def _check_experts(said: Mapping[str, int], shard: int) -> None:
    """Experts spread over data-, context- and tensor-parallel ranks of one replica alone."""
    ep, etp, tp, ranks = said["ep"], said["etp"], said["tp"], shard * said["cp"] * said["tp"]
    if etp not in (1, tp):
        raise ValueError(
            f"{KEYS['etp']} is {etp}: torchtitan takes 1 or {KEYS['tp']} = {tp}. Correct it, or leave it out."
        )
    if ranks % (ep * etp):
        raise ValueError(
            f"{KEYS['ep']} {ep} x {KEYS['etp'].removeprefix(P)} {etp} does not divide the {ranks} ranks of shard x "
            f"context x tensor. Try --ep {math.gcd(ep * etp, ranks) // math.gcd(etp, ranks)}."
        )


def batches_of(job: Job, sizes: Sizes, given: Mapping[str, Any], global_batch: int | None) -> Batches:
    """The batches of a job. given: knobs that options name; global_batch: of --global-batch. ValueError in one line.

    Source: torchtitan 0.2.2, train.py (gradient_accumulation_steps) and pipeline_parallel.py, build_pipeline_schedule.
    """
    local = job[LOCAL]
    _in_range(LOCAL, local)
    _in_range(MICRO, job[MICRO])
    micro = given.get("micro_batch") or (job[MICRO] if sizes.pp > 1 else local)
    if sizes.pp == 1:
        local = micro
    elif local % micro:
        raise ValueError(
            f"{LOCAL} {local} is not a multiple of {MICRO} = {micro}. Try {micro * -(-local // micro)}."
        )
    step = local * sizes.dp
    said = job[GLOBAL] if job[GLOBAL] > 0 else step
    whole = global_batch or said
    if whole % step:
        name = "--global-batch" if global_batch else GLOBAL
        raise ValueError(
            f"{name} {whole} is not a multiple of {LOCAL} x data-parallel ranks = {local} x {sizes.dp}. "
            f"Try {max(1, round(whole / step)) * step}."
        )
    return Batches(micro, local, whole)
