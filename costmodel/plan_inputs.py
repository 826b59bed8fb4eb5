"""Knobs as inputs of the cost model: the symbols of the group "plan", from plans as columns.

Each function gives the inputs of one subject; `plan_inputs` all of them, for a model and a workload.
"""

from __future__ import annotations

import numpy as np

from costmodel.columns import ITEMS, Array, Columns, code, collapsed, default_columns
from costmodel.knobs import KNOBS
from costmodel.model_spec import ModelSpec
from costmodel.plan import RECOMPUTE_MODULES, sharding_instances
from costmodel.stage_inputs import layout_inputs, placement_inputs
from costmodel.timing.network import DEEPEP_SMS, HYBRIDEP_SMS
from costmodel.workload import MOST_IMBALANCE, Workload

OPTIMIZER_DTYPES = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def plan_inputs(
    columns: Columns,
    *,
    model: ModelSpec,
    workload: Workload,
    domain: int,
    precision_bytes: float,
    quantised: bool,
    block_scaled: bool = False,
    gathered: float = 1.0,
    casts: bool = False,
    delayed: bool = False,
    remainders: bool = True,
    repeats_layers: bool = True,
    fuses_activation: bool = True,
) -> dict[str, Array]:
    """Input symbols of the group "plan": arrays over the rows, single numbers where all rows agree.

    domain: GPUs of a scale-up domain. precision_bytes: of the model's own format. quantised: whether the recipe keeps
    weights that fp8_param_gather can send; block_scaled: whether as MXFP8, gathered in 16 bits; gathered: bytes of one
    as kept; casts: whether linear layers leave that format; delayed: whether scales are of earlier steps; remainders:
    see `_formats`; repeats_layers: see `costmodel.binding`; fuses_activation: whether a kernel does. ValueError when a
    pipeline layout does not fit.
    """
    c: Columns = collapsed(
        {name: np.array(value) for name, value in default_columns().items()} | dict(columns)
    )
    placed = layout_inputs(c, model, workload.seq_len) | placement_inputs(c, domain)
    return placed | knob_inputs(
        c,
        placed["layers_pace"],
        num_layers=model.num_layers,
        global_batch=workload.global_batch,
        precision_bytes=precision_bytes,
        quantised=quantised,
        block_scaled=block_scaled,
        gathered=gathered,
        casts=casts,
        delayed=delayed,
        remainders=remainders,
        repeats_layers=repeats_layers,
        fuses_activation=fuses_activation,
    )


def knob_inputs(
    c: Columns,
    stage_layers: Array,
    *,
    num_layers: int,
    global_batch: int,
    precision_bytes: float,
    quantised: bool,
    block_scaled: bool,
    gathered: float,
    casts: bool,
    delayed: bool,
    remainders: bool,
    repeats_layers: bool,
    fuses_activation: bool,
) -> dict[str, Array]:
    """The inputs that follow from knobs without rank arithmetic, as `plan_inputs`; stage_layers: of the pace-setter.

    NumPy's operators and functions alone, so that `costmodel.javascript.columns` can write them down too.
    """
    inputs = _sizes(c, global_batch) | _sharding(c) | _exchange(c) | _expert_inputs(c)
    inputs |= _overlaps(c) | _flags(c) | graph_inputs(c) | _offload(c, stage_layers)
    inputs |= _recompute(c, stage_layers, repeats_layers)
    inputs |= _formats(c, precision_bytes, quantised, block_scaled, gathered, remainders)
    inputs["activation_split"] = 1.0 - np.multiply(fuses_activation, c["bias_activation_fusion"])
    inputs["quantised_copy"] = np.multiply(delayed, 1.0)
    inputs["checked"] = c["check_for_nan_in_grad"] * (1.0 - inputs["graph_step"])
    inputs["amax_inside"] = c["tp_only_amax_red"]
    inputs["fp8_output"] = np.multiply(block_scaled, c["fp8_output"])
    inputs["expert_mlp_fused"] = np.multiply(quantised, c["expert_mlp_fusion"] * c["moe_grouped_gemm"])
    inputs["bf16_share"] = np.multiply(casts, np.minimum(2 * c["bf16_end_layers"] / num_layers, 1.0))
    return inputs


def _sizes(c: Columns, global_batch: int) -> dict[str, Array]:
    return {name: c[name] for name in ("tp", "pp", "vpp", "cp", "dp", "ep", "etp")} | {
        "edp": c["tp"] * c["cp"] * c["dp"] / (c["ep"] * c["etp"]),
        "b": c["micro_batch"],
        "m": global_batch / (c["micro_batch"] * c["dp"]),
        "enc_tp": np.where(c["encoder_tp"] > 0, c["encoder_tp"], c["tp"]),
        "enc_pp": np.maximum(c["encoder_pp"], 1.0),
        "enc_own": (c["encoder_pp"] > 0) * 1.0,
        "sp": c["sequence_parallel"] * (c["tp"] > 1),
        "vpp_group": np.where(c["vpp_group_size"] > 0, c["vpp_group_size"], c["pp"]),
        "flushes": c["pipeline_flushes"],
        "deferral_limit": np.where(c["wgrad_deferral_limit"] > 0, c["wgrad_deferral_limit"], 1e9),
    }


def _sharding(c: Columns) -> dict[str, Array]:
    """Over how many ranks what is sharded; several optimizer instances share the ranks."""
    ranks = c["dp"] * c["cp"]
    asked = sharding_instances(ranks, c["fsdp"] > 0, c["fsdp_shard_size"], c["optimizer_instances"])
    instances = np.minimum(asked, ranks)
    shard = ranks / instances
    edp = c["tp"] * c["cp"] * c["dp"] / (c["ep"] * c["etp"])
    return {
        "optimizer_sharded": (c["zero_stage"] >= 1) * 1.0,
        "grads_sharded": (c["zero_stage"] >= 2) * 1.0,
        "params_sharded": (c["zero_stage"] >= 3) * 1.0,
        "fsdp": c["fsdp"],
        "fsdp_copies": (c["fsdp_implementation"] == code("fsdp_implementation", "torch")) * 1.0,
        "shard": shard,
        "expert_shard": np.maximum(edp * shard / ranks, 1.0),
        "instances": instances,
        "outer_sharded": (c["outer_dp_sharding_strategy"] == code("outer_dp_sharding_strategy", "optim"))
        * (c["fsdp"] > 0)
        * 1.0,
    }


def _exchange(c: Columns) -> dict[str, Array]:
    p2p, gather, a2a, mixed = (
        c["cp_comm_type"] == code("cp_comm_type", kind) for kind in KNOBS["cp_comm_type"].choices
    )
    return {
        "cp_p2p": p2p * 1.0,
        "cp_all_gather": gather * (c["cp"] > 1) * 1.0,
        "cp_a2a": a2a * 1.0,
        "cp_a2a_size": np.where(a2a, c["cp"], np.where(mixed, np.minimum(c["cp_a2a_size"], c["cp"]), 1.0)),
    }


def _padded(c: Columns) -> Array:
    """1 where experts are padded to a capacity."""
    return (c["moe_capacity_factor"] > 0) * c["moe_pad_expert_input_to_capacity"]


def _expert_inputs(c: Columns) -> dict[str, Array]:
    kinds = {
        kind: c["moe_dispatcher"] == code("moe_dispatcher", kind) for kind in KNOBS["moe_dispatcher"].choices
    }
    factor = c["moe_capacity_factor"]
    padded = _padded(c)
    return {
        "dispatch_once": (kinds["deepep"] | kinds["hybridep"]) * 1.0,
        "dispatch_fused": kinds["hybridep"] * 1.0,
        "dispatch_gather": kinds["allgather"] * 1.0,
        # NCCL's kernels take SMs too, as many as DeepEP's; the knob does not move those.
        "dispatch_sms": np.where(
            (c["dispatcher_sms"] > 0) & (kinds["deepep"] | kinds["hybridep"]),
            c["dispatcher_sms"],
            np.where(kinds["hybridep"], HYBRIDEP_SMS, DEEPEP_SMS),
        ),
        "capacity": np.where(padded, factor, np.where(factor > 0, np.minimum(factor, 1.0), 1.0)),
        "capacity_limit": np.where(factor > 0, np.maximum(factor, 1.0), MOST_IMBALANCE),
        "ragged": 1.0 - padded,
        "ep_overlap": c["overlap_moe_comm"],
        "delay_wgrad": c["delay_wgrad"],
        "shared_overlap": c["shared_expert_overlap"],
        "grouped": c["moe_grouped_gemm"],
        "permute_fused": c["moe_permute_fusion"],
        "router_fused": c["moe_router_fusion"],
    }


def _overlaps(c: Columns) -> dict[str, Array]:
    """Overlaps and what they run beside. FSDP, and experts' exchange beside compute, are launched with several queues.

    FSDP overlaps what it shards whatever is said. Sources: `executor.export.environment`, which sets
    CUDA_DEVICE_MAX_CONNECTIONS where a plan does not; Megatron-Core 0.16.1, megatron_fsdp.py, __init__.
    """
    splits = c["tp_overlap_splits"]
    needs_queues = (c["max_connections"] == 0) & ((c["overlap_moe_comm"] > 0) | (c["fsdp"] > 0))
    return {
        "tp_overlap": c["tp_comm_overlap"] * c["sequence_parallel"],
        "overlap_chunks": np.where(splits > 0, np.maximum(splits, 1.0), c["tp"]),
        "overlap_sms": c["tp_overlap_sms"],
        "overlap_reduce": np.maximum(c["overlap_grad_reduce"], c["fsdp"] * (c["zero_stage"] >= 2)),
        "overlap_gather": np.maximum(c["overlap_param_gather"], c["fsdp"] * (c["zero_stage"] == 3)),
        "overlap_p2p": c["overlap_p2p"],
        "one_queue": (c["max_connections"] == 1) * 1.0,
        "many_queues": ((c["max_connections"] > 1) | needs_queues) * 1.0,
        "norm_margin": c["layernorm_sm_margin"],
        "bucket_said": (c["bucket_size"] > 0) * 1.0,
        "bucket": np.where(c["bucket_size"] > 0, c["bucket_size"], np.maximum(40e6, 1e6 * c["dp"] * c["cp"])),
        "sharp": c["sharp"],
        "user_buffers": c["nccl_ub"],
        "nvls": c["nvls"],
    }


def _flags(c: Columns) -> dict[str, Array]:
    off = {
        "own_gc": "manual_gc",
        "unbound": "cpu_binding",
        "stream_records": "avoid_record_streams",
        "rope_split": "rope_fusion",
        "residual_split": "bias_dropout_fusion",
        "accumulate_split": "gradient_accumulation_fusion",
    }
    on = {
        "defer_wgrad": "defer_embedding_wgrad",
        "per_token_loss": "calculate_per_token_loss",
        "fused_loss": "fused_cross_entropy",
    } | {name: name for name in ("vboost", "cudnn_norms", "fp8_attention", "dropout")}
    found = {name: 1.0 - c[knob] for name, knob in off.items()} | {name: c[knob] for name, knob in on.items()}
    native = c["cross_entropy_fusion_impl"] == code("cross_entropy_fusion_impl", "native")
    unfused = c["attention_backend"] == code("attention_backend", "unfused")
    found |= {"unfused": unfused * 1.0, "loss_native": native * 1.0}
    return found | {"segments": c["expandable_segments"] * (1.0 - c["nccl_ub"])}


def _recompute(c: Columns, stage_layers: Array, repeats_layers: bool) -> dict[str, Array]:
    full = (c["recompute"] == code("recompute", "full")) & np.greater(repeats_layers, 0)
    selective = c["recompute"] == code("recompute", "selective")
    chosen = np.where(c["recompute_num_layers"] > 0, c["recompute_num_layers"], stage_layers)
    names = {"core_attn": "attention", "layernorm": "norm"}
    return {
        "recompute_layers": np.where(full, np.minimum(chosen / np.maximum(stage_layers, 1), 1.0), 0.0)
    } | {
        f"recompute_{names.get(module, module)}": selective * c[f"recompute_{module}"]
        for module in RECOMPUTE_MODULES
    }


def graph_inputs(c: Columns) -> dict[str, Array]:
    """What CUDA graphs hold: the named scopes, or without names everything that can be captured.

    Experts that are not padded to a capacity have shapes that change, so that only their router and preprocessing
    can be. An overlapped exchange cuts MLPs and experts in parts, and a repeated `moe` repeats its router:
    Megatron-Core refuses to capture those, whole steps apart. Source: Megatron-Core 0.19, transformer_config.py,
    cuda_graph_modules.
    """
    named = sum(c[f"graph_{scope}"] for scope in KNOBS["cuda_graph_scope"].choices) > 0
    everything = c["cuda_graph"] * np.where(named, c["graph_full_iteration"], 1.0)
    whole = c["graph_full_iteration"] > 0
    static = (_padded(c) > 0) | whole
    uncut = everything * np.where(whole, 1.0, 1.0 - c["overlap_moe_comm"])
    repeated = (c["recompute"] == code("recompute", "selective")) * c["recompute_moe"]
    on = c["cuda_graph"]
    router = np.maximum(c["graph_moe_router"], c["graph_moe_preprocess"])
    return {
        "graph": on,
        "graph_step": on * whole,
        "graph_attention": np.maximum(everything, on * c["graph_attn"]),
        "graph_mlp": np.maximum(uncut, on * c["graph_mlp"]),
        "graph_mamba": np.maximum(everything, on * c["graph_mamba"]),
        "graph_router": np.maximum(everything * np.where(whole, 1.0, 1.0 - repeated), on * router),
        "graph_experts": np.maximum(uncut * static, on * c["graph_moe"]),
    }


def _offload(c: Columns, stage_layers: Array) -> dict[str, Array]:
    modules = {name: c[name] for name, (knob, _) in ITEMS.items() if knob == "offload_modules"}
    return modules | {
        "offload_share": np.minimum(c["offload_layers"] / np.maximum(stage_layers, 1), 1.0),
        "offload_weights": c["offload_weights"],
        "muon": (c["optimizer"] == code("optimizer", "muon")) * 1.0,
        "optimizer_offload": c["optimizer_offload"] / 100.0,
        "offload_overlapped": c["overlap_optimizer_offload"],
    }


def _formats(
    c: Columns, precision_bytes: float, quantised: bool, block_scaled: bool, gathered: float, remainders: bool
) -> dict[str, Array]:
    """Bytes of gradients, gathered parameters and optimizer state.

    The precision-aware optimizer keeps moments in their own formats, and of a 32-bit master parameter the 16
    bits that BF16 lacks: `remainders`, not with recipes that scale anew (all but delayed scaling), with which
    Megatron-Core keeps the master parameters itself. Source: Megatron-Core 0.16.1 to 0.19.2, optimizer_config.py,
    use_precision_aware_optimizer_no_fp8_or_ds_fp8, and distrib_optimizer.py; TE FusedAdam, store_param_remainders.
    Where the host updates a part, master parameters and moments are FP32 on both sides whatever is said of their
    formats, and the switch means that no second master stays on the device (cpu_offloading/hybrid_optimizer.py,
    param_update_in_fp32; optimizer/__init__.py hands it no format). Any other reads FP32 gradients, made from the
    buffer's where these have 16 bits, and its FP32 parameters are read once more to be copied into the model's
    (distrib_optimizer.py, _copy_model_grads_to_main_grads and _copy_main_params_to_model_params).
    """
    sizes = {name: np.array([DTYPE_BYTES[kind] for kind in KNOBS[name].choices]) for name in OPTIMIZER_DTYPES}
    size = {name: np.choose(c[name].astype(int), sizes[name]) for name in OPTIMIZER_DTYPES}
    halves = (c["param_remainders"] > 0) & (size["main_params_dtype"] == 4) & (precision_bytes == 2)
    master = np.where(halves & np.greater(remainders, 0), 2.0, size["main_params_dtype"])
    aware = master + size["exp_avg_dtype"] + size["exp_avg_sq_dtype"]
    # Gradients have the format of the parameters unless they are kept in FP32.
    grads = np.where(c["grad_reduce_in_fp32"] > 0, 4.0, precision_bytes)
    gathers = (c["fp8_param_gather"] > 0) & quantised
    # Muon's parameters are gathered from and into tensors of the model's own format, not from a buffer.
    buffered = gathers & (c["optimizer"] != code("optimizer", "muon"))
    # MXFP8 is gathered in 16 bits, but by FSDP: its rows in 8, and its columns in the backward pass.
    by_columns = buffered & np.logical_not(np.logical_not(block_scaled)) & (c["fsdp"] > 0)
    narrow = buffered & (np.logical_or(np.logical_not(block_scaled), by_columns))
    # FP32 parameters are their own master copy.
    apart = np.less(precision_bytes, 4)
    plain = np.where(apart, 12.0, 8.0)
    alone = c["precision_aware_optimizer"] > 0  # no master parameters beside the optimizer's own
    precise = alone & (c["optimizer_offload"] == 0)
    main_grads = np.where(precise, grads, 4.0)
    widened = np.where(main_grads > grads, grads + main_grads, 0.0)
    return {
        "grad_bytes": grads,
        "main_grad_bytes": main_grads,
        "update_copies": np.where(precise, 0.0, np.where(apart, 4.0, 0.0) + widened),
        "gather_bytes": np.where(narrow, gathered, precision_bytes),
        "param_gather": np.multiply(c["fp8_param_gather"], quantised),
        "fsdp_columns": by_columns * 1.0,
        "gather_copy_bytes": np.where(buffered & (narrow == 0) & (c["reuse_grad_buf"] == 0), 2.0, 0.0),
        "state_bytes": np.where(precise, aware, plain),
        "host_state_bytes": np.where(alone, plain, 8.0),
    }
