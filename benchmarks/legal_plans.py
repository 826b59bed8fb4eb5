"""Random legal plans of small worlds, for the conformance of amounts: one generator for tests and sweeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import hardware_db
from advisor.rules import violations
from advisor.rules.predicted_words import UNPREDICTED
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload

# Picks one of some values: random.Random.choice, or a draw of hypothesis.
Choose = Callable[[Sequence[Any]], Any]
SEQUENCES = (1024, 2048, 4096)
DENSE_MODULES = ("core_attn", "mlp", "layernorm")
EXPERT_MODULES = ("core_attn", "layernorm", "moe_act", "moe", "shared_experts")
TRIES = 200
LOCAL_EXPERTS = 16
# Knobs beside parallel sizes, of which a plan takes as many as are legal of this number of draws.
DRAWN_KNOBS = 4
KNOB_CHANGES: tuple[dict[str, Any], ...] = (
    {"account_embedding": True},
    {"account_loss": True},
    {"attention_backend": "unfused"},
    {"bf16_end_layers": 1},
    {"bias_activation_fusion": False},
    {"bias_dropout_fusion": False},
    {"bucket_size": 10_000_000},
    {"calculate_per_token_loss": True},
    {"cp": 4, "cp_comm_type": "a2a+p2p", "cp_a2a_size": 2},
    {"cross_entropy_fusion_impl": "native"},
    {"defer_embedding_wgrad": True},
    {"delay_wgrad": True},
    {"dropout": True},
    {"exp_avg_dtype": "bf16"},
    {"expert_mlp_fusion": True},
    {"first_stage_layers": 1},
    {"fp8_attention": True},
    {"fp8_param_gather": True},
    {"gradient_accumulation_fusion": False},
    {"main_grads_dtype": "bf16"},
    {"main_params_dtype": "fp16"},
    {"moe_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
    {"moe_capacity_factor": 1.25},
    {"moe_capacity_factor": 0.5},
    {"moe_grouped_gemm": False},
    {"moe_permute_fusion": False},
    {"moe_router_fusion": False},
    {"optimizer_instances": 2},
    {"overlap_moe_comm": True},
    {"overlap_p2p": False},
    {"precision": "fp16"},
    {"precision": "fp8-delayed"},
    {"precision": "mxfp8"},
    {"precision_aware_optimizer": True},
    {"recompute": "selective", "recompute_modules": ("core_attn", "layernorm")},
    {"recompute": "selective", "recompute_modules": ("mla_up_proj", "layernorm")},
    {"recompute": "selective", "recompute_modules": ("moe", "mla_up_proj")},
    {"recompute": "selective", "recompute_modules": ("shared_experts", "moe_act", "core_attn")},
    {"reuse_grad_buf": True},
    {"rope_fusion": False},
    {"shared_expert_overlap": True},
    {"vpp_group_size": 4},
)


@lru_cache(maxsize=1)
def _cluster() -> hardware_db.Cluster:
    return hardware_db.resolve("h100", None)[0]


def draw(choose: Choose, model: ModelSpec) -> tuple[Plan, Workload]:
    """A plan that our rules call legal, and a workload that it divides. Memory is no matter here."""
    for _ in range(TRIES):
        try:
            plan, workload = _any(choose, model)
            if is_legal(plan, workload, model):
                return _changed(choose, plan, workload, model), workload
        except ValueError:
            continue  # sizes that do not fit together: draw again
    return Plan(), Workload(SEQUENCES[0], 4)


def _changed(choose: Choose, plan: Plan, workload: Workload, model: ModelSpec) -> Plan:
    """The plan with some knobs more, each of which leaves it legal."""
    for _ in range(DRAWN_KNOBS):
        with contextlib.suppress(ValueError):  # changes that do not fit the plan are left out
            changed = replace(plan, **choose(KNOB_CHANGES))
            if is_legal(changed, workload, model):
                plan = changed
    return plan


def is_legal(plan: Plan, workload: Workload, model: ModelSpec) -> bool:
    """Whether no rule refuses the plan."""
    words = dict(UNPREDICTED) | {"memory_percent": 50}
    found = violations(model, workload, _cluster(), plan, plan.world, words)
    return all(violation.severity != "ERROR" for violation in found)


def small(model: ModelSpec, layers: int) -> ModelSpec:
    """The model with fewer layers, so that a trace takes seconds; everything within a layer stays."""
    if model.num_layers <= layers:
        return model
    fewer: dict[str, Any] = {"num_layers": layers, "params_published": None, "params_computed": None}
    fewer["params_active_computed"] = None
    if model.layer_pattern:
        fewer["layer_pattern"] = _short_pattern(model.layer_pattern, layers)
    if model.moe is not None and model.moe.dense_first_layers:
        fewer["moe"] = replace(model.moe, dense_first_layers=1)
    return replace(model, **fewer)


def _short_pattern(pattern: str, layers: int) -> str:
    """A pattern of fewer letters that has every letter of the long one."""
    kinds = "".join(dict.fromkeys(pattern))
    return (kinds * layers)[:layers]


def _any(choose: Choose, model: ModelSpec) -> tuple[Plan, Workload]:
    tp, cp, pp = choose((1, 2, 4, 8)), choose((1, 1, 2)), choose((1, 1, 2, 4))
    experts = model.moe.num_experts if model.moe is not None else 1
    # Few experts on a rank, whose products are traced one by one.
    dp = choose((1, 2, 4, 8) if experts <= 2 * LOCAL_EXPERTS else (8, 16, 32))
    sizes = [each for each in (1, 2, 4, 8, 16, 32) if experts / each <= LOCAL_EXPERTS]
    ep = choose(sizes) if model.moe is not None else 1
    recompute = choose(("none", "none", "selective", "full"))
    modules = EXPERT_MODULES if model.moe is not None else DENSE_MODULES
    modules += ("mla_up_proj",) if model.mla is not None else ()
    zero_stage, overlap = choose((0, 1, 1, 1)), choose((True, False))
    plan = Plan(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=ep,
        etp=choose((1, 1, tp)) if ep > 1 else 1,
        moe_dispatcher=choose(("alltoall", "alltoall", "allgather")) if ep > 1 else "alltoall",
        vpp=choose((1, 2)) if pp > 1 else 1,
        sequence_parallel=tp > 1 and choose((True, True, False)),
        micro_batch=choose((1, 2)),
        cp_comm_type=choose(("p2p", "all_gather", "a2a")),
        zero_stage=zero_stage,
        grad_reduce_in_fp32=choose((True, False)),
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap and zero_stage > 0,
        recompute=recompute,
        recompute_modules=(choose(modules),) if recompute == "selective" else (),
        fused_cross_entropy=choose((True, False)),
        precision=choose(("bf16", "bf16", "fp32", "fp8-cs")),
    )
    length = choose(SEQUENCES)
    if model.learned_positions:
        length = min(length, model.learned_positions)
    return plan, Workload(length, plan.micro_batch * plan.dp * plan.pp * choose((1, 2)))
