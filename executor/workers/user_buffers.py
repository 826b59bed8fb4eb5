"""Transformer Engine's user buffers, which overlap tensor-parallel messages with GEMMs: made before the model, as
Megatron-LM makes them (0.16, training/initialize.py, _initialize_tp_communicators). Layers that find none stop."""

from __future__ import annotations

from typing import Any

from executor.workers.device import ranks_on_device


def make_user_buffers(job: dict[str, Any]) -> None:
    """Buffers for the plan's overlapped GEMMs; nothing where no layer overlaps. Groups are made before."""
    plan, config = job["plan"], job["megatron"]["config"]
    if not config.get("tp_comm_overlap") or plan["tp"] == 1:
        return
    if ranks_on_device() > 1:
        raise RuntimeError(
            "ranks that share a GPU have no user buffers: Transformer Engine makes them between GPUs that reach each "
            "other. Run with --no-tp-comm-overlap, or with a GPU for each rank"
        )
    from transformer_engine.pytorch.module import base

    base.initialize_ub(
        shape=shape(job),
        tp_size=plan["tp"],
        quantization_modes=[getattr(base.UserBufferQuantizationMode, name) for name in modes(config)],
        ub_cfgs=job["megatron"]["user_buffers"] or None,
        bootstrap_backend="nccl",
    )


def shape(job: dict[str, Any]) -> list[int]:
    """Tokens and width of what a layer takes, over the tensor-parallel group. [token, 1]"""
    tokens = job["workload"]["seq_len"] * job["plan"]["micro_batch"] // job["plan"]["cp"]
    return [tokens, job["megatron"]["config"]["hidden_size"]]


def modes(config: dict[str, Any]) -> list[str]:
    """Transformer Engine's names of the formats that buffers are made for: FP8, and BF16 of layers at the ends."""
    quantised = "FP8" if config.get("fp8") else "NONE"
    return [quantised, "NONE"] if config.get("fp8") and config.get("first_last_layers_bf16") else [quantised]
