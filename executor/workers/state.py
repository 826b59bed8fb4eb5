"""Parameters of a rank, and the bytes that Megatron-Core really holds for them: buffers and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable
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
    parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
    gradients = [buffer.grad_data for buffer in gradient_buffers(chunks)]
    return {
        "parameters": bytes_of([*parameters, *flat("model_weight_buffer", chunks)]),
        "gradients": bytes_of([*gradients, *flat("main_grad_buffer", chunks)]),
        "optimizer": optimizer_bytes(optimizer) if optimizer is not None else 0,
    }


def flat(name: str, chunks: list[Any]) -> list[torch.Tensor]:
    """This rank's parts of one kind of Megatron-FSDP's flat buffers; none of another wrapper."""
    kept = [
        getattr(getattr(group, name), "data", None)
        for chunk in chunks
        for group in getattr(getattr(chunk, "param_and_grad_buffer", None), "parameter_groups", [])
    ]
    return [data for data in kept if data is not None]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: of one that is sharded over ranks (DTensor) its own part."""
    return getattr(tensor, "_local_tensor", tensor)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages of tensors, each once. [byte]"""
    kept = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in kept}.values())


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
    found: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
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
    return bytes_of(found)


def counter_bytes(optimizer: Any) -> int:
    """Of the optimizer's state, the step counters that torch's AdamW keeps for each parameter."""
    return sum(
        local(state["step"]).untyped_storage().nbytes()
        for part in getattr(optimizer, "chained_optimizers", [optimizer])
        if part.optimizer is not None
        for state in part.optimizer.state.values()
        if isinstance(state.get("step"), torch.Tensor)
    )
