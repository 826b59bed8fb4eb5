"""A plan in Megatron-Core's words: the one place where its long names stand."""

from __future__ import annotations

from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload


def transformer_config(plan: Plan, model: ModelSpec, cuda: bool) -> dict[str, Any]:
    """Keyword arguments of megatron.core.transformer.TransformerConfig, but for types that need torch.

    `dtype` is the name of the parameters' torch type. Fusions need CUDA kernels and stay off on CPU.
    """
    recompute: dict[str, Any] = {}
    if plan.recompute == "full":
        layers_per_chunk = -(-model.num_layers // (plan.pp * plan.vpp))
        chosen = plan.recompute_num_layers // plan.vpp if plan.recompute_num_layers else layers_per_chunk
        recompute = {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": min(chosen, layers_per_chunk),
        }
    elif plan.recompute == "selective":
        recompute = {"recompute_granularity": "selective", "recompute_modules": list(plan.recompute_modules)}
    activation: dict[str, Any] = {"gated_linear_unit": model.gated}
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
        "num_query_groups": model.num_kv_heads,
        "kv_channels": model.head_dim,
        "normalization": model.norm,
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": model.qkv_bias or model.linear_bias,
        "qk_layernorm": model.qk_norm,
        "hidden_dropout": 0.1 if plan.dropout else 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "sequence_parallel": plan.sequence_parallel,
        "account_for_embedding_in_pipeline_split": plan.account_embedding,
        "account_for_loss_in_pipeline_split": plan.account_loss,
        # Interleaved schedules with two stages mix up batched sends without an error: never batch them.
        "overlap_p2p_comm": plan.vpp > 1,
        "batch_p2p_comm": plan.vpp == 1,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
        "deterministic_mode": not cuda,
        **activation,
        **recompute,
    }


def ddp_config(plan: Plan) -> dict[str, Any]:
    """Keyword arguments of megatron.core.distributed.DistributedDataParallelConfig."""
    sharded = plan.zero_stage == 1 and plan.dp > 1
    return {
        "grad_reduce_in_fp32": plan.grad_reduce_in_fp32,
        "overlap_grad_reduce": plan.overlap_grad_reduce and plan.dp > 1,
        "overlap_param_gather": plan.overlap_param_gather and sharded and plan.overlap_grad_reduce,
        "use_distributed_optimizer": sharded,
    }


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
