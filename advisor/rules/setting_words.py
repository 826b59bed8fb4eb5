"""Settings of one plan that move no predicted cost, environment variables among them, as words of the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# Words that rules use -> value where a plan does not say; UNSAID where the framework's own default is unknown.
UNSAID = -1
DEFAULTS: dict[str, Any] = {
    "activation_func_fp8_input_store": False,
    "activation_offload_fraction": 1.0,
    "async_save": False,
    "ckpt_format": "",
    "ep_overlap_early_attn_memory_release": False,
    "fake_process_group": False,
    "masked_softmax_fusion": True,
    "moe_expert_rank_capacity_factor": 0.0,
    "moe_paged_stash": False,
    "moe_router_padding_for_quantization": False,
    "nccl_graph_register": UNSAID,
    "nccl_net_gdr_c2c": UNSAID,
    "nccl_net_gdr_level": "",
    "nvte_cpu_offload_v1": UNSAID,
    "nvte_flash_attn": UNSAID,
    "nvte_fused_attn": UNSAID,
    "overlap_p2p_comm_warmup_flush": False,
    "overlap_param_gather_with_optimizer_step": False,
    "pad_cu_seqlens": False,
    "recompute_method": "block",
    "reduce_scatter_with_fp32_accumulation": False,
    "sequence_parallel_input_regather": False,
    "te_rng_tracker": UNSAID,
    "tp_overlap_fp8_buf": False,
    "use_nsys_profiler": False,
    "use_tp_pp_dp_mapping": False,
    "variable_seq_lengths": False,
}
TRUTHS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def setting_words(settings: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> dict[str, Any]:
    """The word setting_<name> of every setting that rules use; names match whatever their case."""
    given = {str(name).lower(): value for name, value in dict(settings).items()}
    return {
        f"setting_{name}": _plain(given.get(name, default), default) for name, default in DEFAULTS.items()
    }


def _plain(value: Any, default: Any) -> Any:
    """Texts as the number or truth they mean; a switch always as a truth."""
    if isinstance(value, str) and not isinstance(default, str):
        word = value.strip().lower()
        try:
            value = TRUTHS[word] if word in TRUTHS else float(word)
        except ValueError:
            value = default
    if isinstance(default, bool):
        return np.bool_(value)
    return value if isinstance(default, str) else float(value)
