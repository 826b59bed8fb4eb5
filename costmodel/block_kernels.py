"""Kernels that one block issues: its own, quantisation, loops over experts, collectives; what recompute repeats.

Host time and gaps between kernels are counted from them; `graphed` says which of them replay from CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.rates import apart_gradients
from costmodel.symbols import ATTENTION_BLOCKS, LATENT_BLOCKS
from costmodel.term import Ledger
from costmodel.work.block import BlockWork
from costmodel.work.elementwise import LATENT_ROTARY_KERNELS, rotary_kernels
from costmodel.work.quantisation import agrees_on_scale, spared_kernels
from costmodel.work.recompute import repeated


@dataclass(frozen=True)
class Issued:
    """Kernels of one block and micro-batch, recompute with the backward pass. [1]

    forward, backward: issued one by one; loops_*: by a loop, over a rank's experts (a product and its quantisation for
    each, which no graph of router and dispatch preparation holds) or over packed documents.
    """

    forward: Amount
    backward: Amount
    loops_forward: Amount = 0
    loops_backward: Amount = 0


# Kernels of a low-rank adapter: two products, the scale and the sum; gradients of data and weights, the scale's, and
# what adds three of them up. Source: Megatron-Bridge 0.6.2, peft/lora_layers.py, LoRALinear; peft/utils.py,
# ParallelLinearAdapter.
ADAPTER_KERNELS = (4.0, 8.0)


def block_kernels(ledger: Ledger, x: SimpleNamespace, work: BlockWork, lora: bool = False) -> Issued:
    """Kernels of one block, forward and backward: its own, quantisation, GEMMs apart, collectives, adapters. [1]"""
    per_linear = (
        sum(1 for layer in work.linears if layer.quantised and not layer.grouped) * x.quantise_kernels
    )
    agreed = {
        split: sum(agrees_on_scale(x, layer, split) for layer in work.linears) for split in ("column", "row")
    }
    has_tp = any(layer.split == "row" for layer in work.linears)
    grouped = [layer for layer in work.linears if layer.grouped]
    each = 1 + x.quantise_kernels  # a product and its quantisation
    apart = sum((layer.groups * each - 1) * (1 - x.grouped) for layer in grouped)
    together = x.grouped * x.quantised_together * x.quantise_kernels * len(grouped)
    # Weight gradients that nobody takes: of products by themselves, and of one expert where each has its own.
    frozen = (1 - x.trained) * (len(work.linears) - x.grouped * len(grouped))
    added = x.trained * apart_gradients(x)  # a kernel for each weight
    collectives = is_more_than_one(x.tp) if has_tp else 0
    adapters = sum(getattr(x, f"lora_{layer.adapter}") for layer in work.linears if lora and layer.adapter)
    source = "fused kernels, quantisation, collectives of one block"
    forward = ledger.define(
        f"{work.name}_kernels_forward",
        work.kernels_forward
        + per_linear
        - sum(spared_kernels(x, layer) for layer in work.linears)
        + agreed["column"]
        + 2 * collectives
        + apart
        + together
        + ADAPTER_KERNELS[0] * adapters,
        "1",
        source,
    )
    again = repeated(x, _selective(x, work.name))
    turned = rotary_kernels(x, LATENT_ROTARY_KERNELS)[0]
    latent = LATENT_AGAIN + 2 * x.quantise_kernels + is_more_than_one(x.tp) * 2 + turned
    ups = (1 - x.recompute_layers) * x.recompute_mla_up_proj if work.name in LATENT_BLOCKS else 0
    backward = ledger.define(
        f"{work.name}_kernels_backward",
        work.kernels_backward
        + per_linear
        + agreed["row"]
        + 3 * collectives
        + (1 + x.trained) * apart
        + together
        - frozen
        + added * (len(work.linears) - len(grouped))
        + ADAPTER_KERNELS[1] * adapters
        + again * forward
        + ups * latent
        + CHECKPOINT_KERNELS * repeated(x, _checkpoints(x, work.name)),
        "1",
        source,
    )
    if not grouped:
        return Issued(forward, backward, work.loops[0], work.loops[1] + x.recompute_layers * work.loops[0])
    # A grouped GEMM of Transformer Engine still launches a GEMM for each expert, and most formats' quantisation.
    # Its fused MLP has one kernel (2.17.1), but its host code walks over every expert's weights: without the loops two
    # runs that wait for it (Qwen3 30B on GB200, functional) would be told 16 and 45 % too quick.
    loops = ledger.define(
        f"{work.name}_loops_forward",
        x.grouped
        * (each - x.quantised_together * x.quantise_kernels)
        * sum(layer.groups for layer in grouped),
        "1",
        block_kernels,
    )
    again_each = (1 + x.trained + repeated(x, x.recompute_moe)) * loops
    return Issued(forward, backward, loops, again_each + added * sum(layer.groups for layer in grouped))


# Kernels' worth of host time that one checkpoint takes beside what it repeats: random states saved and restored,
# a graph of its own. Source: Megatron-Core, tensor_parallel/random.py, CheckpointFunction.
CHECKPOINT_KERNELS = 8.0


# Kernels of MLA's up projections that their recompute issues again: two products, the rotations of queries and of keys
# and values. Source: Megatron-Core 0.16.1, multi_latent_attention.py, qkv_up_proj_and_rope_apply.
LATENT_AGAIN = 4.0


def norm_again(x: SimpleNamespace, name: str) -> Amount:
    """1 where recompute of norms acts: in front of latent attention and experts, where norms are modules of their own.

    Source: Megatron-Core, gpt_layer_specs.py; elsewhere Transformer Engine's linear layers hold them.
    """
    return x.recompute_norm if name in (*LATENT_BLOCKS, "experts") else 0


def _checkpoints(x: SimpleNamespace, name: str) -> Amount:
    """Checkpointed modules of a block under selective recompute. [1]"""
    norm = norm_again(x, name)
    if name in ATTENTION_BLOCKS:
        latent = x.recompute_mla_up_proj if name in LATENT_BLOCKS else 0
        return x.recompute_attention + norm + latent + (2 * x.recompute_mhc if name == "csa" else 0)
    if name == "experts":
        inner = x.recompute_moe_act + norm + x.recompute_shared_experts
        return x.recompute_moe + (1 - x.recompute_moe) * inner
    if name == "mlp":
        return x.recompute_mlp + (1 - x.recompute_mlp) * x.recompute_activation + norm
    return norm


def _selective(x: SimpleNamespace, name: str) -> Amount:
    """Share of a block's forward kernels that selective recompute issues again. [1]

    Of an attention block's about eight kernels one is the core and one the norm; of an MLP's six, four are its
    linear layers and activation function; of an expert block's, taken as forty, one is the activation function and one
    the norm. Nothing of a scan's block is named by itself.
    """
    norm = norm_again(x, name)
    if name in ATTENTION_BLOCKS:
        return (x.recompute_attention + norm) / 8
    if name == "experts":
        return x.recompute_moe + (1 - x.recompute_moe) * (x.recompute_moe_act + norm) / 40
    if name == "mlp":
        return (4 * x.recompute_mlp + (1 - x.recompute_mlp) * x.recompute_activation + norm) / 6
    return 0


def graphed(x: SimpleNamespace, block: str) -> Amount:
    """Share of a block's kernels that are replayed from CUDA graphs. [1]

    Router and preprocessing are about half of an expert block's kernels. A gated delta net is its layer's attention:
    the scope attn holds it, as Megatron-Core 0.18, transformer/transformer_layer.py, _te_cuda_graph_capture.
    """
    if block in (*ATTENTION_BLOCKS, "delta"):
        return x.graph_attention
    if block == "mamba":
        return x.graph_mamba
    if block == "mlp":
        return x.graph_mlp
    return x.graph_experts + (1 - x.graph_experts) * x.graph_router / 2


def graphed_whole(x: SimpleNamespace, block: str) -> Amount:
    """Share of a block that CUDA graphs hold from end to end: its loops, and what it saves. [1]

    A captured router has none of an expert block's loops and keeps almost nothing.
    """
    return x.graph_experts if block == "experts" else graphed(x, block)
