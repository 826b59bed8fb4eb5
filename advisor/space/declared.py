"""What is searched and what is fixed, in words: the space that `advisor.space` builds, told to people."""

from __future__ import annotations

from typing import NamedTuple

from advisor.space import BF16_REDUCTION_RANKS, MICRO_BATCHES, OTHER_MICRO_BATCHES, SHORTEST_SHARD
from advisor.space.options import BALANCED_CHUNKS, BALANCED_CHUNKS_OF_EXPERTS
from hardware_db import Platform, platform_of


class _Declared(NamedTuple):
    """What of the declared space differs by the maker of the GPUs, in words; the rule rocm_unchecked says why."""

    domains: tuple[str, ...]
    options: str
    norms: str
    dispatch: str
    unsearched: str


OF_CUDA = _Declared(
    domains=(
        "searched: nvl_segment where the GPUs are a multiple of an NVLink domain that is no power of two, such as "
        "72: the whole domain, and the largest power of two in it",
    ),
    options=(
        "on NVIDIA GPUs cuda_graph and, over NVLink, tp_comm_overlap; with FP8 fp8_param_gather; overlap_moe_comm "
        "(not beside adapters) with delay_wgrad, or without it where CUDA graphs refuse that (linear layers with bias)"
    ),
    norms="; in MXFP8 cudnn_norms",
    dispatch=(
        "fixed, as in published runs: tokens are dispatched to their experts by HybridEP in NVLink domains of more "
        "than 8 GPUs from 25.11 on (ep up to the domain: NVIDIA's scripts refuse more), and in smaller domains, except "
        "on A100, from NeMo 26.02 and Megatron-LM 26.03 on; before those, in domains of up to 8 GPUs, by DeepEP; "
        "elsewhere, and where the software has neither, by all-to-all"
    ),
    unsearched=(
        "CUDA graphs of the whole step (cuda_graph_scope full_iteration), whose gain is told where they run"
    ),
)
OF_ROCM = _Declared(
    domains=(),
    options=("with FP8 fp8_param_gather; overlap_moe_comm (not beside adapters) with delay_wgrad"),
    norms="",
    dispatch=(
        "fixed: tokens are dispatched to their experts by all-to-all; that DeepEP or HybridEP runs on ROCm is not "
        "checked here"
    ),
    unsearched=(
        "cuda_graph and tp_comm_overlap, which are Transformer Engine's for NVIDIA GPUs and not checked on ROCm"
    ),
)


def declared_space(platform: Platform | None = None) -> tuple[str, ...]:
    """What is searched and what is fixed, in lines for people. platform: that of the GPUs; CUDA where none is given."""
    platform = platform or platform_of("")
    of_maker = OF_ROCM if platform.is_rocm else OF_CUDA
    return (
        f"searched: parallel sizes: tp up to the GPUs of a scale-up domain ({platform.interconnect}), pp, vpp, dp, "
        f"with experts ep, and cp while a GPU keeps {SHORTEST_SHARD} tokens; micro_batch "
        f"{', '.join(map(str, MICRO_BATCHES))}, and {', '.join(map(str, OTHER_MICRO_BATCHES))} where a rank has no "
        "multiple of 4 sequences",
        "searched: how layers are split over stages: evenly, with embedding and loss counted as layers or not; "
        "with one chunk a stage, and where no such split is even or all are, the balancer's split too (vpp up to "
        f"{BALANCED_CHUNKS[-1]}; with experts {', '.join(map(str, BALANCED_CHUNKS_OF_EXPERTS))}); layers of a pattern "
        "(Mamba hybrids) evenly, one chunk a stage",
        *of_maker.domains,
        "searched: ZeRO 1, and FSDP (ZeRO 3) where pp = 1 (Megatron-Core's not beside adapters, where no recipe has "
        "it); no recompute, that of modules (mlp, layernorm; with experts moe_act, moe; with MLA mla_up_proj; with "
        "hyper-connections mhc), or full recompute of 1/4 to all layers; cp_comm_type; " + of_maker.options,
        "fixed on, as the guides advise, and told below where off gains: sequence_parallel with tp > 1, "
        "overlap_grad_reduce, overlap_param_gather, overlap_p2p, fused attention (for heads that have a "
        "kernel), fused cross entropy, grouped GEMMs and fusions (but gradient_accumulation_fusion with "
        "Megatron-Core's FSDP, where NVIDIA's recipes switch it off)" + of_maker.norms,
        of_maker.dispatch,
        "left out: what the software of --stack does not have. If it has no ZeRO 1, FSDP is searched with "
        "pipelines too; if it has data parallelism only, so are whole replicas",
        f"fixed, as they change numerics: gradients reduced in BF16 below {BF16_REDUCTION_RANKS} data-parallel "
        "ranks and in FP32 from there on; optimizer adam; dropout off; no token dropped; the loss of fine-tuning with "
        "cp > 1 divided by tokens (calculate_per_token_loss), which Megatron-Bridge demands",
        "not searched unless you pin them: every other knob of `advisor knobs`, such as offload, pipeline_layout "
        "texts, etp, fsdp_shard_size and precision_aware_optimizer; zero_stage 0 and 2 (whose unsharded gradient "
        "bucket is not priced); " + of_maker.unsearched,
    )
