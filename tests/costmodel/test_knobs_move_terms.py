"""Every knob of a plan moves a term of the step's time or memory somewhere, or its record says that nothing does."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from costmodel.knobs import KNOBS
from costmodel.model_registry import load_model
from costmodel.model_tables import Encoder
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from hardware_db import load_cluster

TOWER = Encoder(num_layers=27, hidden=1152, ffn_hidden=4304, num_heads=16, tokens=1024)
DENSE = load_model("llama3-70b")
MODELS = {
    "dense": DENSE,
    "experts": load_model("deepseek-v3"),
    "vision": replace(DENSE, name="llama3-70b with a tower", encoder=TOWER),
}
# Model, cluster and plan of each base; dp is what remains of 64 sequences a step or less.
OVERLAPPED = Plan(
    pp=4, vpp=4, dp=64, ep=64, pipeline_layout="balanced", moe_dispatcher="deepep", overlap_moe_comm=True
)
BASES: dict[str, tuple[str, str, Plan]] = {
    "pipeline": (
        "dense",
        "dgx-h100",
        Plan(tp=2, pp=4, vpp=2, cp=2, dp=4, sequence_parallel=True, tp_comm_overlap=True, precision="fp8-cs"),
    ),
    "mixed exchange": (
        "dense",
        "dgx-h100",
        Plan(tp=2, cp=4, dp=4, cp_comm_type="a2a+p2p", cp_a2a_size=2, sequence_parallel=True),
    ),
    "flat": ("dense", "dgx-h100", Plan(tp=2, dp=32, sequence_parallel=True, overlap_param_gather=False)),
    "fsdp": ("dense", "dgx-h100", Plan(dp=64, fsdp=True, zero_stage=3)),
    "fsdp in 16 bits": (
        "dense",
        "dgx-h100",
        Plan(dp=64, fsdp=True, zero_stage=3, grad_reduce_in_fp32=False),
    ),
    "replicas of shards": (
        "dense",
        "dgx-h100",
        Plan(dp=64, fsdp=True, zero_stage=3, fsdp_shard_size=8, layernorm_sm_margin=0),
    ),
    "recompute": ("dense", "dgx-h100", Plan(tp=2, pp=4, dp=8, recompute="full", recompute_num_layers=5)),
    "selective": (
        "dense",
        "dgx-h100",
        Plan(tp=2, pp=4, dp=8, recompute="selective", recompute_modules=("mlp",)),
    ),
    "aware": (
        "dense",
        "dgx-h100",
        Plan(tp=2, pp=2, dp=8, precision_aware_optimizer=True, param_remainders=False),
    ),
    "host optimizer": ("dense", "dgx-h100", Plan(tp=2, pp=2, dp=8, optimizer_offload=50)),
    "offload": ("dense", "dgx-h100", Plan(dp=8, offload_layers=80)),
    "graphs": ("dense", "dgx-h100", Plan(tp=2, pp=2, dp=8, cuda_graph=True)),
    "deferred": ("dense", "dgx-h100", Plan(tp=2, pp=2, dp=8, defer_embedding_wgrad=True)),
    "dropout": ("dense", "dgx-h100", Plan(tp=2, pp=2, dp=8, dropout=True)),
    "mxfp8": (
        "dense",
        "dgx-b200",
        Plan(tp=2, pp=2, dp=8, precision="mxfp8", fp8_param_gather=True, reuse_grad_buf=False),
    ),
    "delayed": ("dense", "dgx-h100", Plan(tp=2, pp=2, dp=8, precision="fp8-delayed")),
    "vision": ("vision", "dgx-h100", Plan(tp=2, pp=2, dp=8)),
    "vision apart": ("vision", "dgx-h100", Plan(tp=2, pp=2, dp=8, encoder_tp=1, encoder_pp=1)),
    "experts": (
        "experts",
        "gb200-nvl72",
        Plan(pp=4, vpp=4, dp=64, ep=64, precision="mxfp8", pipeline_layout="balanced"),
    ),
    "registered": ("dense", "gb200-nvl72", Plan(dp=64, nvls=True)),
    "tensor parallel experts": (
        "experts",
        "gb200-nvl72",
        Plan(tp=2, pp=4, dp=32, ep=32, etp=2, sequence_parallel=True, pipeline_layout="balanced"),
    ),
    "dropped tokens": ("experts", "dgx-b200", Plan(dp=64, ep=64, moe_capacity_factor=1.0)),
    # Dispatch takes longer than the experts forward, and less than their backward pass.
    "overlapped": ("experts", "dgx-b200", OVERLAPPED),
    "deepep": ("experts", "gcp-a3-highgpu-8g", OVERLAPPED),
}
# Where a knob acts, when the first base is not such a place.
WHERE = {
    "calculate_per_token_loss": "fsdp in 16 bits",
    "wgrad_deferral_limit": "deferred",
    "cp_a2a_size": "mixed exchange",
    "cp_comm_type": "mixed exchange",
    "ep": "experts",
    "etp": "tensor parallel experts",
    "fsdp": "flat",
    "zero_stage": "flat",
    "bucket_size": "flat",
    "overlap_param_gather": "flat",
    "nccl_ub": "registered",
    "sharp": "flat",
    "nvl_segment": "experts",
    "fsdp_implementation": "fsdp",
    "fsdp_shard_size": "fsdp",
    "outer_dp_sharding_strategy": "replicas of shards",
    "optimizer": "flat",
    "main_params_dtype": "aware",
    "main_grads_dtype": "aware",
    "exp_avg_dtype": "aware",
    "exp_avg_sq_dtype": "aware",
    "param_remainders": "aware",
    "overlap_optimizer_offload": "host optimizer",
    "reuse_grad_buf": "mxfp8",
    # With scales that are made anew and moments in FP32 it changes nothing.
    "precision_aware_optimizer": "host optimizer",
    "encoder_tp": "vision apart",
    "encoder_pp": "vision",
    "recompute_num_layers": "recompute",
    "recompute_modules": "selective",
    "offload_weights": "offload",
    "offload_layers": "offload",
    "cuda_graph_scope": "graphs",
    "bias_dropout_fusion": "dropout",
    "delay_wgrad": "overlapped",
    "overlap_moe_comm": "deepep",
    "dispatcher_sms": "deepep",
    "shared_expert_overlap": "experts",
    "expert_mlp_fusion": "experts",
    "fp8_output": "mxfp8",
    "tp_only_amax_red": "delayed",
} | {name: "experts" for name in KNOBS if name.startswith("moe_")}
WHERE["moe_pad_expert_input_to_capacity"] = "dropped tokens"
NUMBERS = {"int": (0, 1, 2, 4, 8, 16, 32, 80, 10_000_000), "float": (0.5, 1.0, 1.25, 2.0)}
LISTS = {
    "recompute_modules": [("layernorm",), ("core_attn",)],
    "offload_modules": [("core_attn",)],
    "cuda_graph_scope": [("attn",)],
}
# A change of the sharding comes with another.
TOGETHER = {
    "fsdp": [{"fsdp": True, "zero_stage": 3}],
    "offload_modules": [{"offload_modules": ("core_attn",)}],
    "pipeline_layout": [{"pipeline_layout": "balanced", "account_loss": True}],
}


@cache
def predicted(base: str) -> Prediction:
    """The base as it stands."""
    return changed(base, {})


def changed(base: str, knobs: dict[str, object]) -> Prediction:
    """The base with some knobs changed; ValueError where they do not go together."""
    model, where, plan = BASES[base]
    batch = 256 if model == "experts" else 64
    return predict(MODELS[model], Workload(8192, batch), load_cluster(where), replace(plan, **knobs))


def changes_of(name: str) -> list[dict[str, object]]:
    """Other values of a knob."""
    knob = KNOBS[name]
    if name in TOGETHER:
        return TOGETHER[name]
    if knob.kind == "bool":
        return [{name: True}, {name: False}]
    if knob.kind == "choice":
        return [{name: value} for value in knob.choices]
    return [{name: value} for value in LISTS.get(name) or NUMBERS[knob.kind]]


def leaves(prediction: Prediction) -> dict[str, float]:
    """Leaves of both trees, with the step's time."""
    trees = (prediction.time, prediction.memory)
    return {leaf.name: leaf.value for tree in trees for leaf in tree.leaves()} | {
        "step_time": prediction.step_time_s
    }


def same(before: float, after: float) -> bool:
    """Equal but for rounding."""
    return math.isclose(before, after, rel_tol=1e-12)


def moved(name: str) -> set[str]:
    """Leaves that the first change of the knob that moves any moves."""
    base = WHERE.get(name, "pipeline")
    before = leaves(predicted(base))
    for knobs in changes_of(name):
        try:
            after = leaves(changed(base, knobs))
        except ValueError:
            continue
        found = {leaf for leaf in before | after if not same(before.get(leaf, 0.0), after.get(leaf, 0.0))}
        if found:
            return found
    return set()


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_moves_a_term_unless_its_record_says_nothing(name):
    assert bool(moved(name)) != KNOBS[name].changes.startswith("nothing: ")


@pytest.mark.parametrize(
    ("name", "leaf"),
    [
        ("fsdp_implementation", "fsdp_exposed"),
        ("bucket_size", "dp_gradients"),
        ("nccl_ub", "dp_gradients"),
        ("fsdp", "fsdp_exposed"),
        ("calculate_per_token_loss", "fsdp_exposed"),
        ("cudnn_norms", "forward_quantise"),
        ("fsdp_shard_size", "fsdp_exposed"),
        ("outer_dp_sharding_strategy", "fsdp_exposed"),
        ("outer_dp_sharding_strategy", "memory_first_optimizer"),
        ("optimizer_instances", "dp_gradients"),
        ("main_params_dtype", "memory_first_optimizer"),
        ("exp_avg_dtype", "memory_first_optimizer"),
        ("exp_avg_sq_dtype", "memory_first_optimizer"),
        ("param_remainders", "memory_first_optimizer"),
        ("reuse_grad_buf", "memory_first_weights"),
        ("vpp_group_size", "memory_first_activations"),
        ("pipeline_flushes", "pipeline_bubble"),
        ("wgrad_deferral_limit", "vocabulary"),
        ("encoder_tp", "pipeline_bubble"),
        ("check_for_nan_in_grad", "nan_checks"),
        ("tp_only_amax_red", "maxima"),
    ],
)
def test_a_knob_moves_the_term_that_its_record_names(name, leaf):
    assert leaf in moved(name)
