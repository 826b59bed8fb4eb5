"""A plan in Megatron-Core's words: its long names stand here, in `megatron_model` (the model) and `megatron_training`.

`core_fields` says what a real run on GPUs sets, `executor.megatron_here` what changes without Transformer Engine or
CUDA. Plain values only: types of torch are named ("bf16", "silu"), and made where torch is. Names and meanings as in
Megatron-Core 0.16.1, transformer_config.py and model_parallel_config.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from costmodel.fusions import FUSED_IN_EXPERTS, activation_has_kernel
from costmodel.graph_parts import captured_parts
from costmodel.layout import edge_chunks, even_chunks, layout_of, most_layers
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_model import model_fields
from executor.megatron_training import setting_fields

# fp8 and fp8_recipe (or fp4 and fp4_recipe) of each precision; FP8 formats as in NVIDIA's recipes.
RECIPES: dict[str, dict[str, str]] = {
    "fp8-delayed": {"fp8": "hybrid", "fp8_recipe": "delayed"},
    "fp8-cs": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8-sc": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}


def foreign_modules(modules: Iterable[str], model: ModelSpec) -> list[str]:
    """Recompute modules that Megatron-Core does not have: torchtitan's ops, activation functions outside experts."""
    return [module for module in modules if module == "ops" or (module == "activation" and not model.moe)]


def core_fields(plan: Plan, model: ModelSpec, workload: Workload | None = None) -> dict[str, Any]:
    """Fields of TransformerConfig or MLATransformerConfig as a run on GPUs sets them.

    Values at Megatron-Core's own default may be left out, except those that define the plan.
    """
    seq_len = workload.seq_len if workload is not None else 4096
    return {
        **model_fields(model),
        **parallel_fields(plan),
        **pipeline_fields(plan, model, seq_len),
        **precision_fields(plan),
        **recompute_fields(plan, model, seq_len),
        **expert_fields(plan, model),
        **kernel_fields(plan, model),
        **setting_fields(plan, "TransformerConfig", "ModelParallelConfig"),
    }


def parallel_fields(plan: Plan) -> dict[str, Any]:
    """Sizes of the groups and what is sent inside them."""
    fields: dict[str, Any] = {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "expert_tensor_parallel_size": plan.etp,
        "sequence_parallel": plan.sequence_parallel,
        "tp_comm_overlap": plan.tp_comm_overlap,
    }
    if plan.cp > 1:
        fields["cp_comm_type"] = plan.cp_comm_type
    if plan.cp_comm_type == "a2a+p2p":
        fields["hierarchical_context_parallel_sizes"] = [plan.cp_a2a_size, plan.cp // plan.cp_a2a_size]
    return fields


def pipeline_fields(plan: Plan, model: ModelSpec, seq_len: int) -> dict[str, Any]:
    """Which layers stand on which stage, and how stages send."""
    # Interleaved schedules with two stages mix up batched sends without an error: never batch them.
    overlap = plan.vpp > 1 and (plan.overlap_p2p or plan.pp == 2)
    fields: dict[str, Any] = {
        "account_for_embedding_in_pipeline_split": plan.account_embedding,
        "account_for_loss_in_pipeline_split": plan.account_loss,
        "overlap_p2p_comm": overlap,
        "batch_p2p_comm": not overlap,
        "defer_embedding_wgrad_compute": plan.defer_embedding_wgrad,
        "deallocate_pipeline_outputs": True,
    }
    if plan.first_stage_layers:
        fields["num_layers_in_first_pipeline_stage"] = plan.first_stage_layers
    if plan.last_stage_layers:
        fields["num_layers_in_last_pipeline_stage"] = plan.last_stage_layers
    if plan.wgrad_deferral_limit:
        fields["wgrad_deferral_limit"] = plan.wgrad_deferral_limit
    if plan.vpp_group_size:
        fields["microbatch_group_size_per_vp_stage"] = plan.vpp_group_size
    text = layout_text(plan, model, seq_len)
    if text:
        fields["pipeline_model_parallel_layout"] = text
        fields["account_for_embedding_in_pipeline_split"] = False
        fields["account_for_loss_in_pipeline_split"] = False
    return fields


def layout_text(plan: Plan, model: ModelSpec, seq_len: int) -> str:
    """Megatron's layout text where the plan has one or needs one, '' where an even split serves.

    Hybrids of Mamba layers are split evenly always: their model class knows no layouts.
    """
    if plan.pp * plan.vpp == 1 or model.layer_pattern:
        return ""
    ends = (plan.first_stage_layers, plan.last_stage_layers)
    accounts = (plan.account_embedding, plan.account_loss)
    if not plan.pipeline_layout:
        if any(ends):
            sizes = edge_chunks(model.num_layers, plan.pp, plan.vpp, *ends)
        else:
            sizes = even_chunks(model.num_layers, plan.pp, plan.vpp, *accounts)
        # With ends given, Megatron's own message is the better answer when they do not divide.
        if sizes is not None or any(ends):
            return ""
    return layout_of(plan, model, seq_len).text


def precision_fields(plan: Plan) -> dict[str, Any]:
    """Types of parameters and messages, and the recipe of quantised linear layers."""
    kind = plan.precision if plan.precision in ("fp32", "fp16") else "bf16"
    fields: dict[str, Any] = {
        "params_dtype": kind,
        "pipeline_dtype": kind,
        "bf16": kind == "bf16",
        "fp16": kind == "fp16",
        **RECIPES.get(plan.precision, {}),
    }
    if plan.fp8_param_gather:
        fields["fp4_param" if plan.precision == "nvfp4" else "fp8_param"] = True
    if plan.fp8_attention:
        fields["fp8_dot_product_attention"] = True
    if plan.tp_only_amax_red:
        fields["tp_only_amax_red"] = True
    if plan.calculate_per_token_loss:
        fields["calculate_per_token_loss"] = True
    if plan.fp8_output:
        fields["fp8_output_proj"] = True
    if plan.bf16_end_layers:
        fields["first_last_layers_bf16"] = True
        fields["num_layers_at_start_in_bf16"] = plan.bf16_end_layers
        fields["num_layers_at_end_in_bf16"] = plan.bf16_end_layers
    return fields


def recompute_fields(plan: Plan, model: ModelSpec, seq_len: int) -> dict[str, Any]:
    """What is computed again in the backward pass, and what waits in host memory for it.

    Megatron has one number of layers for every virtual stage, and stops at its last layer: all are as many as the
    fullest has. Source: Megatron-Core 0.16.1, transformer_block.py, _checkpointed_forward.
    """
    fields: dict[str, Any] = {}
    if plan.recompute == "full":
        most = most_layers(plan, model, seq_len)
        chosen = plan.recompute_num_layers // plan.vpp if plan.recompute_num_layers else most
        method = dict(plan.settings).get("recompute_method", "block")
        fields = {
            "recompute_granularity": "full",
            "recompute_method": method,
            # "uniform" counts the layers of a group, which keep all activations at once: one, as plans are counted.
            "recompute_num_layers": 1 if method == "uniform" else min(chosen, most),
        }
    elif plan.recompute == "selective":
        fields = {"recompute_granularity": "selective", "recompute_modules": list(plan.recomputed_modules)}
    if plan.offload_layers:
        fields["cpu_offloading"] = True
        fields["cpu_offloading_num_layers"] = plan.offload_layers
        fields["cpu_offloading_weights"] = plan.offload_weights
    if plan.offload_modules:
        fields["fine_grained_activation_offloading"] = True
        fields["offload_modules"] = list(plan.offload_modules)
    return fields


def expert_fields(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    """How tokens come to the experts, and how those compute; nothing for a model without experts."""
    if model.moe is None:
        return {}
    flex = plan.moe_dispatcher in ("deepep", "hybridep")
    fields: dict[str, Any] = {
        "moe_token_dispatcher_type": "flex" if flex else plan.moe_dispatcher,
        "moe_grouped_gemm": plan.moe_grouped_gemm,
        "moe_permute_fusion": plan.moe_permute_fusion,
        "moe_router_fusion": plan.moe_router_fusion,
        "moe_expert_capacity_factor": plan.moe_capacity_factor or None,
        "moe_pad_expert_input_to_capacity": plan.moe_pad_expert_input_to_capacity,
        "overlap_moe_expert_parallel_comm": plan.overlap_moe_comm,
        "delay_wgrad_compute": plan.delay_wgrad,
        "moe_shared_expert_overlap": plan.shared_expert_overlap,
    }
    if plan.expert_mlp_fusion:
        fields["use_transformer_engine_op_fuser"] = True
    if flex:
        fields["moe_flex_dispatcher_backend"] = plan.moe_dispatcher
        if plan.dispatcher_sms:
            fields[f"moe_{plan.moe_dispatcher}_num_sms"] = plan.dispatcher_sms
    return fields


def fuses_activation(plan: Plan, model: ModelSpec) -> bool:
    """Whether Megatron-Core has a fused kernel for the activation function; without one it refuses the switch.

    Source: Megatron-Core 0.16.1, transformer_config.py:1485-1504; moe/experts.py:689-710 (TEGroupedMLP).
    """
    if model.moe is not None and plan.moe_grouped_gemm:
        return model.gated and model.activation in FUSED_IN_EXPERTS and activation_has_kernel(model)
    gelu_alone = model.activation == "gelu" and not model.gated and not model.linear_bias
    return activation_has_kernel(model) and not gelu_alone


def fuses_residual(plan: Plan, model: ModelSpec) -> bool:
    """Whether bias, dropout and residual may be one kernel: not where experts of a grouped GEMM have biases.

    Source: Megatron-Core 0.16.1, moe/experts.py:529-531 (TEGroupedMLP).
    """
    return not (model.moe is not None and model.linear_bias and plan.moe_grouped_gemm)


def attention_word(plan: Plan) -> str:
    """Megatron-Core's word for the attention kernels that the plan and its variables of Transformer Engine leave.

    Megatron-Core sets the variables by its word, and stops at one that says another thing: auto means all three.
    Source: Megatron-Core 0.16.1, models/common/language_module/language_module.py, _set_attention_backend.
    """
    given = dict(plan.settings)
    flash, fused = (bool(given.get(name, True)) for name in ("nvte_flash_attn", "nvte_fused_attn"))
    if plan.attention_backend == "unfused" or not (flash or fused):
        return "unfused"
    if flash and fused:
        return "auto"
    return "flash" if flash else "fused"


def kernel_fields(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    """Fusions, dropout and CUDA graphs."""
    rate = 0.1 if plan.dropout else 0.0
    fields: dict[str, Any] = {
        "hidden_dropout": rate,
        "attention_dropout": rate,
        "attention_backend": attention_word(plan),
        "cross_entropy_loss_fusion": plan.fused_cross_entropy,
        "gradient_accumulation_fusion": plan.gradient_accumulation_fusion,
        "bias_activation_fusion": plan.bias_activation_fusion and fuses_activation(plan, model),
        "bias_dropout_fusion": plan.bias_dropout_fusion and fuses_residual(plan, model),
        "apply_rope_fusion": plan.rope_fusion and model.indexer is None,
        "masked_softmax_fusion": True,
    }
    if plan.fused_cross_entropy:
        fields["cross_entropy_fusion_impl"] = plan.cross_entropy_fusion_impl
    if plan.cuda_graph:
        parts = captured_parts(plan, model)
        fields["cuda_graph_impl"] = "local" if "full_iteration" in parts else "transformer_engine"
        fields["cuda_graph_scope"] = list(parts)
    return fields
