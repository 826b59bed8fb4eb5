"""Initial weights that depend on the model and not on its layout, so that two plans train one model."""

from __future__ import annotations

import re
import zlib
from typing import Any

import torch

# A routed expert among this rank's own: Megatron-Core's plain experts, and Transformer Engine's grouped ones.
EXPERT = re.compile(
    r"experts\.(?:local_experts\.(\d+)\.(linear_fc[12])\.weight|(linear_fc[12])\.weight(\d+))$"
)


def initialise(chunk: Any, config: Any) -> None:
    """Fill the weights of a GPTModel chunk: each rank draws the whole matrix and keeps its own part.

    Normal with config.init_method_std; matrices that write to the residual stream are divided by
    sqrt(2 L), as Megatron-Core does. Norms and biases stay as built (one and zero).
    """
    from megatron.core import parallel_state

    numbers = {
        name: module.layer_number for name, module in chunk.named_modules() if hasattr(module, "layer_number")
    }
    local_experts = (config.num_moe_experts or 0) // config.expert_model_parallel_size
    first_expert = parallel_state.get_expert_model_parallel_rank() * local_experts
    for name, parameter in chunk.named_parameters():
        if parameter.dim() < 2:
            continue
        known = global_name(name, numbers, chunk.share_embeddings_and_output_weights, first_expert)
        group = parallel_state.get_tensor_model_parallel_group()
        if EXPERT.search(name):
            group = parallel_state.get_expert_tensor_parallel_group()
        rank, size = group.rank(), group.size()
        std = config.init_method_std
        if known.endswith(("linear_proj.weight", "linear_fc2.weight")):
            std /= (2 * config.num_layers) ** 0.5
        axis = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        shape = list(parameter.shape)
        if axis is not None:
            shape[axis] *= size
        # One seed a name: crc32 is the same in every process, hash() is not.
        draw = torch.Generator(parameter.device).manual_seed(zlib.crc32(known.encode()))
        whole = torch.normal(0.0, std, shape, generator=draw, device=parameter.device)
        gated = config.gated_linear_unit and known.endswith("linear_fc1.weight")
        own = part(whole, axis, rank, size, 2 if gated else 1)
        parameter.data.copy_(own)
        # Of an FP8 weight Transformer Engine keeps what it was made from, where the optimizer's master weights begin.
        kept = getattr(parameter, "_high_precision_init_val", None)
        if kept is not None:
            kept.copy_(own)


def global_name(name: str, numbers: dict[str, int], tied: bool, first_expert: int = 0) -> str:
    """The parameter's name with layer and expert counted over the whole model instead of this rank's own.

    An output matrix tied to the embedding is one with it, on whichever stage it stands.
    """
    expert = EXPERT.search(name)
    if expert:
        number = int(expert[1] or expert[4] or 0) + first_expert
        name = f"{name[: expert.start()]}experts.local_experts.{number}.{expert[2] or expert[3]}.weight"
    found = re.match(r"(.*?layers\.)(\d+)(\..*)", name)
    if found:
        return f"{found[1]}{numbers[found[1] + found[2]] - 1}{found[3]}"
    return "embedding.word_embeddings.weight" if tied and name == "output_layer.weight" else name


def part(whole: torch.Tensor, axis: int | None, rank: int, size: int, blocks: int) -> torch.Tensor:
    """This rank's share along `axis`; `blocks` matrices stacked there (gate and up) are cut one by one."""
    if axis is None:
        return whole
    pieces = [block.chunk(size, dim=axis)[rank] for block in whole.chunk(blocks, dim=axis)]
    return torch.cat(pieces, dim=axis)
