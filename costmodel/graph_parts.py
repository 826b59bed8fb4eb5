"""The parts of layers that a plan's CUDA graphs capture, in Megatron-Core's words."""

from __future__ import annotations

from costmodel.columns import plan_columns
from costmodel.layout import total_blocks
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.plan_inputs import graph_inputs
from costmodel.symbols import ATTENTION_BLOCKS

# Part -> blocks that have it, and the input that says whether graphs hold it.
PARTS = {
    "attn": ((*ATTENTION_BLOCKS, "delta"), "graph_attention"),
    "mlp": (("mlp",), "graph_mlp"),
    "mamba": (("mamba",), "graph_mamba"),
    "moe": (("experts",), "graph_experts"),
}


def captured_parts(plan: Plan, model: ModelSpec) -> tuple[str, ...]:
    """`cuda_graph_scope` as it has to be said to Megatron-Core: for experts an empty one by its parts.

    Megatron-Core reads an empty one as whole layers, which experts without fixed shapes cannot be; the parts are
    those that the step is priced with. Source: Megatron-Core 0.19, transformer_layer.py, _te_cuda_graph_replay.
    """
    if not plan.cuda_graph or plan.cuda_graph_scope or model.moe is None:
        return plan.cuda_graph_scope
    held = graph_inputs(plan_columns([plan]))
    blocks = total_blocks(model)
    parts = [
        part
        for part, (names, held_by) in PARTS.items()
        if held[held_by][0] and any(blocks[name] for name in names)
    ]
    if "moe" not in parts and held["graph_router"][0]:
        parts += ["moe_router"] + ["moe_preprocess"] * (not _waits_in_preprocess(plan))
    return tuple(parts)


def _waits_in_preprocess(plan: Plan) -> bool:
    """Whether the host is asked for token counts between router and dispatch, where no graph can go on."""
    dropping = plan.moe_capacity_factor > 0
    rounded = bool(dict(plan.settings).get("moe_router_padding_for_quantization"))
    known = dropping and plan.moe_pad_expert_input_to_capacity
    return plan.moe_dispatcher == "alltoall" and (dropping or rounded) and not known
