"""A plan: one value for every knob, checked when built."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from costmodel.knobs import KNOBS, checked_settings, knob_error

PRECISIONS = KNOBS["precision"].choices
CP_COMM_TYPES = KNOBS["cp_comm_type"].choices
RECOMPUTE_MODULES = (
    "core_attn",
    "mlp",
    "layernorm",
    "activation",
    "moe",
    "moe_act",
    "shared_experts",
    "mla_up_proj",
    "mhc",
    "ops",
)
LISTS = tuple(name for name, knob in KNOBS.items() if knob.kind == "list")


def sharding_instances(ranks: Any, fsdp: Any, shard_size: Any, instances: Any) -> Any:
    """Groups of data-parallel ranks that each hold the sharded states once, of numbers or arrays. [1]

    A shard size of FSDP decides over optimizer instances.
    Source: Megatron-Core DistributedDataParallelConfig.num_distributed_optimizer_instances.
    """
    return np.where(fsdp & (shard_size > 0), np.maximum(ranks // np.maximum(shard_size, 1), 1), instances)


@dataclass(frozen=True)
class Plan:
    """Values of the knobs of one training plan; meanings and ranges stand in `costmodel.knobs`.

    settings are what the plan carries without a predicted cost, as sorted pairs; a dict may be given.
    Raises ValueError, one line with the rule and the way out, for a value out of its range.
    Rules between knobs (does tp divide the heads, does it fit) belong to `advisor.rules`.
    """

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    micro_batch: int = 1
    precision: str = "bf16"
    sequence_parallel: bool = False
    zero_stage: int = 1
    fsdp: bool = False
    fsdp_shard_size: int = 0
    cp_comm_type: str = "p2p"
    cp_a2a_size: int = 1
    recompute: str = "none"
    recompute_num_layers: int = 0
    recompute_modules: tuple[str, ...] = ()
    attention_backend: str = "fused"
    tp_comm_overlap: bool = False
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_p2p: bool = True
    cuda_graph: bool = False
    grad_reduce_in_fp32: bool = True
    fp8_param_gather: bool = False
    optimizer: str = "adam"
    precision_aware_optimizer: bool = False
    account_embedding: bool = False
    account_loss: bool = False
    fused_cross_entropy: bool = True
    cross_entropy_fusion_impl: str = "te"
    dropout: bool = False
    pipeline_layout: str = ""
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    vpp_group_size: int = 0
    pipeline_flushes: int = 1
    defer_embedding_wgrad: bool = False
    wgrad_deferral_limit: int = 0
    nvl_segment: int = 0
    encoder_tp: int = 0
    encoder_pp: int = 0
    moe_dispatcher: str = "alltoall"
    dispatcher_sms: int = 0
    moe_grouped_gemm: bool = True
    moe_permute_fusion: bool = True
    moe_router_fusion: bool = True
    expert_mlp_fusion: bool = False
    moe_capacity_factor: float = 0.0
    moe_pad_expert_input_to_capacity: bool = False
    overlap_moe_comm: bool = False
    delay_wgrad: bool = False
    shared_expert_overlap: bool = False
    optimizer_instances: int = 1
    fsdp_implementation: str = "megatron"
    outer_dp_sharding_strategy: str = "no_shard"
    bucket_size: int = 0
    nccl_ub: bool = False
    sharp: bool = False
    main_params_dtype: str = "fp32"
    main_grads_dtype: str = "fp32"
    exp_avg_dtype: str = "fp32"
    exp_avg_sq_dtype: str = "fp32"
    param_remainders: bool = True
    optimizer_offload: int = 0
    overlap_optimizer_offload: bool = False
    offload_layers: int = 0
    offload_weights: bool = False
    offload_modules: tuple[str, ...] = ()
    fp8_attention: bool = False
    fp8_output: bool = False
    tp_only_amax_red: bool = False
    bf16_end_layers: int = 0
    reuse_grad_buf: bool = False
    cuda_graph_scope: tuple[str, ...] = ()
    manual_gc: bool = True
    cpu_binding: bool = True
    vboost: bool = False
    layernorm_sm_margin: int = 16
    max_connections: int = 0
    nvls: bool = False
    expandable_segments: bool = True
    avoid_record_streams: bool = True
    tp_overlap_splits: int = 0
    tp_overlap_sms: int = 16
    tp_overlap_cga: int = 2
    gradient_accumulation_fusion: bool = True
    check_for_nan_in_grad: bool = True
    calculate_per_token_loss: bool = False
    cudnn_norms: bool = False
    rope_fusion: bool = True
    bias_activation_fusion: bool = True
    bias_dropout_fusion: bool = True
    settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name in LISTS:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value is not default and (problem := knob_error(name, value)):
                raise ValueError(problem)
        object.__setattr__(self, "settings", checked_settings(self.settings))
        if self.fsdp and self.zero_stage < 2:
            raise ValueError(
                f"--fsdp with --zero-stage {self.zero_stage}: FSDP shards gradients (2) or parameters too (3). "
                "Try --zero-stage 3, or drop --fsdp."
            )
        if self.zero_stage >= 2 and not self.fsdp:
            raise ValueError(
                f"--zero-stage {self.zero_stage} without --fsdp: the distributed optimizer shards stage 1 only. "
                "Try --fsdp, or --zero-stage 1."
            )

    @property
    def world(self) -> int:
        """GPUs of the plan: dp x cp x (tp x pp and, where it has GPUs of its own, the encoder's tp x pp). [1]"""
        return self.dp * self.replica

    @property
    def replica(self) -> int:
        """GPUs of one data-parallel replica. [1] Source: NeMo performance guide, heterogeneous encoder parallelism."""
        encoder = (self.encoder_tp or self.tp) * self.encoder_pp
        return self.cp * (self.tp * self.pp + encoder)

    @property
    def sharding_instances(self) -> int:
        """Of `sharding_instances`. [1]"""
        ranks = self.dp * self.cp
        return int(sharding_instances(ranks, self.fsdp, self.fsdp_shard_size, self.optimizer_instances))

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Modules that selective recompute computes again; where none is named, the core of attention.

        Source: Megatron-Core 0.16.1 to 0.19.2, transformer_config.py, __post_init__.
        """
        return (self.recompute_modules or ("core_attn",)) if self.recompute == "selective" else ()

    def num_microbatches(self, global_batch: int) -> int:
        """Micro-batches each data-parallel rank computes in one step. [1] ValueError where they are not whole."""
        per_pass = self.micro_batch * self.dp
        if global_batch % per_pass:
            near = max(1, round(global_batch / per_pass)) * per_pass
            raise ValueError(
                f"--global-batch {global_batch} is not a multiple of micro_batch x dp = "
                f"{self.micro_batch} x {self.dp}. Try --global-batch {near}."
            )
        return global_batch // per_pass

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as plan files and `--json` hold them."""
        values = asdict(self)
        return values | {name: list(values[name]) for name in LISTS} | {"settings": dict(self.settings)}

    def describe(self) -> str:
        """The plan in one line, as an engineer would say it."""
        sizes = [
            f"{name.upper()}{getattr(self, name)}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
        ]
        words = [word for word in sizes if not (word[:-1].isalpha() and word[-1] == "1")] or ["single GPU"]
        words.append(f"mbs{self.micro_batch}")
        words.append(self.precision)
        if self.fsdp:
            words.append(f"FSDP-{self.zero_stage}")
        if self.recompute == "selective":
            words.append("recompute " + ("+".join(self.recompute_modules) or "selective"))
        elif self.recompute == "full":
            words.append(f"full recompute x{self.recompute_num_layers or 'all'}")
        return " ".join(words)


# Of the knobs, so that a plan checks what differs: defaults are values of their knobs (tests/costmodel/test_knobs.py).
_DEFAULTS = {name: getattr(Plan, name) for name in KNOBS}
