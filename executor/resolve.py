"""What of a plan really runs on the machine at hand, and the receipt: requested, resolved, observed.

A plan for GPUs asks for kernels and overlaps that need CUDA, Transformer Engine or more ranks than there are. A run
without them is a run of another plan, and that plan is what is predicted, trained and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan

TE = "needs Transformer Engine"
APEX = "needs Apex's fused_weight_gradient_mlp_cuda: Megatron-Core's output layer accumulates with it"
CUDA = "needs a CUDA device"
WHOLE = "`run` times phases, which one graph of the whole step has no place for"
ON_HOST = "Megatron-Core 0.16's all-gather dispatcher hands the fused kernel a number that lies on the host"
ALONE = "one data-parallel rank has nobody to share with"


@dataclass(frozen=True)
class Here:
    """What a run finds: NVIDIA devices, Transformer Engine, and Apex's kernel that accumulates weight gradients."""

    cuda: bool = False
    te: bool = False
    apex: bool = False


@dataclass(frozen=True)
class Feature:
    """One line of the receipt. observed: what the ranks saw, "" when nobody looked."""

    name: str
    requested: Any
    resolved: Any
    observed: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


# Knob, value that runs instead, why. Values that Transformer Engine's kernels or Apex's bring.
WITHOUT_TE: tuple[tuple[str, Any, str], ...] = (
    ("rope_fusion", False, TE),
    ("fused_cross_entropy", False, TE),
    ("tp_comm_overlap", False, TE),
    ("cuda_graph", False, TE),
    ("cuda_graph_scope", (), TE),
    ("moe_grouped_gemm", False, f"{TE}: experts run one after the other"),
    ("moe_permute_fusion", False, TE),
    ("moe_router_fusion", False, TE),
    ("expert_mlp_fusion", False, TE),
    ("fp8_output", False, TE),
    ("overlap_moe_comm", False, TE),
    ("delay_wgrad", False, TE),
    ("defer_embedding_wgrad", False, "needs the fused accumulation of gradients"),
    ("precision_aware_optimizer", False, f"{TE}: its fused Adam"),
    ("offload_layers", 0, TE),
    ("offload_weights", False, TE),
    ("offload_modules", (), TE),
    ("nccl_ub", False, TE),
    ("cudnn_norms", False, TE),
    ("bias_dropout_fusion", False, CUDA),
    ("bias_activation_fusion", False, CUDA),
)
COMPILED = ("bias_dropout_fusion", "bias_activation_fusion")  # torch.compile makes these, on CUDA
WITHOUT_CUDA: tuple[tuple[str, Any, str], ...] = (
    ("shared_expert_overlap", False, CUDA),
    ("optimizer_offload", 0, CUDA),
    ("overlap_optimizer_offload", False, CUDA),
    ("nvls", False, CUDA),
    ("sharp", False, CUDA),
    ("vboost", False, CUDA),
)
NEVER: tuple[tuple[str, Any, str], ...] = (
    ("calculate_per_token_loss", False, "runs divide the loss by micro-batches"),
    ("optimizer", "adam", "runs train with Adam; what `advisor export` writes trains with Muon"),
)
ONE_RANK: tuple[tuple[str, Any, str], ...] = (
    ("zero_stage", 0, ALONE),
    ("overlap_grad_reduce", False, ALONE),
    ("overlap_param_gather", False, ALONE),
)
# Always on the receipt, whether they change or not: precision, attention, overlaps, fusions, sharding.
SHOWN = (
    *("precision", "attention_backend", "cp_comm_type", "sequence_parallel", "recompute", "zero_stage"),
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "tp_comm_overlap"),
    *("gradient_accumulation_fusion", "rope_fusion", "fused_cross_entropy", "cuda_graph"),
)
SHOWN_EXPERTS = ("moe_dispatcher", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")


def resolve(plan: Plan, model: ModelSpec, here: Here) -> tuple[Plan, dict[str, str]]:
    """The plan that runs here, and why each changed knob changed."""
    changes: dict[str, tuple[Any, str]] = {}

    def change(rows: tuple[tuple[str, Any, str], ...]) -> None:
        for name, value, why in rows:
            if getattr(plan, name) != value:
                changes[name] = (value, why)

    if not here.te:
        change(tuple(row for row in WITHOUT_TE if not (here.cuda and row[0] in COMPILED)))
    if not here.apex:
        # Also with Transformer Engine, whose own layers would not need it: one field says it for all layers.
        change((("gradient_accumulation_fusion", False, APEX),))
    if not here.cuda:
        change(WITHOUT_CUDA)
    change(NEVER)
    if plan.cuda_graph and "full_iteration" in plan.cuda_graph_scope:
        change((("cuda_graph", False, WHOLE), ("cuda_graph_scope", (), WHOLE)))
    if plan.moe_dispatcher in ("deepep", "hybridep") and not (here.cuda and here.te):
        changes["moe_dispatcher"] = ("alltoall", f"{plan.moe_dispatcher} needs its CUDA library")
    if plan.moe_dispatcher == "allgather" and here.te:
        change((("moe_permute_fusion", False, ON_HOST),))
    if plan.attention_backend != "fused" and not here.te:
        changes["attention_backend"] = ("fused", "torch's scaled_dot_product_attention stands in")
    if plan.cp > 1 and not here.te:
        gathered = (
            ("cp_comm_type", "all_gather", "other exchanges need Transformer Engine"),
            ("cp_a2a_size", 1, TE),
        )
        change(gathered)
    if plan.dp * plan.cp == 1 and not plan.fsdp:
        change(ONE_RANK)
    if model.moe is None:
        changes = {name: value for name, value in changes.items() if not name.startswith("moe_")}
    values = {name: value for name, (value, _) in changes.items()}
    return replace(plan, **values), {name: why for name, (_, why) in changes.items()}


def receipt(
    requested: Plan, resolved: Plan, why: Mapping[str, str], observed: Mapping[str, str], model: ModelSpec
) -> list[Feature]:
    """Requested, resolved and observed of every feature that matters to this plan."""
    names = [*SHOWN, *(SHOWN_EXPERTS if model.moe is not None else ())]
    names += [name for name in why if name not in names]
    idle = {
        "overlap_p2p": resolved.pp == 1,
        "sequence_parallel": resolved.tp == 1,
        "cp_comm_type": resolved.cp == 1,
    }
    names = [name for name in names if not idle.get(name)]
    return [
        Feature(
            name, getattr(requested, name), getattr(resolved, name), observed.get(name, ""), why.get(name, "")
        )
        for name in names
    ]
