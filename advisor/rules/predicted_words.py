"""Words of the rules that only a predicted plan has; `advisor.rules.facts` leaves them unsaid, which is below 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.rules.setting_words import UNSAID
from costmodel.family import compiled_family
from costmodel.prediction import CORRECTION, resource_shares
from costmodel.symbols import BY_NAME

if TYPE_CHECKING:
    from costmodel.prediction import Prediction
    from hardware_db import Cluster

GB = 1e9
# Share of the step from which recompute is worth a question; threshold of executor/diagnoses.toml.
RECOMPUTE_SHARE = 0.05
# Share of embedding, logits and loss on one stage from which another split of the layers is worth a question.
VOCABULARY_SHARE = 0.05
# Forward products whose output user buffers scatter in chunks: entry of the scatter, entry of the product.
# Source: Transformer Engine's names proj_fprop and fc2_fprop, Megatron-Bridge 0.3.1 training/comm_overlap.py:204-252.
SCATTERED = (
    ("attention_reduce_scatter", "attention_proj_forward"),
    ("mla_reduce_scatter", "mla_proj_forward"),
    ("mlp_reduce_scatter", "mlp_fc2_forward"),
)
# Word -> what the step waits for, by its name in `costmodel.prediction.RESOURCES`.
WAITS = {
    "host_percent": "host and launch",
    "tp_percent": "tensor-parallel communication",
    "cp_percent": "context-parallel communication",
    "ep_percent": "expert dispatch",
    "dp_percent": "data-parallel communication",
    "pp_percent": "pipeline bubble and transfers",
    "host_link_percent": "host memory and its link",
}
UNPREDICTED: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys(
        (
            "memory_percent",
            "dispatch_buffer_percent",
            "scatter_percent",
            "arrival_percent",
            "tp_overlap_gain",
            "recompute_gain",
            "balanced_gain",
            "host_gb",
            "host_most_gb",
            "host_memory_gb",
            *WAITS,
        ),
        UNSAID,
    )
)


def predicted_words(prediction: Prediction | None) -> Mapping[str, Any]:
    """Words of a predicted plan, those of `UNPREDICTED` where there is none.

    memory_percent: peak over the device's memory. dispatch_buffer_percent: see `dispatch_buffer_bytes`.
    scatter_percent: the longest scatter over its product. arrival_percent: `arrivals` over the step.
    tp_overlap_gain: see its function. recompute_gain, balanced_gain: unsaid, see `all_words`. host_gb, host_most_gb:
    host memory that offloading takes of the fullest node, at least and at most; host_memory_gb: what the node has,
    unsaid where it is not on file. Words of `WAITS`: share of the step that waits for each.
    """
    if prediction is None:
        return UNPREDICTED
    least, most = prediction.node_host_bytes
    shares = resource_shares(prediction.time)
    return {
        "memory_percent": round(100 * prediction.peak_memory_bytes / prediction.device_bytes),
        "dispatch_buffer_percent": round(100 * dispatch_buffer_bytes(prediction) / prediction.device_bytes),
        "scatter_percent": round(100 * longest_scatter(prediction.values)),
        "arrival_percent": round(100 * arrivals(prediction) / prediction.step_time_s),
        "tp_overlap_gain": tp_overlap_gain(prediction),
        "recompute_gain": UNSAID,
        "balanced_gain": UNSAID,
        "host_gb": round(least / GB),
        "host_most_gb": round(most / GB),
        "host_memory_gb": host_memory_gb(prediction.cluster),
    } | {word: round(100 * shares[name]) for word, name in WAITS.items()}


def arrivals(prediction: Prediction) -> float:
    """What of the step its later pipeline stages gather their parameters in, one after the other. [s]"""
    plan = prediction.plan
    return prediction.values["dp_gather_arrivals"] if plan.zero_stage > 0 and not plan.fsdp else 0.0


def dispatch_buffer_bytes(prediction: Prediction) -> float:
    """What HybridEP registers for one rank: what comes if all ranks send it all tokens, and what goes back. [byte]

    Each with probabilities of all experts, in 32 bits, one set for all layers. 0 with other dispatchers.
    """
    plan, moe = prediction.plan, prediction.model.moe
    if moe is None or plan.moe_dispatcher != "hybridep" or plan.ep == 1:
        return 0.0
    split = plan.cp * (plan.tp if plan.sequence_parallel else 1)
    tokens = plan.micro_batch * prediction.workload.seq_len / split
    row = prediction.values["activation_bytes"] * prediction.values["he"] + 4 * moe.num_experts
    return 2 * plan.ep * plan.etp * tokens * row


def host_memory_gb(cluster: Cluster) -> int:
    """Host memory of a node in whole GB, UNSAID where it is not on file."""
    found = cluster.host_memory
    return UNSAID if found is None else round(found / GB)


def tp_overlap_gain(prediction: Prediction) -> int:
    """Percent of the step that tp_comm_overlap, with sequence_parallel, would save by the closed form, at least 0.

    UNSAID where it is on or has nothing to overlap. It costs where chunks are short, and beside adapters, for which
    inputs are gathered again: see `costmodel.exposed.adapter_messages`.
    """
    found, plan = prediction.values, prediction.plan
    if plan.tp == 1 or plan.tp_comm_overlap:
        return UNSAID
    inputs = {name: np.float64(found[name]) for name in BY_NAME if name in found}
    step = compiled_family(prediction.features).full(inputs | {"tp_overlap": 1.0, "sp": 1.0})["step_time"]
    return max(0, round(100 * (1 - float(step) / found["step_time"])))


def all_words(prediction: Prediction | None, stack: str | None) -> Mapping[str, Any]:
    """`predicted_words`, with those that take another prediction on the same stack."""
    return {
        **predicted_words(prediction),
        **room_words(prediction, stack),
        **split_words(prediction, stack),
    }


def room_words(prediction: Prediction | None, stack: str | None) -> dict[str, Any]:
    """recompute_gain: percent of the step that recompute of nothing would save; left out where that does not fit."""
    if prediction is None or prediction.plan.recompute == "none":
        return {}
    if resource_shares(prediction.time)["recompute"] <= RECOMPUTE_SHARE:
        return {}
    from costmodel.predict import predict

    kept = replace(prediction.plan, recompute="none", recompute_modules=(), recompute_num_layers=0)
    try:
        other = predict(prediction.model, prediction.workload, prediction.cluster, kept, stack, judged=False)
    except ValueError:
        return {}
    saved = 1 - other.step_time_s / prediction.values["step_time"]
    return {"recompute_gain": round(100 * saved)} if other.fits and not other.tight and saved > 0 else {}


def split_words(prediction: Prediction | None, stack: str | None) -> dict[str, Any]:
    """balanced_gain: percent of the step that the balancer's split of layers over stages would save, simulated.

    Left out where embedding, logits and loss weigh little, where the split is not even, and where it saves nothing.
    """
    if prediction is None or prediction.plan.pp == 1 or prediction.model.mamba is not None:
        return {}
    plan, time = prediction.plan, prediction.time
    vocabulary = sum(leaf.value for leaf in time.leaves() if leaf.name == "vocabulary")
    given = plan.pipeline_layout or plan.first_stage_layers or plan.last_stage_layers
    if given or vocabulary <= VOCABULARY_SHARE * time.value:
        return {}
    from costmodel.predict import predict
    from costmodel.simulated_pipeline import with_schedule

    balanced = replace(plan, pipeline_layout="balanced", account_embedding=False, account_loss=False)
    try:
        other = predict(
            prediction.model, prediction.workload, prediction.cluster, balanced, stack, judged=False
        )
    except ValueError:
        return {}
    now = prediction if CORRECTION in prediction.values else with_schedule(prediction)
    saved = 1 - with_schedule(other).step_time_s / now.step_time_s
    return {"balanced_gain": round(100 * saved)} if other.fits and not other.tight and saved > 0 else {}


def longest_scatter(values: Mapping[str, float]) -> float:
    """Time of a reduce-scatter over that of the forward product that it can hide under, the largest. [1]"""
    shares = [
        values[scatter] / values[gemm]
        for scatter, gemm in SCATTERED
        if values.get(scatter, 0) > 0 and values.get(gemm, 0) > 0
    ]
    return max(shares, default=0.0)
