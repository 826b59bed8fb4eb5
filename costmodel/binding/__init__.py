"""Numbers for the symbols: model, workload, precision recipe, hardware and software stack.

Every number comes with the file and source it was read from, so that an explanation can end there.
Which files of the cost model read `hardware_db` stands in `pyproject.toml` under `[tool.importlinter]`.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.binding.hardware import cluster_stack, hardware_inputs, has_formats, has_peaks
from costmodel.bound import Bound
from costmodel.fusions import activation_has_kernel
from costmodel.layout import mtp_blocks, total_blocks
from costmodel.model_spec import ModelSpec
from costmodel.stack import Stack, load_stack
from costmodel.step_constants import architecture, parameter_keys
from costmodel.symbols import BLOCKS
from costmodel.workload import Workload
from hardware_db import Cluster

PRECISION_FILE = Path(__file__).parents[1] / "precision.toml"


@lru_cache(maxsize=1)
def _recipes() -> dict[str, dict[str, Any]]:
    with PRECISION_FILE.open("rb") as file:
        return tomllib.load(file)


def precision_recipe(precision: str, generation: str = "", kernels: str = "") -> dict[str, Any]:
    """Bytes and kernel table of a precision recipe, as a GPU generation or a stack has it; see `precision.toml`."""
    recipe: dict[str, Any] = _recipes()[precision]
    own: dict[str, Any] = recipe.get(architecture(generation), {})
    return recipe | own | (recipe.get(kernels, {}) if kernels else {})


def recipe_formats(precision: str) -> dict[str, Any]:
    """What `costmodel.plan_inputs.plan_inputs` asks of a precision recipe."""
    recipe = precision_recipe(precision)
    return {
        "precision_bytes": float(recipe["base"]),
        "quantised": float(recipe["copies"]) > 0,
        "block_scaled": precision == "mxfp8",
        "gathered": float(recipe.get("gathered", 1.0)),
        "casts": float(recipe["kernels"]) > 0,
        "delayed": precision == "fp8-delayed",
        "remainders": precision in ("bf16", "fp8-delayed"),
    }


def repeats_layers(model: ModelSpec, cluster: Cluster, stack: str | None = None) -> bool:
    """Whether full recompute does anything to decoder layers: not to hybrids with every stack, see `stacks.toml`."""
    return model.mamba is None or not _software(model, cluster, stack).keeps_hybrids


def fuses_activation(model: ModelSpec, cluster: Cluster, stack: str | None = None) -> bool:
    """Whether the stack has a fused kernel for the activation function of every MLP of the model."""
    return activation_has_kernel(model, _software(model, cluster, stack).plain_gelu_experts)


def bind(
    model: ModelSpec, workload: Workload, cluster: Cluster, precision: str, stack: str | None = None
) -> dict[str, Bound]:
    """Every input that is not of the plan. ValueError when the GPU lacks the precision."""
    if not has_formats(cluster, precision_recipe(precision, cluster.gpu.generation), precision):
        raise ValueError(_no_precision(cluster, precision))
    software = _software(model, cluster, stack)
    amounts = bind_amounts(model, workload, precision, cluster.gpu.generation, software.kernels)
    recipe = precision_recipe(precision, cluster.gpu.generation, software.kernels)
    if model.score_cap is not None and software.composed_caps:
        own = Bound(1.0, f"{software.name}: scores are capped by operations of their own")
        amounts |= dict.fromkeys(("unfusable", "window_unfusable", "capped_scores"), own)
    if model.attention_head_gate and not software.megatron_core:
        narrow = Bound(1.0, f"{software.name}: a gate of one number a head")
        amounts |= {"gate_width": narrow, "window_gate_width": narrow}
    uneven = model.mla is not None or _uneven_heads(model)
    return amounts | hardware_inputs(cluster, recipe, precision, software, mla=uneven)


def usable_precisions(cluster: Cluster) -> tuple[str, ...]:
    """Precision recipes that can be timed on the GPU: peaks and kernels of their number formats are on file."""
    return tuple(name for name, recipe in _recipes().items() if has_formats(cluster, recipe, name))


def _no_precision(cluster: Cluster, precision: str) -> str:
    """What is asked, what the GPU lacks, and the recipes that it takes."""
    title = cluster.gpu.title
    usable = usable_precisions(cluster)
    if not usable:
        return f"{title} has no peak rate of arithmetic on file, so no step can be timed. Give its file a peak_bf16."
    recipe = _recipes()[precision]
    if recipe["base"] == 4 and has_peaks(cluster, recipe, precision):  # FP32, which every GPU computes
        lacking = f"cannot be timed on {title}: no rates of its matrix products are on file"
        return f"--precision {precision} {lacking}. Timed are {', '.join(usable)}."
    return (
        f"--precision {precision} needs arithmetic that {title} lacks, or has no peak of on file. "
        f"It takes {', '.join(usable)}."
    )


def _software(model: ModelSpec, cluster: Cluster, stack: str | None) -> Stack:
    """The stack, or the cluster's own, as it runs the model's attention."""
    plain = model.mla is None and model.compressed_attention is None and not _uneven_heads(model)
    return load_stack(stack or cluster_stack(cluster)).with_heads(
        model.head_dim if plain else 0,
        cluster.gpu.generation,
        model.window_heads.sinks,
        model.score_cap is not None,
    )


def _uneven_heads(model: ModelSpec) -> bool:
    """Whether queries of plain attention are wider than values, as those of latent attention are."""
    return any(heads.head_dim != heads.v_head_dim for heads in (model.heads, model.window_heads))


# Keys of one query up to which Megatron-Core's fused softmax goes. [1]
LONGEST_FUSED_SCORES = 4096


def bind_amounts(
    model: ModelSpec, workload: Workload, precision: str, generation: str = "", kernels: str = ""
) -> dict[str, Bound]:
    """The inputs of amounts, which no machine changes: model, workload and precision recipe."""
    recipe = _precision_inputs(precision, generation, kernels)
    # Source: Megatron-Core 0.19.2, fusions/fused_softmax.py, is_kernel_available.
    composed = model.local_layers or model.score_cap is not None
    wide = composed and workload.seq_len > LONGEST_FUSED_SCORES
    scores = {"scores_wide": Bound(float(wide), "workload")}
    return _model_inputs(model) | _workload_inputs(workload) | scores | recipe


def step_keys(model: ModelSpec, cluster: Cluster, precision: str, stack: str | None = None) -> dict[str, str]:
    """Input symbol -> the step constant behind it; see `costmodel.step_constants.parameter_keys`."""
    software = _software(model, cluster, stack)
    gemm = precision_recipe(precision, cluster.gpu.generation, software.kernels)["gemm"]
    return parameter_keys(cluster, gemm, software)


@lru_cache(maxsize=64)
def _model_inputs(model: ModelSpec) -> dict[str, Bound]:
    numbers = (
        _dense_numbers(model) | _attention_numbers(model) | _expert_numbers(model) | _mixer_numbers(model)
    )
    numbers |= _norm_numbers(model)
    numbers |= {f"{block}_total": total_blocks(model)[block] for block in BLOCKS}
    numbers |= {f"{block}_mtp": mtp_blocks(model)[block] for block in BLOCKS}
    return {
        name: Bound(float(number), f"model {model.name}: {model.source}") for name, number in numbers.items()
    }


def _dense_numbers(model: ModelSpec) -> dict[str, float]:
    encoder = model.encoder
    return {
        "h": model.hidden,
        "f": model.ffn_hidden,
        "a": model.num_heads,
        "k": model.num_kv_heads,
        "d": model.head_dim,
        "gates": float(model.gated),
        "squared_relu": float(model.activation == "squared_relu"),
        "V": model.vocab_padded or model.vocab,
        "V_multiple": 1 if model.vocab_padded else (model.vocab_divisible_by or 128),
        "positions": model.learned_positions,
        "rotary": model.rotary_share,
        "tied": float(model.tied_embeddings),
        "norm_vectors": 1 if model.norm == "RMSNorm" else 2,
        "biases": float(model.linear_bias),
        "qkv_biases": float(model.linear_bias or model.qkv_bias),
        "qk_norms": float(model.qk_norm),
        "mtp_total": model.mtp_layers,
        "enc_layers": encoder.num_layers if encoder else 0,
        "enc_h": encoder.hidden if encoder else 0,
        "enc_f": encoder.ffn_hidden if encoder else 0,
        "enc_a": encoder.num_heads if encoder else 1,
        "enc_gates": float(encoder.gated) if encoder else 0.0,
        "enc_tokens": encoder.tokens if encoder else 0,
    }


def _attention_numbers(model: ModelSpec) -> dict[str, float]:
    """Windows, chunks, latents and gates. Full attention stands on every full_attention_interval-th layer; chunked
    attention on all but every nope_layer_interval-th. Gates of one number a head are as wide as the head, as
    Megatron-Core has them. Source: Megatron-Bridge 0.6.2, stepfun/step35_bridge.py,
    _mcore_supports_head_wise_attn_gate: no Megatron-Core to 0.19.2 does."""
    mla, own = model.mla, model.window_heads
    window = model.sliding_window
    chunk_share = model.rotary_share if model.attention_chunk else 0.0
    csa = model.compressed_attention
    indexer = model.indexer
    return {
        "csa_light": csa.light_ratio if csa else 1,
        "csa_heavy": csa.heavy_ratio if csa else 1,
        "csa_window": csa.window if csa else 0,
        "index_heads": indexer.heads if indexer else csa.index_heads if csa else 0,
        "index_dim": indexer.head_dim if indexer else csa.index_head_dim if csa else 0,
        "index_topk": indexer.topk if indexer else csa.index_topk if csa else 0,
        "index_interval": model.num_layers / model.picking_layers if indexer else 1,
        "out_groups": csa.out_groups if csa else 1,
        "out_lora": csa.out_lora_rank if csa else 0,
        "residual_streams": model.residual_streams,
        "output_gate": float(model.attention_output_gate),
        "head_gate": float(model.attention_head_gate),
        "gate_width": model.heads.v_head_dim if model.attention_output_gate else 0,
        "values_scaled": float(model.value_scale is not None),
        "sinks": float(model.attention_sink),
        "window": window.window if window else 0,
        "window_share": _window_share(model),
        "window_a": own.num_heads,
        "window_k": own.num_kv_heads,
        "window_d": own.head_dim,
        "window_d_v": own.v_head_dim,
        "window_gate_width": own.v_head_dim if model.attention_output_gate else 0,
        "window_sinks": float(own.sinks),
        "unfusable": float(not model.has_fused_core(model.heads)),
        "window_unfusable": float(not model.has_fused_core(own)),
        "tied_values": float(model.values_are_keys),
        "window_tied_values": float(model.values_are_keys and not model.windows_apart),
        "chunk": model.attention_chunk,
        "chunk_share": chunk_share,
        "q_lora": (mla.q_lora_rank or 0) if mla else csa.q_lora_rank if csa else 0,
        "kv_lora": (mla.kv_lora_rank or 0) if mla else 0,
        "d_nope": mla.qk_head_dim if mla else 0,
        "d_rope": mla.qk_pos_emb_head_dim if mla else csa.rope_head_dim if csa else 0,
        "d_v": mla.v_head_dim if mla else model.heads.v_head_dim,
    }


def _norm_numbers(model: ModelSpec) -> dict[str, float]:
    """Norms beside those in front of each block, by how Megatron-Bridge runs them."""
    norms = model.norms
    everything, plain = (norms is not None and norms.written == which for which in ("all", "none"))
    return {
        "written_attention": norms.attention if norms and everything else 0,
        "written_mlp": norms.mlp if norms and not plain else 0,
        "written_heads": float(everything and model.qk_norm),
        "fused_behind": norms.attention - 1 if norms and not everything else 0,
        "fused_behind_mlp": norms.mlp - 1 if norms and plain else 0,
        "value_norm": float(norms is not None and norms.values),
        "router_norm": float(norms is not None and norms.router),
        "layer_scale": float(norms is not None and norms.layer_scale),
        "capped_logits": float(model.logit_cap is not None),
        "capped_scores": 0.0,
    }


def _window_share(model: ModelSpec) -> float:
    """Share of the attention blocks with a window; none of them where layers with windows are of their own kind."""
    window = model.sliding_window
    if window is None or model.windows_apart:
        return 0.0
    if window.pattern:
        return window.pattern.count("W") / len(window.pattern)
    return 1.0 - 1.0 / window.full_attention_interval if window.full_attention_interval else 1.0


def _expert_numbers(model: ModelSpec) -> dict[str, float]:
    moe = model.moe
    return {
        "E": moe.num_experts if moe else 1,
        "topk": moe.topk if moe else 1,
        "fe": moe.expert_ffn if moe else 0,
        "fs": moe.shared_expert_ffn if moe else 0,
        "he": (moe.latent_size or model.hidden) if moe else model.hidden,
        # Gated quick GELU is clamped, as published (gpt-oss); it and squared ReLU are not fused with the probabilities.
        # Source: Megatron-Core 0.16.1, fused_bias_geglu.py, weighted_bias_quick_geglu_impl; experts.py.
        "fc1_copies": 2.0 if model.gated and model.activation == "quick_gelu" else 1.0,
        "fc2_copies": 2.0 if not model.gated and model.activation == "squared_relu" else 1.0,
        "expert_bias": float(moe.expert_bias) if moe else 0.0,
        "biased_experts": float(moe is not None and model.linear_bias),
        # Megatron-Core asks for it (a warning) from 32 experts on.
        "results_wide": float(moe is not None and moe.router_dtype == "fp32"),
        "router_wide": float(moe is not None and (moe.router_dtype == "fp32" or moe.num_experts >= 32)),
        "router_groups": moe.router_groups if moe else 1,
        "router_picks": moe.router_group_topk if moe else 1,
        "router_aux": float(moe is not None and moe.load_balancing != "none" and bool(moe.aux_loss_coeff)),
        "shared_gate": float(moe.shared_expert_gate) if moe else 0.0,
    }


def _mixer_numbers(model: ModelSpec) -> dict[str, float]:
    mamba, delta = model.mamba, model.gated_delta
    taps = mamba.conv_kernel if mamba else delta.conv_kernel if delta else 0
    return {
        "mamba_heads": mamba.num_heads if mamba else 0,
        "mamba_dim": mamba.head_dim if mamba else 0,
        "mamba_state": mamba.state_dim if mamba else 0,
        "mamba_groups": mamba.num_groups if mamba else 0,
        "delta_key_heads": delta.num_key_heads if delta else 0,
        "delta_value_heads": delta.num_value_heads if delta else 0,
        "delta_key_dim": delta.key_head_dim if delta else 0,
        "delta_value_dim": delta.value_head_dim if delta else 0,
        "conv": taps,
    }


def _workload_inputs(workload: Workload) -> dict[str, Bound]:
    """Sequences, documents and the task. E[l^2] / E[l] = mean (1 + cv^2) is what attention meets of a document.

    A pack of s / mean documents has attention work that varies as their squares do: cv of the sum is
    2 cv / sqrt(documents), to first order. Padded sequences are computed whole.
    """
    s, mean, cv = workload.seq_len, workload.mean_length, workload.length_cv or 0.0
    short = 0 < mean < s
    met = workload.weighted_length if short and workload.packed else s
    numbers = {
        "s": s,
        "document": met,
        "fill": workload.fill,
        "documents": s / mean if short and workload.packed else 0.0,
        "document_spread": 2 * cv / (s / mean) ** 0.5 if short and workload.packed else 0.0,
        "trained": float(workload.task != "lora"),
        "lora_rank": workload.lora_rank if workload.task == "lora" else 0,
        "lora_qkv": 1.0,
        "lora_proj": float(workload.lora_targets != "qkv"),
        "lora_mlp": float(workload.lora_targets == "all"),
        "imbalance": workload.moe_imbalance,
        "adjacent": float(workload.moe_adjacent),
    }
    return {name: Bound(float(number), "workload") for name, number in numbers.items()}


def _precision_inputs(precision: str, generation: str, kernels: str) -> dict[str, Bound]:
    recipe = precision_recipe(precision, generation, kernels)
    where = f"costmodel/precision.toml: {precision}{f'.{kernels}' if kernels and kernels in recipe else ''}"
    numbers = {
        "weight_bytes": recipe["base"],
        "activation_bytes": recipe["base"],
        "quantised_copy_bytes": recipe["copies"],
        "saved_bytes": recipe["saved"],
        "operand_bytes": recipe["operand"],
        "quantise_input_bytes": recipe["input_traffic"],
        "quantise_grad_bytes": recipe["grad_traffic"],
        "quantise_weight_bytes": recipe["weight_traffic"],
        "transpose_bytes": recipe.get("transposed", 0.0),
        "norm_writes": recipe.get("normed", 0.0),
        "cudnn_writes": recipe.get("cudnn_normed", 0.0),
        "maximum_bytes": recipe.get("maximum", 0.0),
        "quantise_kernels": recipe["kernels"],
        "quantised_together": recipe.get("together", 0.0),
        "experts_fused": recipe.get("fused", 0.0),
        "fused_casts": recipe.get("fused_casts", 0.0),
        "cast_anew": recipe.get("anew", 0.0),
        "columns_gathered": recipe.get("columns", 0.0),
        "joint_scale": recipe.get("joint", 0.0),
        "shared_history": recipe.get("history", 0.0),
        "loss_scaled": recipe.get("loss_scaled", 0.0),
        "products_apart": recipe.get("operators", 0.0),
    }
    return {name: Bound(float(number), where) for name, number in numbers.items()}
