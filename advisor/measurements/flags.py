"""Kernels, graphs, optimizer and offload of a published row, from its columns of flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.measurements.recompute import RESOLVED_RECIPE
from advisor.measurements.rows import Row
from costmodel.data_parallel import LARGE_BUCKET
from costmodel.knobs import KNOBS
from costmodel.model_spec import ModelSpec

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8", "fp8": "fp8"}
# Optimizers by name: ours, and those of Adam's name that keep less on the GPU (bitsandbytes, Adam-mini, on the host).
MUON = ("muon", "dist_muon")
ADAM = r"adam(?!ax|-?mini)"
LIGHTER_ADAM = r"(?<!\d)[48]-?bit|paged|cpu|offload"
# Modules that fused experts cannot offload: rule fused_experts_whole.
APART_FROM_FUSED_EXPERTS = ("expert_fc1", "moe_act")
# What of a flag column is on when the row says nothing: our plan's default.
PLAIN_FLAGS = {
    "delay_wgrad": "delay_wgrad_compute",
    "shared_expert_overlap": "moe_shared_expert_overlap",
    "fp8_attention": "fp8_dot_product_attention",
    "reuse_grad_buf": "reuse_grad_buf_for_mxfp8_param_ag",
    "defer_embedding_wgrad": "defer_embedding_wgrad_compute",
    "moe_permute_fusion": "moe_permute_fusion",
    "moe_router_fusion": "moe_router_fusion",
    "expert_mlp_fusion": "use_transformer_engine_op_fuser",
    "fp8_output": "fp8_output_proj",
    "moe_grouped_gemm": "moe_grouped_gemm",
    "gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "rope_fusion": "apply_rope_fusion",
    "bias_activation_fusion": "bias_activation_fusion",
    "bias_dropout_fusion": "bias_dropout_fusion",
    "param_remainders": "store_param_remainders",
    "calculate_per_token_loss": "calculate_per_token_loss",
}
# Micro-batches whose vocabulary gradients wait where a row's recipe defers them: what all recipes of Llama say that do,
# in Megatron-Bridge 0.3.1 and 0.6.2 (llama3.py); rows do not carry it.
DEFERRED = 22


def optimizer_knobs(row: Row) -> dict[str, Any]:
    """The optimizer, the formats of its state and how many copies share it."""
    flags = row.json("other_flags")
    aware = row.flag("precision_aware_optimizer", False)
    formats = {
        knob: DTYPES.get(str(flags.get(knob)), "fp32")
        for knob in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    }
    strategy = flags.get("outer_dp_sharding_strategy")
    values: dict[str, Any] = {"precision_aware_optimizer": aware} | (formats if aware else {})
    if row.text("optimizer").strip().lower() in MUON:
        values["optimizer"] = "muon"
    return values | {
        "optimizer_instances": row.said_number("num_distributed_optimizer_instances") or 1,
        "outer_dp_sharding_strategy": strategy
        if strategy in KNOBS["outer_dp_sharding_strategy"].choices
        else "no_shard",
    }


def optimizer_words(row: Row) -> list[str]:
    """What is counted in place of an optimizer that is none of ours, in words; nothing for Adam, Muon or silence."""
    said = row.text("optimizer").strip()
    name = said.lower()
    if not name or name in MUON or (re.search(ADAM, name) and not re.search(LIGHTER_ADAM, name)):
        return []
    return [
        f"optimizer {said!r} is not modelled: Adam counts in its place, with the state that other columns say"
    ]


def bucket_size(row: Row, shards: int) -> int:
    """Elements of a gradient bucket, 0 for those of NVIDIA's recipes. shards: data-parallel ranks.

    Recipes that set up no overlap of communication (GPT-OSS before 26.06) say none: Megatron-Core's own then.
    """
    said = row.said_number("bucket_size")
    if said or not RESOLVED_RECIPE.match(row.text("recipe_key")):
        return 0 if said == LARGE_BUCKET else said
    return max(40_000_000, 1_000_000 * shards)


def offload_knobs(row: Row) -> dict[str, Any]:
    """Layers and modules that wait in host memory."""
    named = row.text("fine_grained_offload")
    modules = tuple(name for name in KNOBS["offload_modules"].choices if name in named)
    flags = row.json("other_flags")
    return {
        "offload_layers": row.count("act_offload_layers", 0),
        "offload_modules": modules,
        "offload_weights": bool(flags.get("cpu_offloading_weights"))
        and row.count("act_offload_layers", 0) > 0,
    }


def graph_knobs(row: Row, model: ModelSpec, habit: Mapping[str, Any]) -> dict[str, Any]:
    """CUDA graphs and their scope; of experts the source's habit where the row is silent."""
    text = row.text("cuda_graph")
    if not text and model.moe is not None:
        kind = "hybrid_graphs" if model.mamba is not None else "expert_graphs"
        text = "+".join(habit.get(kind, ()))
    if text in ("", "none") or not row.flag("cuda_graph", True):
        return {"cuda_graph": False}
    named = re.findall(r"\w+", text)
    scopes = [scope for scope in KNOBS["cuda_graph_scope"].choices if scope in named]
    if "full" in named:
        scopes = []
    return {"cuda_graph": True, "cuda_graph_scope": tuple(scopes)}


def flag_knobs(row: Row, model: ModelSpec, habit: Mapping[str, Any], fsdp: bool) -> dict[str, Any]:
    """Switches of kernels and of the step that a row names, or that its source always has."""
    flags = row.json("other_flags")
    values: dict[str, Any] = dict.fromkeys(habit.get("kernels", ()), True)
    if any(part in row.text("fine_grained_offload") for part in APART_FROM_FUSED_EXPERTS):
        values.pop("expert_mlp_fusion", None)
    values |= dict.fromkeys(habit.get("plain_kernels", ()), False)
    values |= {ours: bool(flags[theirs]) for ours, theirs in PLAIN_FLAGS.items() if theirs in flags}
    if values.get("defer_embedding_wgrad"):
        values["wgrad_deferral_limit"] = row.said_number("wgrad_deferral_limit", DEFERRED)
    if row.text("other_flags") and RESOLVED_RECIPE.match(row.text("recipe_key")):
        values["rope_fusion"] = "apply_rope_fusion" in flags
        if fsdp:  # recipes with FSDP switch it off; of others it may be what their class leaves
            values["gradient_accumulation_fusion"] = "gradient_accumulation_fusion" in flags
        if model.moe is not None:
            values["moe_router_fusion"] = "moe_router_fusion" in flags
            values["expert_mlp_fusion"] = "use_transformer_engine_op_fuser" in flags
        values["fp8_attention"] = "fp8_dot_product_attention" in flags
    # AutoModel's table has a column of kernels; "-": none but PyTorch's own.
    if flags.get("torch_compile") is False or flags.get("kernels") == "-":
        values |= dict.fromkeys(("rope_fusion", "bias_activation_fusion", "bias_dropout_fusion"), False)
    if habit.get("plain_mlp") and model.moe is None:
        values["bias_activation_fusion"] = False
    # torchtitan keeps the last layers of an NVFP4 run in 16 bits, named as "27-31"; plans have as many at both ends.
    tail = re.fullmatch(r"(\d+)-(\d+)", str(flags.get("nvfp4_bf16_layers", "")))
    if tail and "bf16 tail" in row.text("precision"):
        values["bf16_end_layers"] = (int(tail[2]) - int(tail[1]) + 1) // 2
    margin = flags.get("env.NVTE_FWD_LAYERNORM_SM_MARGIN")
    if isinstance(margin, int):
        values["layernorm_sm_margin"] = margin
    return values
