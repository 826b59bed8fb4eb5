"""Process groups: Megatron-Core makes them for a plan, and its descriptions of them in the cost model's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.plan import Plan

# Groups of `costmodel.rank_amounts` by Megatron-Core's names for them (parallel_state.py).
GROUP_NAMES = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "tp_ep",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp",
    "DATA_PARALLEL_GROUP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "embedding",
    "MODEL_PARALLEL_GROUP": "mp",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "mp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "optimizer_instance",
}


def group_name(group: Any, between_stages: bool = False) -> str:
    """The cost model's name of a group; of two stages, Megatron-Core sends one way in the group of all ranks."""
    described = getattr(group, "group_desc", "") or ""
    if described.startswith("HIERARCHICAL_CONTEXT"):
        return "cp"
    return GROUP_NAMES.get(described, "pp" if between_stages else "world")


def make_groups(plan: Mapping[str, Any], seed: int, te_rng_tracker: bool = False) -> None:
    """Megatron-Core's process groups for the plan's sizes, and its random states."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    hierarchical = None
    if plan["cp_comm_type"] == "a2a+p2p" and plan["cp"] > 1:
        hierarchical = [plan["cp_a2a_size"], plan["cp"] // plan["cp_a2a_size"]]
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=plan["tp"],
        pipeline_model_parallel_size=plan["pp"],
        virtual_pipeline_model_parallel_size=plan["vpp"] if plan["vpp"] > 1 else None,
        context_parallel_size=plan["cp"],
        expert_model_parallel_size=plan["ep"],
        expert_tensor_parallel_size=plan["etp"],
        hierarchical_context_parallel_sizes=hierarchical,
        num_distributed_optimizer_instances=Plan(**plan).sharding_instances,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(seed)
    # Graphs replay random states of Transformer Engine's tracker only.
    model_parallel_cuda_manual_seed(seed, te_rng_tracker=te_rng_tracker)
