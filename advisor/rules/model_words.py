"""Words of the rules that do not change from plan to plan: model, workload, cluster and precision."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.layout import blocks_of
from costmodel.model_spec import ModelSpec
from costmodel.parameter_counts import count_parameters
from costmodel.placement import network_reduces, switch_reduces
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import fuses_activation
from hardware_db import platform_of

if TYPE_CHECKING:
    from hardware_db import Cluster


# Matrix sizes must be multiples of this for a quantised GEMM: 16 for FP8 and NVFP4, MXFP8 blocks of 32.
QUANTISED_BLOCK = {"mxfp8": 32}


def model_words(model: ModelSpec) -> dict[str, Any]:
    """Sizes of the model; what a model does not have is 0, and family words tell which parts it has."""
    blocks = {block for kind in model.layer_kinds() for block in blocks_of(model, kind)}
    delta, mamba, csa = model.gated_delta, model.mamba, model.compressed_attention
    return {
        "model_name": model.name,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "window_heads": model.window_heads.num_heads,
        "window_kv_heads": model.window_heads.num_kv_heads,
        "own_windows": np.bool_(model.windows_apart),
        "narrow_values": np.bool_(
            any(heads.v_head_dim != heads.head_dim for heads in (model.heads, model.window_heads))
        ),
        "output_gate": np.bool_(model.attention_output_gate),
        "head_gate": np.bool_(model.attention_head_gate),
        "wide_heads": np.bool_(not model.local_layers and not model.has_fused_core(model.heads)),
        "local_layers": np.bool_(model.local_layers),
        "own_norms": np.bool_(model.norms is not None and model.norms.written != "none"),
        "capped_scores": np.bool_(model.score_cap is not None),
        "branch_norms": np.bool_(model.norms is not None and model.norms.router),
        "tp_common": tp_common(model, "mlp" in blocks),
        "head_dim": model.head_dim,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "ffn": model.ffn_hidden,
        "positions": model.learned_positions,
        "activation": model.activation,
        "fuses_activation": np.bool_(fuses_activation(Plan(), model)),
        "linear_bias": np.bool_(model.linear_bias),
        "qkv_bias": np.bool_(model.qkv_bias or model.linear_bias),
        "tied": np.bool_(model.tied_embeddings),
        "mlps": np.bool_("mlp" in blocks),
        "mla": np.bool_(model.mla is not None),
        "csa": np.bool_(csa is not None),
        "dsa": np.bool_("dsa" in blocks),
        "streams": model.residual_streams,
        "mamba_heads": mamba.num_heads if mamba else 0,
        "mamba_groups": mamba.num_groups if mamba else 0,
        "delta_key_heads": delta.num_key_heads if delta else 0,
        "delta_value_heads": delta.num_value_heads if delta else 0,
        "window": model.sliding_window.window if model.sliding_window else 0,
        "window_interval": (model.sliding_window.full_attention_interval or 0) if model.sliding_window else 0,
        "some_windows": np.bool_(
            model.sliding_window is not None
            and not all(map(model.sliding_window.covers, range(model.num_layers)))
        ),
        "index_interval": model.indexer.interval if model.indexer else 1,
        "index_offset": model.indexer.offset if model.indexer else 1,
        "sinks": np.bool_(model.window_heads.sinks),
        "mtp": model.mtp_layers,
        "encoder_tokens": model.encoder.tokens if model.encoder else 0,
    } | _expert_words(model)


def tp_common(model: ModelSpec, mlps: bool) -> int:
    """What every tensor-parallel size divides that splits all parts of the model evenly. [1]"""
    delta, mamba, moe = model.gated_delta, model.mamba, model.moe
    kinds = (model.heads, model.window_heads)
    parts = [heads.num_heads for heads in kinds]
    # One head is held by every rank, as of any number that has fewer ranks than heads.
    parts += [heads.num_kv_heads for heads in kinds if heads.num_kv_heads > 1]
    parts += [model.ffn_hidden] if mlps else []
    parts += [moe.shared_expert_ffn] if moe and moe.shared_expert_ffn else []
    parts += [mamba.num_heads, mamba.num_groups] if mamba else []
    parts += [delta.num_key_heads, delta.num_value_heads] if delta else []
    return gcd(*parts)


def _expert_words(model: ModelSpec) -> dict[str, Any]:
    moe, count = model.moe, count_parameters(model)
    inside = experts_of(model)
    return {
        "parameters_inside": float(inside),
        "parameters_outside": float(count.total + count.mtp - inside),
        "experts": moe.num_experts if moe else 0,
        "topk": moe.topk if moe else 0,
        "expert_ffn": moe.expert_ffn if moe else 0,
        "shared_ffn": moe.shared_expert_ffn if moe else 0,
        "dense_first": moe.dense_first_layers if moe else 0,
        "latent": (moe.latent_size or 0) if moe else 0,
        "balancing": (moe.load_balancing or "") if moe else "",
        "aux_loss": (moe.aux_loss_coeff or 0.0) if moe else 0.0,
        "router_dtype": (moe.router_dtype or "") if moe else "",
        "router_score": moe.router_score if moe else "",
    }


def experts_of(model: ModelSpec) -> int:
    """Parameters of routed experts, those of MTP heads among them. [1]"""

    def sparse(kinds: Iterable[str]) -> int:
        return sum("experts" in blocks_of(model, kind) for kind in kinds)

    layers = sparse(model.layer_kinds())
    if not layers:
        return 0
    each = count_parameters(model).parts["experts"] // layers
    return each * (layers + model.mtp_layers * sparse(model.mtp_layer_kinds()))


def workload_words(workload: Workload) -> dict[str, Any]:
    """Sequence, batch and task."""
    finetune = workload.task != "pretrain"
    return {
        "seq_len": workload.seq_len,
        "mean_length": workload.mean_length,
        "global_batch": workload.global_batch,
        "finetune": np.bool_(finetune),
        "lora": np.bool_(workload.task == "lora"),
        "lora_rank": workload.lora_rank,
        # The job packs, however long its documents are: what packs take and refuse does not depend on that.
        "packed": np.bool_(finetune and workload.packed),
        "padded": np.bool_(finetune and not workload.packed),
    }


def cluster_words(cluster: Cluster, precision: str, gpus: int) -> dict[str, Any]:
    """The machine, and the number formats of the precision recipe."""
    return machine_words(cluster, gpus) | precision_words(precision)


def machine_words(cluster: Cluster, gpus: int) -> dict[str, Any]:
    """GPU generation and vendor, how many, scale-up domain and its link."""
    generation, platform = cluster.gpu.generation, platform_of(cluster.gpu.vendor)
    return {
        "domain": cluster.domain_size,
        "device_gib": cluster.gpu.get("hbm_capacity_usable") // 2**30,
        "gpu": cluster.gpu.title,
        "gpus": gpus,
        "ampere": np.bool_(generation == "ampere"),
        "ada": np.bool_(generation == "ada"),
        "cdna3": np.bool_(generation == "cdna3"),
        "hopper": np.bool_(generation == "hopper"),
        "blackwell": np.bool_(generation.startswith("blackwell")),
        "blackwell_ultra": np.bool_(generation == "blackwell-ultra"),
        "consumer": np.bool_(generation in ("ada", "blackwell-consumer")),
        "switched": np.bool_(switch_reduces(generation, cluster.has_nvlink_switch)),
        "network": cluster.inter.name,
        "infiniband": np.bool_(network_reduces(cluster.inter.name)),
        "pcie": np.bool_(cluster.intra.name.startswith("pcie")),
        "peers": np.bool_(cluster.gpu.has_peers),
        "host_c2c": np.bool_(cluster.has_c2c),
        "rocm": np.bool_(platform.is_rocm),
        "collectives": platform.collectives,
        "monitor": platform.monitor,
    }


def precision_words(precision: str) -> dict[str, Any]:
    """Number formats of a precision recipe."""
    return {
        "precision": precision,
        "fp8": np.bool_(precision.startswith(("fp8", "mxfp8"))),
        "fp8_delayed": np.bool_(precision == "fp8-delayed"),
        "fp8_cs": np.bool_(precision == "fp8-cs"),
        "fp8_sc": np.bool_(precision == "fp8-sc"),
        "mxfp8": np.bool_(precision == "mxfp8"),
        "fp4": np.bool_(precision == "nvfp4"),
        "fp16": np.bool_(precision == "fp16"),
        "fp32": np.bool_(precision == "fp32"),
        "quantised": np.bool_(precision.startswith(("fp8", "mxfp8", "nvfp4"))),
        "block": QUANTISED_BLOCK.get(precision, 16),
    }
