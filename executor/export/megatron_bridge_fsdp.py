"""FSDP in the words of Megatron-Bridge's ConfigContainer, see `megatron_bridge_settings`."""

from __future__ import annotations

from typing import Any

from costmodel.plan import Plan
from executor.export.target_names import Names


def fsdp_settings(plan: Plan, names: Names, task: str = "pretrain") -> dict[str, Any]:
    """FSDP of Megatron or of torch.

    Adapters' base model is loaded before it is wrapped: made on the meta device it would lose what was loaded. Source:
    Megatron-Bridge 0.6.2, training/setup.py, _create_peft_pre_wrap_hook.
    """
    if plan.fsdp_implementation == "torch":
        return {"dist.use_torch_fsdp2": True}
    return {
        "dist.use_megatron_fsdp": True,
        "ddp.average_in_collective": False,
        "model.init_model_with_meta_device": plan.zero_stage == 3 and task != "lora",
        "checkpoint.ckpt_format": "fsdp_dtensor",
    } | graph_settings(plan, names)


def graph_settings(plan: Plan, names: Names) -> dict[str, Any]:
    """What Megatron-FSDP leaves out beside CUDA graphs: Megatron-LM sets it itself, Megatron-Bridge is told.

    Source: Megatron-LM 0.18.2, training/training.py; Megatron-Bridge 0.6.2, perf_recipes/deepseek/gb300/deepseek_v3.py.
    """
    mode = "megatron_fsdp_cuda_graph_mode"
    if not plan.cuda_graph or not names.has("ddp", mode):
        return {}
    whole = "full_iteration" in plan.cuda_graph_scope
    return {f"ddp.{mode}": True} | ({"ddp.fsdp_all_gather_in_start_param_sync": False} if whole else {})
