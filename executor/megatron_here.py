"""A plan in Megatron-Core's words for this machine: without Transformer Engine, perhaps without CUDA.

What a real run sets stands in `megatron_args`; here is what changes, and what cannot run here at all. Which kernels
and overlaps of a plan run here is decided before, in `executor.resolve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.overlap_table import PIPELINED, own_table, pipelined
from executor.megatron_args import core_fields
from executor.megatron_model import config_class, model_arguments, model_class, not_expressed
from executor.megatron_training import ddp_fields, optimizer_fields
from executor.resolve import Here


def without_te() -> dict[str, Any]:
    """Fields that change where Transformer Engine and Apex are absent: their kernels are off.

    Norms of PyTorch multiply by their weight, not by 1 + weight: the same work, and the same numbers at the start.
    """
    return {
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
        "layernorm_zero_centered_gamma": False,
    }


def megatron_job(plan: Plan, workload: Workload, model: ModelSpec, here: Here) -> dict[str, Any]:
    """Megatron-Core's classes and their fields for a run of this resolved plan, as plain values."""
    ddp, optimizer = ddp_fields(plan), optimizer_fields(plan)
    if plan.fsdp and plan.fsdp_implementation == "torch":
        # It has neither Megatron's distributed optimizer nor its overlaps: it gathers and reduces by itself.
        switched_off = {"use_distributed_optimizer": False, "overlap_param_gather": False}
        ddp |= switched_off | {"overlap_grad_reduce": False, "reshard_after_forward": plan.zero_stage == 3}
        optimizer |= switched_off
    row = pipelined(plan)
    return {
        "config_class": config_class(model),
        "model_class": model_class(model),
        "config": transformer_config(plan, workload, model, here),
        "arguments": model_arguments(model, plan.tp, workload.seq_len),
        "ddp": ddp,
        "optimizer": optimizer,
        # What Transformer Engine is told of overlapped GEMMs, {} for its own.
        "user_buffers": own_table(plan) or (dict.fromkeys(PIPELINED, row) if row else {}),
    }


def transformer_config(plan: Plan, workload: Workload, model: ModelSpec, here: Here) -> dict[str, Any]:
    """Fields of the configuration class for a run of this resolved plan on this machine.

    Without Transformer Engine attention has no dropout, and stages keep what they sent: their outputs may be views.
    """
    fields = core_fields(plan, model, workload)
    if here.te:
        return fields
    compiled = ("bias_dropout_fusion", "bias_activation_fusion") if here.cuda else ()
    fields |= {name: value for name, value in without_te().items() if name not in compiled}
    if here.apex:
        fields["gradient_accumulation_fusion"] = plan.gradient_accumulation_fusion
    # Whose layers they are is told to PyTorch's FSDP, which else shards a linear layer inside a layer that it sharded.
    fields |= {"attention_dropout": 0.0, "deallocate_pipeline_outputs": False, "transformer_impl": "local"}
    if not here.cuda:
        fields["deterministic_mode"] = True
    left_out = ("attention_backend", "cuda_graph_impl", "cuda_graph_scope")
    return {name: value for name, value in fields.items() if name not in left_out}


# What a trace leaves out of a plan, by field, and why; value to trace with. None drops the field.
UNTRACED: dict[str, tuple[Any, str]] = {
    "fp8": (None, "traced in bf16: Transformer Engine changes copies and casts, not FLOPs"),
    "fp4": (None, "traced in bf16: Transformer Engine changes copies and casts, not FLOPs"),
    "cuda_graph_impl": (None, "traced without CUDA graphs: they replay the same kernels"),
    "use_transformer_engine_op_fuser": (
        None,
        "traced with the kernels of experts apart: they compute the same",
    ),
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
        "fp8_output_proj",
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
    if model.custom_heads:
        return f"{model.name} has {model.custom_heads}, which cannot be traced here. Try gpt-oss-20b."
    if model.norms is not None:
        return f"{model.name} has norms behind its blocks, which Megatron-Core 0.16 lacks. Try llama3-8b."
    if model.sparse_attention:
        return f"{model.name} has {model.sparse_attention}, which cannot be traced here. Try deepseek-v3."
    return None


def why_not_here(plan: Plan, workload: Workload, model: ModelSpec, here: Here) -> str | None:
    """One line when this plan cannot run on the machine at hand, else None."""
    return (
        why_not_model(model, plan.precision, here)
        or why_not_recomputed(plan, model, here)
        or why_not_laid_out(plan, workload, model, here)
        or why_no_table(plan, here)
    )


def why_no_table(plan: Plan, here: Here) -> str | None:
    """One line when the plan's own file of overlapped GEMMs cannot be given to Transformer Engine, else None."""
    if not here.te:  # nothing overlaps: the receipt says so
        return None
    try:
        own_table(plan)
    except ValueError as problem:
        return str(problem)
    return None


def why_not_model(model: ModelSpec, precision: str, here: Here) -> str | None:
    """One line when no plan of this model in this format can run here, else None."""
    return why_not_built(model) or why_not_precision(precision, here)


def why_not_built(model: ModelSpec) -> str | None:
    """Models that Megatron-Core 0.16.1 builds with libraries of CUDA kernels only, or not at all."""
    if model.encoder is not None:
        return (
            f"{model.name} has an encoder, which is a model of its own: `run` trains decoders. Try tiny-gpt."
        )
    kernels = {
        "Mamba layers (mamba_ssm)": model.mamba,
        "gated delta layers (flash-linear-attention)": model.gated_delta,
        "latent experts (Transformer Engine)": model.moe is not None and model.moe.latent_size,
    }
    needed = [what for what, present in kernels.items() if present]
    if needed:
        return (
            f"{model.name} has {', '.join(needed)}: kernels for CUDA that `run` does not set up. "
            "`advisor predict` knows its cost; try tiny-gpt here."
        )
    unsaid = not_expressed(model)
    if unsaid or model.layer_pattern:
        return f"{model.name} cannot be built whole: {(*unsaid, 'a layer pattern')[0]}. Try tiny-gpt."
    return None


def why_not_precision(precision: str, here: Here) -> str | None:
    """Formats that would need what is not installed."""
    if precision in ("fp32", "bf16") or (precision == "fp16" and here.cuda) or (here.te and here.cuda):
        return None
    if precision == "fp16":
        return "--precision fp16 has no quick products on a CPU. Try --precision bf16."
    # Megatron-Core would not say so.
    return (
        f"--precision {precision} needs Transformer Engine on a CUDA device; without it Megatron-Core would "
        f"silently train in bf16. Try --precision {'bf16' if here.cuda else 'fp32'}."
    )


def why_not_recomputed(plan: Plan, model: ModelSpec, here: Here) -> str | None:
    """Modules that cannot be computed again here."""
    if plan.recompute != "selective":
        return None
    if "activation" in plan.recompute_modules:
        return (
            "--recompute-modules activation is for mixtures of experts in Megatron-Core 0.16 (moe_act). "
            "Try --recompute-modules mlp."
        )
    if not here.te:
        for module in ("layernorm", "moe_act"):
            if module in plan.recompute_modules:
                return (
                    f"--recompute-modules {module} needs Transformer Engine in Megatron-Core 0.16. "
                    f"Try --recompute-modules {'mlp' if model.moe is None else 'moe'}."
                )
    return None


def why_not_laid_out(plan: Plan, workload: Workload, model: ModelSpec, here: Here) -> str | None:
    """Layouts that cannot run here, or not at all."""
    if plan.encoder_pp or plan.encoder_tp:
        return "an encoder with ranks of its own cannot run: `run` trains decoders. Try --encoder-pp 0."
    if plan.fsdp and not here.cuda:
        return "FSDP needs CUDA device meshes in Megatron-Core 0.16. Try --zero-stage 1 without --fsdp."
    if plan.cp > 1 and workload.seq_len % (2 * plan.cp * (plan.tp if plan.sequence_parallel else 1)):
        return (
            f"--seq-len {workload.seq_len} is not a multiple of 2 x cp x tp: ranks take two chunks each. "
            f"Try --seq-len {-(-workload.seq_len // (2 * plan.cp * plan.tp)) * 2 * plan.cp * plan.tp}."
        )
    if plan.tp > 1 and not here.te and model.mla is None and model.num_kv_heads % plan.tp:
        return (
            f"--tp {plan.tp} does not divide the {model.num_kv_heads} key-value heads of {model.name}, which only "
            f"Transformer Engine's layers share. Try --tp {model.num_kv_heads}."
        )
    if plan.tp > 1 and model.moe is not None and not plan.sequence_parallel:
        return f"--tp {plan.tp} of a mixture of experts needs sequence parallelism. Try --sequence-parallel."
    if model.moe is not None and model.linear_bias and plan.etp > 1:
        # "Bias in Moe is only supported when ETP==1", transformer_config.py.
        return (
            f"--etp {plan.etp}: experts of {model.name} have biases, which Megatron-Core takes with --etp 1 only. "
            f"Try --etp 1 --ep {plan.tp}."
        )
    if model.moe is not None and model.linear_bias and plan.tp > 1 and not here.te:
        # Plain layers mark biases of experts for the sum over tensor-parallel ranks (layers.py, `sequence_parallel`),
        # which hold other experts, or other tokens of the same: losses leave those of one process.
        return (
            f"--tp {plan.tp}: experts of {model.name} have biases, whose gradients Megatron-Core's plain layers mix "
            "over the tensor-parallel ranks. Try --tp 1, or Transformer Engine."
        )
    if model.moe is not None and plan.ep == 1 and plan.etp != plan.tp:
        # Megatron-Core 0.16.1 takes the experts for layers that tensor parallelism splits (layers.py, `allreduce`):
        # each rank would train its own copies on its own tokens, and no message would sum their gradients.
        return (
            f"--etp {plan.etp} with --ep 1 and --tp {plan.tp}: Megatron-Core 0.16 would never sum the gradients of "
            f"experts over the tensor-parallel ranks. Try --etp {plan.tp}, or --ep {plan.tp}."
        )
    if plan.vpp > 1 and plan.num_microbatches(workload.global_batch) % plan.pp:
        return f"--vpp {plan.vpp} needs micro-batches in multiples of --pp {plan.pp}."
    return None
