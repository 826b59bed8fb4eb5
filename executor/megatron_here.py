"""A plan in Megatron-Core's words for this machine: without Transformer Engine, perhaps without CUDA.

What a real run sets stands in `megatron_args`; here is what changes, and what cannot run here at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import core_fields
from executor.megatron_training import ddp_fields


def without_te() -> dict[str, Any]:
    """Fields that change where Transformer Engine and Apex are absent: their kernels are off."""
    return {
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }


def transformer_config(plan: Plan, model: ModelSpec, cuda: bool) -> dict[str, Any]:
    """Fields of TransformerConfig for a run on this machine, but for types that need torch.

    No Transformer Engine here: attention has no dropout, the loss is not fused, and stages keep what they sent.
    """
    fields = core_fields(plan, model) | without_te()
    fields |= {"attention_dropout": 0.0, "deterministic_mode": not cuda, "deallocate_pipeline_outputs": False}
    left_out = ("params_dtype", "pipeline_dtype", "bf16", "fp16", "activation_func", "attention_backend")
    left_out += ("cross_entropy_loss_fusion", "cuda_graph_impl", "cuda_graph_scope", "tp_comm_overlap")
    return {name: value for name, value in fields.items() if name not in left_out}


def ddp_config(plan: Plan) -> dict[str, Any]:
    """Fields of DistributedDataParallelConfig for a run on this machine; one rank shards and overlaps nothing."""
    fields = ddp_fields(plan)
    several = plan.dp > 1
    sharded = fields["use_distributed_optimizer"] and several and not plan.fsdp
    return {
        "grad_reduce_in_fp32": fields["grad_reduce_in_fp32"],
        "overlap_grad_reduce": fields["overlap_grad_reduce"] and several,
        "overlap_param_gather": fields["overlap_param_gather"] and sharded,
        "use_distributed_optimizer": sharded,
    }


# What a trace leaves out of a plan, by field, and why; value to trace with. None drops the field.
UNTRACED: dict[str, tuple[Any, str]] = {
    "fp8": (None, "traced in bf16: Transformer Engine changes copies and casts, not FLOPs"),
    "fp4": (None, "traced in bf16: Transformer Engine changes copies and casts, not FLOPs"),
    "cuda_graph_impl": (None, "traced without CUDA graphs: they replay the same kernels"),
    "tp_comm_overlap": (False, "traced with plain collectives: user buffers send the same bytes in pieces"),
    "cpu_offloading": (None, "traced without offloading of layers to host memory"),
    "fine_grained_activation_offloading": (None, "traced without offloading of modules to host memory"),
    "overlap_moe_expert_parallel_comm": (
        False,
        "traced without overlap of experts' messages, which are the same",
    ),
}
GONE_WITH: dict[str, tuple[str, ...]] = {
    "fp8": (
        "fp8_recipe",
        "fp8_param",
        "fp8_dot_product_attention",
        "first_last_layers_bf16",
        "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16",
        "moe_router_padding_for_quantization",
        "moe_router_padding_for_fp8",
        "activation_func_fp8_input_store",
    ),
    "fp4": ("fp4_recipe", "fp4_param", "moe_router_padding_for_quantization"),
    "cuda_graph_impl": ("cuda_graph_scope", "cuda_graph_warmup_steps"),
    "cpu_offloading": ("cpu_offloading_num_layers", "cpu_offloading_weights"),
    "fine_grained_activation_offloading": ("offload_modules", "min_offloaded_tensor_size"),
}


def traced_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Fields of a run on GPUs as a dry run on CPU takes them, and a note for each difference that is one."""
    kept, notes = dict(fields), []
    for name, (value, note) in UNTRACED.items():
        if not kept.get(name):
            continue
        notes.append(note)
        for gone in (name, *GONE_WITH.get(name, ())):
            kept.pop(gone, None)
        if value is not None:
            kept[name] = value
    if kept.get("moe_token_dispatcher_type") == "flex":
        notes.append("tokens are exchanged by all-to-all: DeepEP and HybridEP need their CUDA libraries")
        kept["moe_token_dispatcher_type"] = "alltoall"
    if kept.get("num_moe_experts") and not kept.get("moe_permute_fusion"):
        notes.append("permutation is traced fused: not fused, its shapes depend on values")
        kept["moe_permute_fusion"] = True
    kept |= {"delay_wgrad_compute": False, "perform_initialization": False}
    if "cross_entropy_fusion_impl" in kept:
        kept["cross_entropy_fusion_impl"] = "native"  # the same loss: a trace has no kernels
    return kept, tuple(notes)


def why_not_traced(plan: Plan, model: ModelSpec) -> str | None:
    """One line when a plan cannot be traced at all, else None."""
    if plan.fsdp:
        return "FSDP cannot be traced: it needs CUDA device meshes in Megatron-Core 0.16. Try --zero-stage 1."
    if plan.encoder_pp or plan.encoder_tp:
        return "An encoder with ranks of its own cannot be traced. Try --encoder-pp 0."
    if model.compressed_attention is not None:
        return f"{model.name} has compressed attention, which Megatron-Core 0.16 does not build. Try deepseek-v3."
    return None


def why_not_here(plan: Plan, workload: Workload, model: ModelSpec, cuda: bool) -> str | None:
    """One line when this plan cannot run on the machine at hand, else None."""
    if model.family != "dense":
        return (
            f"{model.name} is of the family {model.family}, and `run` builds dense decoders only so far. "
            "`advisor predict` knows its cost; try a dense model such as tiny-gpt here."
        )
    special = {
        "sliding windows": model.sliding_window,
        "chunked attention": model.attention_chunk,
        "attention sinks": model.attention_sink,
        "an attention output gate": model.attention_output_gate,
        "multi-token prediction": model.mtp_layers,
        "a layer pattern": model.layer_pattern,
    }
    built = [what for what, present in special.items() if present]
    if built:
        return f"{model.name} has {', '.join(built)}, which `run` does not build yet. Try tiny-gpt."
    if plan.precision not in ("fp32", "bf16"):
        # On a GPU too: the configuration above has no quantised recipe, and Megatron-Core would not say so.
        return (
            f"--precision {plan.precision} needs Transformer Engine's recipes, which runs do not set up yet; "
            f"Megatron-Core would silently train in bf16. Try --precision {'bf16' if cuda else 'fp32'}."
        )
    if plan.cp > 1:
        return f"--cp {plan.cp} needs Transformer Engine's attention. Try --cp 1."
    if plan.fsdp:
        return "FSDP needs CUDA device meshes in Megatron-Core 0.16. Try --zero-stage 1 without --fsdp."
    if plan.recompute == "selective" and "activation" in plan.recompute_modules:
        return (
            "--recompute-modules activation is for mixtures of experts in Megatron-Core 0.16 (moe_act). "
            "Try --recompute-modules mlp."
        )
    if plan.recompute == "selective" and "layernorm" in plan.recompute_modules and not cuda:
        return (
            "--recompute-modules layernorm needs Transformer Engine in Megatron-Core 0.16. "
            "Try --recompute-modules mlp."
        )
    if plan.vpp > 1 and plan.num_microbatches(workload.global_batch) % plan.pp:
        return f"--vpp {plan.vpp} needs micro-batches in multiples of --pp {plan.pp}."
    return None
