"""Rules meet reality: what our ERROR rules refuse, Megatron refuses where it checks at all; what they allow, it takes.

The violating plans are those of tests/advisor/rule_cases. EXPORTED: the exported arguments of the violating plan are
refused by Megatron-LM's parser, its configuration classes or its process groups. CHANGED: our export never says it,
so the arguments of the plan beside it are changed until they do. DIRECT: a function of Megatron-Core alone checks it.
ELSEWHERE: nothing that runs here does, and why we have the rule.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rules_elsewhere import ELSEWHERE

import hardware_db
from advisor.rules import load_rules
from advisor.rules.features import load_features
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.exported import Job

ROOT = Path(__file__).parents[2]
for folder in ("tools", "benchmarks"):
    sys.path.insert(0, str(ROOT / folder))
CASES = {
    name: case
    for table in sorted((ROOT / "tests" / "advisor" / "rule_cases").glob("*.toml"))
    for name, case in tomllib.loads(table.read_text()).items()
}
MACHINES = {
    "ampere": "dgx-a100",
    "hopper": "dgx-h100",
    "blackwell": "dgx-b200",
    "blackwell-ultra": "dgx-b300",
}
# What a stack lacks is refused by that stack: by other releases or frameworks than the one that runs here.
STACKS = {feature.rule: feature.source for feature in load_features()}
# Rule -> part of what Megatron says to the exported plan.
EXPORTED = {
    "heads_over_tp": "must be a multiple of tensor_model_parallel_size",
    "delta_heads": "must be a multiple of",
    "uneven_layers": "must be divisible by",
    "uneven_vpp": "must be divisible by virtual pipeline",
    "uneven_account": "cannot be",
    "vpp_needs_pp": "pipeline-model-parallel size should be greater than 1",
    "p2p_warmup_flush": "overlapping in warmup and flush",
    "defer_needs_pp": "pipeline model parallel is not used",
    "defer_needs_fusion": "gradient accumulation fusion is not used",
    "mtp_positions": "not supported with learned_absolute",
    "mapping_order": "data parallel size of the attention and moe layers must be the same",
    "expert_mesh": "is not divisible by expert_tensor_model_pipeline_parallel size",
    "instances_divide": "should be divisible by partial DistOpt shard factor",
    "sequence_over_cp": "multiple of 2 * context-parallel-size",
    "ep_dense": "num_experts must be non None",
    "experts_over_ep": "multiple of expert model parallel_size",
    "etp_bias": "only supported when ETP==1",
    "capacity_balancing": "moe_expert_capacity_factor only works with",
    "shared_overlap_dispatcher": "only works with alltoall or flex",
    "shared_overlap_recompute": "shared_experts recompute cannot work",
    "router_padding": "must be specified when moe_router_padding_for_quantization",
    "pad_needs_capacity": "moe_expert_capacity_factor must be set",
    "paged_stash": "moe_paged_stash requires moe_expert_rank_capacity_factor",
    "rank_capacity_dispatcher": "requires moe_flex_dispatcher_backend",
    "rank_capacity_fused": "requires use_transformer_engine_op_fuser",
    "fp8_output_mxfp8": "fp8_output_proj requires fp8_recipe",
    "ep_overlap_needs_vpp": "virtual_pipeline_model_parallel_size must be specified",
    "ep_overlap_needs_ep": "only supported with expert model parallelism",
    "ep_overlap_dispatcher": "alltoall/flex token dispatcher",
    "ep_overlap_recompute": "disable full recomputation",
    "ep_overlap_shared": "disable moe_shared_expert_overlap",
    "ep_overlap_mtp": "MTP supports at most one layer",
    "ep_overlap_precision": "only supported with bf16 or fp16",
    "ep_overlap_graph": "",
    "delay_wgrad_needs_overlap": "must be enabled when enabling delay_wgrad_compute",
    "delay_wgrad_graph": "requires gradient_accumulation_fusion",
    "ep_memory_release": "must be enabled when enabling ep_overlap_early_attn_memory_release",
    "tp_overlap_needs_sp": "only when sequence parallelism is enabled",
    "gather_with_step": "only supported with interleaved pipeline parallelism",
    "fsdp_checkpoint": "requires the `fsdp_dtensor`",
    "fsdp_checkpoint_alone": "only tested with Megatron FSDP",
    "torch_fsdp_sizes": "not supported with pipeline parallelism",
    "muon_fsdp": "Megatron-FSDP does not support the",
    "optimizer_offload_fp8": "must be used in conjunction with `--fp8-recipe delayed`",
    "param_gather_needs_fp8": "fp8_param must be used together with fp8",
    "param_gather_needs_sharding": "only supported with distributed optimizer",
    "bf16_ends_delayed": "does not support first / last layer in BF16",
    "bf16_ends_range": "must be between 0 and number of layers per pipeline stage",
    "recompute_delayed_scaling": "Delayed scaling does not support",
    "recompute_moe_act": "only supported with moe_grouped_gemm",
    "recompute_mla": "only supported with multi_latent_attention",
    "offload_layers_pp": "no support for Pipeline parallelism with CPU offloading",
    "offload_layers_recompute": "does not work when activation recomputation is enabled",
    "offload_layers_range": "only for layers less than",
    "offload_layers_graph": "not supported with CPU offloading",
    "offload_twice": "cannot be enabled with cpu_offloading",
    "offload_projection": "attn_proj cannot be set to offload_modules alone",
    "offload_recomputed": "while recomputing the entire MoE layer",
    "offload_graph_experts": "Token-drop MoE is temporarily not supported with activation offloading",
    "recompute_full_graph": "only supported with full iteration CUDA graph",
    "graph_dropout": "dropout is not supported with graphed",
    "graph_moe_router": "must not contain both moe and moe_router",
    "graph_preprocess_router": "only supported with moe_router cuda graph",
    "graph_moe_dropless": "only supported with drop-padding MoE",
    "graph_mlp_sparse": "only supported for dense layers",
    "graph_moe_dense": "only supported for MoE",
    "graph_preprocess_alltoall": "not supported when there are DtoH copies",
    "graph_recomputed_router": "moe recompute is not supported with moe_router",
    "max_connections_fsdp_one": "requires CUDA_DEVICE_MAX_CONNECTIONS > 1",
    "shared_ffn_over_tp": "must be a multiple of tensor_model_parallel_size",
    "kv_heads_over_tp": "must be a multiple of tensor_model_parallel_size",
    "ffn_over_tp": "must be a multiple of tensor_model_parallel_size",
}
# Rule -> arguments put over those of the plan that holds (None takes one away), the world, and what Megatron says.
CHANGED: dict[str, tuple[dict[str, Any], int, str]] = {
    "world": ({}, 60, "world size (60) is not divisible by total_model_size"),
    "pp_layers": ({"--pipeline-model-parallel-size": 6}, 48, "divisible by the pipeline-model-parallel size"),
    "vpp_layers": ({"--num-virtual-stages-per-pipeline-rank": 4}, 64, "num_layers_per_pipeline_rank"),
    "uneven_without_pp": ({"--decoder-first-pipeline-num-layers": 2}, 0, "middle"),
    "vpp_overlap_p2p": ({"--pipeline-model-parallel-size": 2}, 16, "should be greater than 2"),
    "layout_with_others": ({"--account-for-loss-in-pipeline-split": True}, 8, "cannot be set"),
    "a2a_p2p_size": ({"--hierarchical-context-parallel-sizes": [3, 2]}, 512, "prod"),
    "gather_needs_sharding": (
        {"--use-distributed-optimizer": None, "--overlap-param-gather": True, "--overlap-grad-reduce": True},
        0,
        "only supported with distributed optimizer",
    ),
    "recompute_layers_mode": (
        {"--recompute-granularity": "selective", "--recompute-method": None, "--recompute-num-layers": 2},
        0,
        "recompute_num_layers must be None",
    ),
    "graph_whole_alone": ({"--cuda-graph-modules": "attn"}, 0, "must be empty when"),
    "fake_flex": (
        {"--moe-token-dispatcher-type": "flex", "--fake-process-group": True},
        0,
        "not supported with flex token dispatcher",
    ),
}
# Plans that our rules allow beside a violation and Megatron-LM 0.19.2 refuses all the same: known gaps.
NARROWER = {
    "gather_with_step": "not supported with distributed checkpointing yet",
    "gather_with_step_buffers": "not supported with distributed checkpointing yet",
}


def optimizer_config(**fields: Any) -> None:
    """Build Megatron-Core's OptimizerConfig."""
    from megatron.core.optimizer import OptimizerConfig

    OptimizerConfig(**{"bf16": True, **fields})


def transformer_config(**fields: Any) -> None:
    """Build Megatron-Core's TransformerConfig."""
    from megatron.core.transformer import TransformerConfig

    TransformerConfig(**{"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, **fields})


def batch() -> None:
    """Share out a batch that does not divide."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    ConstantNumMicroBatchesCalculator(128, 1, 3, False, 0)


def experts_without_sequence_parallel() -> None:
    """A forward pass of experts on two tensor-parallel ranks without sequence parallelism."""
    from megatron.core.transformer.moe.moe_layer import MoELayer

    layer = SimpleNamespace(
        training=True,
        attn_tp_group=SimpleNamespace(size=lambda: 2),
        config=SimpleNamespace(sequence_parallel=False),
    )
    MoELayer.forward(layer, None)


def shards_of_expert() -> None:
    """What ColumnParallelLinear does with the width of an expert."""
    from megatron.core.utils import divide

    divide(768, 7)


def frozen_embedding() -> None:
    """The backward pass of an embedding that is a node of the overlapped schedule, as adapters leave it: frozen."""
    import torch
    from megatron.core.pipeline_parallel.utils import ScheduleNode

    embedding = torch.nn.Embedding(8, 4).requires_grad_(requires_grad=False)
    node = ScheduleNode(lambda: None, None, None)
    node.default_backward_func((embedding(torch.arange(4)),), (None,))


# Rule -> what refuses it in Megatron-Core 0.16.1, and part of what it says.
DIRECT: dict[str, tuple[Callable[[], None], str]] = {
    "sequence_parallel_needs_tp": (
        lambda: transformer_config(sequence_parallel=True),
        "sequence parallelism without",
    ),
    "states_need_aware": (
        lambda: optimizer_config(use_distributed_optimizer=True, exp_avg_dtype=_dtype("bfloat16")),
        "exp_avg_dtype",
    ),
    "precision_aware_needs_sharding": (
        lambda: optimizer_config(use_precision_aware_optimizer=True, use_distributed_optimizer=False),
        "distributed optimizer",
    ),
    "muon_states": (
        lambda: optimizer_config(
            optimizer="muon", use_precision_aware_optimizer=True, use_distributed_optimizer=True
        ),
        "only supported with adam",
    ),
    "batch_divides": (batch, "not divisible"),
    "moe_needs_sp": (experts_without_sequence_parallel, "sequence parallelism"),
    "expert_ffn_over_etp": (shards_of_expert, "divisible"),
    "ep_overlap_adapters": (frozen_embedding, "does not require grad"),
}


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def job_of(case: dict[str, Any], knobs: dict[str, Any]) -> Job:
    """The plan of a case in its setting."""
    model = changed(load_model(case.get("model", "llama3-70b")), case.get("model_change", {}))
    machine = MACHINES.get(case.get("on", "hopper"), case.get("on"))
    cluster = hardware_db.load_cluster(machine)
    if "domain" in case:
        cluster = replace(cluster, domain_size=case["domain"])
    values = dict(knobs)
    plan = Plan(**values)
    workload = Workload(
        case.get("seq_len", 8192), plan.micro_batch * plan.dp * 16, case.get("task", "pretrain")
    )
    return Job(plan, workload, model, cluster, benchmark=True)


def changed(model: ModelSpec, changes: dict[str, Any]) -> ModelSpec:
    """The model with other sizes; those of its experts stand under moe."""
    own = {name: value for name, value in changes.items() if name not in ("moe", "encoder")}
    if "moe" in changes and model.moe is not None:
        own["moe"] = replace(model.moe, **changes["moe"])
    return replace(model, **own)


def holding(name: str) -> Job:
    """The plan beside the violation."""
    case = CASES[name]
    return job_of(case | case.get("holds_in", {}), case.get("holds", {}))


def simple_groups(job: Job) -> bool:
    """Whether Megatron makes the groups without einops, which it wants for groups within groups."""
    return job.plan.cp == 1 and job.plan.optimizer_instances == 1


@pytest.fixture(scope="module")
def said(parser: ModuleType) -> dict[tuple[str, str], str]:
    """What Megatron says to each case: rule and "breaks", "holds" or "changed" -> its refusal, "" for none."""
    from export_sweep import parser_job

    jobs = {}
    for name in EXPORTED:
        jobs[name, "breaks"] = parser_job(job_of(CASES[name], CASES[name].get("breaks", {}))) | {
            "groups": True
        }
    for name in (*EXPORTED, *CHANGED):
        if "holds" in CASES[name] or "holds_in" in CASES[name]:
            jobs[name, "holds"] = parser_job(holding(name)) | {"groups": simple_groups(holding(name))}
    for name, (arguments, world, _) in CHANGED.items():
        jobs[name, "changed"] = with_arguments(parser_job(holding(name)), arguments, world)
    answers = parser.parse_all(list(jobs.values()))
    return {key: answer["refused"] for key, answer in zip(jobs, answers, strict=True)}


def with_arguments(job: dict[str, Any], arguments: dict[str, Any], world: int) -> dict[str, Any]:
    """The job with other arguments."""
    words: list[str] = []
    skipping = False
    for word in job["arguments"]:
        skipping = word in arguments if word.startswith("--") else skipping
        words += [] if skipping else [word]
    for flag, value in arguments.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [] if value is None else [flag, *(str(each) for each in values)]
    return job | {"arguments": words, "world": world or job["world"]}


def test_every_error_rule_is_accounted_for():
    errors = {rule.id for rule in load_rules() if rule.severity == "ERROR"} | set(STACKS)
    tables = [set(table) for table in (EXPORTED, CHANGED, DIRECT, ELSEWHERE, STACKS)]
    assert set.union(*tables) == errors
    assert sum(len(table) for table in tables) == len(errors)


@pytest.mark.parametrize("rule", EXPORTED)
def test_megatron_refuses_the_exported_violation(rule, said):
    assert said[rule, "breaks"], f"Megatron-LM takes what {rule} refuses"
    assert EXPORTED[rule] in said[rule, "breaks"]


@pytest.mark.parametrize("rule", CHANGED)
def test_megatron_refuses_the_violation_that_no_export_says(rule, said):
    assert CHANGED[rule][2] in said[rule, "changed"]


@pytest.mark.parametrize("rule", DIRECT)
def test_megatron_core_refuses_the_violation(rule):
    pytest.importorskip("megatron.core")
    build, text = DIRECT[rule]
    with pytest.raises((ValueError, AssertionError, RuntimeError), match=text):
        build()


@pytest.mark.parametrize(
    "rule", [name for name in (*EXPORTED, *CHANGED) if {"holds", "holds_in"} & set(CASES[name])]
)
def test_megatron_takes_the_plan_beside_the_violation(rule, said):
    assert NARROWER.get(rule, "") in said[rule, "holds"]
    assert rule in NARROWER or not said[rule, "holds"]
