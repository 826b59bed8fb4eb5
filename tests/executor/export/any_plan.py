"""Plans that our rules call legal, over all knobs and families: the generator for tests of exports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import hardware_db
from advisor.rules import violations
from costmodel.knobs import KNOBS
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.exported import Job

# Picks one of some values: random.Random.choice, or a draw of hypothesis.
Choose = Callable[[Sequence[Any]], Any]
MODELS = (
    "llama3-8b",
    "llama3-70b",
    "gpt3-20b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2",
    "deepseek-v3",
    "nemotronh-8b",
    "nemotron3-nano-30b-a3b",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
)
MACHINES = ("dgx-h100", "dgx-b200", "gb200-nvl72", "dgx-a100")
# Values to try for knobs beside the sizes.
VALUES: dict[str, tuple[Any, ...]] = {
    "micro_batch": (2, 4),
    "precision": ("fp8-cs", "fp8-delayed", "fp8-sc", "mxfp8", "nvfp4", "fp32", "fp16"),
    "sequence_parallel": (True,),
    "zero_stage": (0,),
    "cp_comm_type": ("all_gather", "a2a"),
    "recompute": ("selective", "full"),
    "recompute_modules": (("core_attn",), ("mlp",), ("layernorm", "core_attn"), ("moe",), ("mla_up_proj",)),
    "recompute_num_layers": (2,),
    "attention_backend": ("unfused",),
    "account_embedding": (True,),
    "account_loss": (True,),
    "pipeline_layout": ("balanced",),
    "first_stage_layers": (1, 2, 3),
    "last_stage_layers": (1, 2, 3),
    "vpp_group_size": (4, 8),
    "pipeline_flushes": (2,),
    "wgrad_deferral_limit": (22,),
    "moe_dispatcher": ("allgather", "deepep", "hybridep"),
    "dispatcher_sms": (24,),
    "moe_capacity_factor": (1.0, 1.5),
    "moe_pad_expert_input_to_capacity": (True,),
    "optimizer_instances": (2,),
    "bucket_size": (200_000_000,),
    "optimizer": ("muon",),
    "exp_avg_dtype": ("bf16", "fp8"),
    "exp_avg_sq_dtype": ("fp16",),
    "main_grads_dtype": ("bf16",),
    "optimizer_offload": (50, 100),
    "offload_layers": (2,),
    "offload_modules": (("core_attn",), ("moe_act",)),
    "bf16_end_layers": (1,),
    "cuda_graph_scope": (("attn",), ("full_iteration",), ("moe_router",)),
    "max_connections": (1, 8, 32),
    "layernorm_sm_margin": (0, 20),
    "tp_overlap_sms": (8,),
    "tp_overlap_splits": (2,),
    "fsdp_shard_size": (2, 4, 8),
    "outer_dp_sharding_strategy": ("optim",),
}


def with_adam(job: Job) -> Job:
    """The job with the optimizer that every release has."""
    return replace(job, plan=replace(job.plan, optimizer="adam"))


def with_even_stages(job: Job) -> Job:
    """The job with one plain chunk a stage where its layers have a pattern: most targets take no other split."""
    even = {
        "vpp": 1,
        "vpp_group_size": 0,
        "pipeline_layout": "",
        "account_embedding": False,
        "account_loss": False,
    }
    return replace(job, plan=replace(job.plan, **even)) if job.model.layer_pattern else job


def any_job(choose: Choose, names: Sequence[str] = MODELS, version: str = "") -> Job:
    """A job whose plan breaks no ERROR rule; memory is no matter here."""
    model = load_model(choose(names))
    cluster = hardware_db.load_cluster(choose(MACHINES))
    plan, workload = _sizes(choose, model, cluster)
    for name in _some(choose, [*KNOBS, "fsdp", "fsdp", "recompute", "precision", "pipeline_layout"]):
        changed = _changed(plan, name, choose)
        if changed is not None and is_legal(model, workload, cluster, changed):
            plan = changed
    return Job(plan, workload, model, cluster, version=version)


def is_legal(model: ModelSpec, workload: Workload, cluster: hardware_db.Cluster, plan: Plan) -> bool:
    """Whether no ERROR rule refuses the plan."""
    try:
        plan.num_microbatches(workload.global_batch)
    except ValueError:
        return False
    found = violations(model, workload, cluster, plan, plan.world)
    return all(each.severity != "ERROR" for each in found)


def _some(choose: Choose, names: Sequence[str]) -> list[str]:
    """About a third of the names, in the order of the catalogue; FSDP before what needs it."""
    order = sorted(dict.fromkeys(names), key=lambda name: (name != "fsdp", list(KNOBS).index(name)))
    return [name for name in order if choose((True, False, False))]


def _sizes(choose: Choose, model: ModelSpec, cluster: hardware_db.Cluster) -> tuple[Plan, Workload]:
    for _ in range(200):
        tp, pp, cp = choose((1, 1, 2, 4, 8)), choose((1, 1, 2, 4, 8)), choose((1, 1, 1, 2, 4))
        dp = choose((1, 2, 4, 8, 16))
        experts = model.moe is not None
        vpp = choose((1, 1, 2, 4)) if pp > 1 else 1
        ep, etp = (choose((1, 2, 4, 8, 16)), choose((1, 1, tp))) if experts else (1, 1)
        sizes = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "vpp": vpp, "ep": ep, "etp": etp}
        plan = Plan(**sizes, sequence_parallel=tp > 1 and (experts or choose((True, False))))
        workload = Workload(choose((2048, 4096, 8192)), plan.dp * pp * choose((2, 4, 8)))
        if is_legal(model, workload, cluster, plan):
            return plan, workload
    return Plan(dp=8), Workload(4096, 64)


def _changed(plan: Plan, name: str, choose: Choose) -> Plan | None:
    """The plan with another value of a knob, None where it stays."""
    knob = KNOBS[name]
    if name in ("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "encoder_tp", "encoder_pp"):
        return None
    if name == "fsdp":
        return replace(plan, fsdp=True, zero_stage=choose((2, 3))) if plan.pp == 1 else None
    value = (
        choose(VALUES[name]) if name in VALUES else not getattr(plan, name) if knob.kind == "bool" else None
    )
    if value is None:
        return None
    try:
        return replace(plan, **{name: value})
    except ValueError:
        return None
