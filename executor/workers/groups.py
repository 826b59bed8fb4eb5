"""Names of process groups: Megatron-Core's descriptions in the cost model's words."""

from __future__ import annotations

from typing import Any

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
