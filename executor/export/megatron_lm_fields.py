"""Megatron-LM's flags as fields of Megatron-Core, with its own defaults for those left out.

The way back of `megatron_lm_arguments`; the names are those of `megatron_lm.toml`. What is on in Megatron-LM without
a flag is on here, what needs a flag is off: an absent --overlap-grad-reduce means that nothing overlaps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from costmodel.fusions import FUSABLE
from costmodel.knobs import KNOBS
from costmodel.layout import expand
from executor.export.core_model import FREQUENCIES, frequency_of
from executor.export.core_read import direct_fields
from executor.export.megatron_lm_names import names
from executor.export.shell_words import left_open

# Flags whose field has another name ("" for none of the same meaning), beside those of the table; older spellings
# among them. What a reader asks for and no table has stands here too, or it would be told as unread.
OTHERS = {
    "--use-custom-fsdp": "use_megatron_fsdp",
    "--num-layers-per-virtual-pipeline-stage": "",
    "--hybrid-override-pattern": "hybrid_layer_pattern",
    "--accumulate-allreduce-grads-in-fp32": "",
    "--grad-reduce-in-bf16": "",
    "--group-query-attention": "",
    "--recompute-activations": "",
    "--cuda-graph-scope": "cuda_graph_modules",
    "--use-torch-fsdp2": "use_torch_fsdp2",
}
# Megatron-LM's defaults that are neither off nor our own. Source: arguments.py of 0.19.2.
DEFAULTS: dict[str, Any] = {
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "normalization": "LayerNorm",
    "layernorm_epsilon": 1e-5,
    "position_embedding_type": "learned_absolute",
    "rotary_base": 10_000,
    "attention_backend": "auto",
    "cross_entropy_fusion_impl": "native",
    "use_distributed_optimizer": False,
    "cuda_graph_impl": "none",
    "optimizer_cpu_offload": False,
    "recompute_granularity": None,
    "bf16": False,
    "num_distributed_optimizer_instances": 1,
    "virtual_pipeline_model_parallel_size": 1,
    "add_qkv_bias": False,
    "qk_layernorm": False,
}
EXPERTS: dict[str, Any] = {
    "moe_token_dispatcher_type": "allgather",
    "moe_router_topk": 2,
    "moe_router_score_function": "softmax",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_layer_freq": 1,
    "expert_tensor_parallel_size": None,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
# Switches that say nothing of a model without experts.
OF_EXPERTS = (
    "moe_grouped_gemm",
    "moe_pad_expert_input_to_capacity",
    "moe_permute_fusion",
    "moe_router_fusion",
    "moe_shared_expert_overlap",
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
)
# Flags that the parser takes no line without a value of, beside those of knobs. Source: arguments.py of 0.19.2.
VALUED = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "num_moe_experts",
    "moe_ffn_hidden_size",
    "moe_router_topk",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "vocab_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
)
TEXTS = ("pipeline_model_parallel_layout", "hybrid_layer_pattern", "high_priority_stream_groups")
LISTS = (
    "recompute_modules",
    "offload_modules",
    "cuda_graph_modules",
    "hierarchical_context_parallel_sizes",
    "cp_comm_type",
)


def fields_of(given: Mapping[str, list[str]]) -> dict[str, Any]:
    """Fields of Megatron-Core that the flags mean, those left out or open at Megatron-LM's default."""
    table = names()
    switched = {flag: field for field, flag in table["off"].items()}
    renamed = {flag: field for field, flag in table["flags"].items()} | OTHERS
    fields: dict[str, Any] = _off() | dict.fromkeys(table["off"], True) | table["unsaid"] | DEFAULTS
    if "--num-experts" in given:
        fields |= EXPERTS
    else:
        fields = {name: value for name, value in fields.items() if name not in OF_EXPERTS}
    if "--multi-latent-attention" in given:
        fields |= LATENT
    valued = {*VALUED, *(name for name, knob in direct_fields().items() if KNOBS[knob].kind == "int")}
    for flag, values in given.items():
        field = renamed.get(flag, flag.lstrip("-").replace("-", "_"))
        if flag in switched:
            fields[switched[flag]] = False
        elif field in valued and not any(values):
            raise ValueError(
                f"{flag} has no value on its line, and Megatron-LM's parser refuses that. Write one, as {flag} "
                f"{_example(field)}, or take the flag out."
            )
        elif field and not left_open(values):
            fields[field] = _value(field, flag, values)
    _model(fields, given)
    _stages(fields, given)
    _reduction(fields, given)
    return fields


def _example(field: str) -> str:
    return {"recompute_granularity": "selective", "recompute_method": "uniform"}.get(field, "N")


def _off() -> dict[str, bool]:
    """Knobs that are switches, off: Megatron-LM's are flags to switch on, but for those of [off]."""
    return {field: False for field, name in direct_fields().items() if KNOBS[name].kind == "bool"}


def _value(field: str, flag: str, values: list[str]) -> Any:
    """A switch, a number, a text or a list, as the words tell."""
    if not values:
        return [] if field in LISTS else True
    if field in TEXTS:
        return values[0]
    if field in FREQUENCIES:
        return frequency_of(flag, values[0])
    if field in LISTS:
        return [number_or_word(word) for word in values]
    if field == "window_size":
        return [int(number) for number in re.findall(r"-?\d+", values[0])]
    return number_or_word(values[0])


def number_or_word(word: str) -> Any:
    """What a word of a command line means: a whole number, a number, or itself."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word


def _model(fields: dict[str, Any], given: Mapping[str, list[str]]) -> None:
    """Heads, activation, embeddings."""
    fields.pop("use_flash_attn", None)
    if "--swiglu" in given:
        fields |= {"activation_func": "silu", "gated_linear_unit": True}
    elif "--quick-geglu" in given:
        fields |= {"activation_func": "quick_gelu", "gated_linear_unit": True}
    else:
        name = "squared_relu" if "--squared-relu" in given else "gelu"
        fields |= {"activation_func": name, "gated_linear_unit": False}
    heads = fields.get("num_attention_heads")
    if "--group-query-attention" not in given and heads:
        fields["num_query_groups"] = heads
    if heads and fields.get("hidden_size") and "kv_channels" not in fields:
        fields["kv_channels"] = fields["hidden_size"] // heads
    if fields["add_bias_linear"]:
        fields["add_qkv_bias"] = True
    if fields.get("hidden_size") and "ffn_hidden_size" not in fields:
        hidden = fields["hidden_size"]
        # As validate_args fills it in.
        fields["ffn_hidden_size"] = int(4 * hidden * 2 / 3 / 64) * 64 if "--swiglu" in given else 4 * hidden
    if "--num-experts" in given:
        fields.setdefault("moe_ffn_hidden_size", fields.get("ffn_hidden_size"))
    _fusion(fields, given)
    if fields.get("vocab_size") and given.get("--tokenizer-type") == ["NullTokenizer"]:
        fields["vocab_size"] += 1  # its end of text comes on top
    fields["share_embeddings_and_output_weights"] = "--untie-embeddings-and-output-weights" not in given
    pattern = fields.get("hybrid_layer_pattern")
    if pattern:
        fields["num_layers"] = len(pattern.split("/")[0].replace("|", ""))


def _fusion(fields: dict[str, Any], given: Mapping[str, list[str]]) -> None:
    """Fused activation, told only of activations that have such a kernel."""
    flag = "--no-bias-swiglu-fusion" if "--swiglu" in given else "--no-bias-gelu-fusion"
    gelu_alone = fields["activation_func"] == "gelu" and not fields["add_bias_linear"]
    if fields["activation_func"] in FUSABLE and not gelu_alone:
        fields["bias_activation_fusion"] = flag not in given
    else:
        fields.pop("bias_activation_fusion", None)
    if "--num-experts" in given and fields["add_bias_linear"]:
        fields.pop("bias_dropout_fusion", None)  # has no kernel with biased experts


def _stages(fields: dict[str, Any], given: Mapping[str, list[str]]) -> None:
    """Chunks of a stage, said in one of four ways."""
    pp = fields.get("pipeline_model_parallel_size") or 1
    layout, pattern = fields.get("pipeline_model_parallel_layout"), fields.get("hybrid_layer_pattern") or ""
    each = given.get("--num-layers-per-virtual-pipeline-stage")
    if layout:
        fields["virtual_pipeline_model_parallel_size"] = max(1, len(expand(layout)) // pp)
    elif "|" in pattern:
        segments, heads = pattern.split("/")[0].split("|"), "m" * pattern.count("/")
        fields["virtual_pipeline_model_parallel_size"] = max(1, len(segments) // pp)
        if len({len(segment) for segment in segments}) > 1:
            letters = "|".join("t" * len(segment) for segment in segments)
            fields["pipeline_model_parallel_layout"] = f"E{letters}{heads}L"
    elif each and each[0].isdigit() and int(each[0]):
        counted = fields.get("num_layers", 0) + sum(
            bool(fields.get(f"account_for_{part}_in_pipeline_split")) for part in ("embedding", "loss")
        )
        fields["virtual_pipeline_model_parallel_size"] = max(1, counted // (pp * int(each[0])))


def _reduction(fields: dict[str, Any], given: Mapping[str, list[str]]) -> None:
    """Gradients, offload and recompute, whose flags are not the fields."""
    # In bf16 the parser turns FP32 reduction on unless it is told otherwise; in FP32 there is nothing to turn.
    said = "--accumulate-allreduce-grads-in-fp32" in given or "--fp16" not in given
    fields["grad_reduce_in_fp32"] = said and "--grad-reduce-in-bf16" not in given
    if "--recompute-activations" in given:
        fields["recompute_granularity"] = "selective"
    if fields.get("cpu_offloading_num_layers"):
        fields["cpu_offloading"] = True
    for name in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        fields.setdefault(name, "fp32")
    if fields.get("fp4"):
        fields["fp4_param"] = bool(fields.get("fp4_param"))
    if fields.get("fp8"):
        fields.setdefault("fp8_recipe", "delayed")
