"""Parameters of a rank, and the bytes that Megatron-Core really holds for them: buffers and optimizer state."""

from __future__ import annotations

from typing import Any

import torch


def parameter_counts(chunks: list[Any]) -> dict[str, float]:
    """Parameters of routed experts, and all others."""
    counts = {"dense": 0.0, "experts": 0.0}
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            counts["experts" if ".experts." in name else "dense"] += parameter.numel()
    return counts


def state_bytes(chunks: list[Any], optimizer: Any) -> dict[str, float]:
    """Bytes of the buffers that hold parameters and gradients, and of everything that the optimizer keeps."""
    buffers = gradient_buffers(chunks)
    parameters = {
        parameter.untyped_storage()._cdata: parameter.untyped_storage().nbytes()
        for chunk in chunks
        for parameter in chunk.parameters()
    }
    return {
        "parameters": sum(parameters.values()),
        "gradients": sum(buffer.grad_data.untyped_storage().nbytes() for buffer in buffers),
        "optimizer": optimizer_bytes(optimizer) if optimizer is not None else 0,
    }


def is_plain(chunks: list[Any]) -> bool:
    """Whether all layers are Megatron-Core's own, none Transformer Engine's."""
    return not any(
        "transformer_engine" in type(module).__module__ for chunk in chunks for module in chunk.modules()
    )


def gradient_buffers(chunks: list[Any]) -> list[Any]:
    """Flat buffers of gradients; none under FSDP, which keeps its own."""
    return [
        buffer
        for chunk in chunks
        if hasattr(chunk, "expert_parallel_buffers")
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
    ]


def optimizer_bytes(optimizer: Any) -> int:
    """Storages of the optimizer's states and of its master parameters, each once."""
    found: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for each in value.values():
                add(each)
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)

    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.optimizer is not None:
            add(dict(part.optimizer.state))
        for name in ("shard_fp32_from_float16_groups", "fp32_from_float16_groups"):
            add(getattr(part, name, []))
    return sum(found.values())


def counter_bytes(optimizer: Any) -> int:
    """Of the optimizer's state, the step counters that torch's AdamW keeps for each parameter."""
    return sum(
        state["step"].untyped_storage().nbytes()
        for part in getattr(optimizer, "chained_optimizers", [optimizer])
        if part.optimizer is not None
        for state in part.optimizer.state.values()
        if isinstance(state.get("step"), torch.Tensor)
    )
