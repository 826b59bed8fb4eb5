"""Attention as Transformer Engine's fused kernels run it, alone or over context-parallel ranks.

FLOPs leave out masked work: 2 (d_qk + d_v) a head for each query and key that meet, s^2 / 2 of them when causal,
s w - w^2 / 2 in a window of w tokens; backward 2.5 times as many. Source: T. Dao, arXiv:2307.08691. What context
parallelism sends and keeps follows dot_product_attention/context_parallel.py of Transformer Engine 2.8.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

from executor.workers.count import LEDGER
from executor.workers.te_like.linear import gather, scatter

BACKWARD = 2.5  # Scores again, dQ, dK, dV, dP over scores and output.


class SplitAlongDim(torch.autograd.Function):
    """Views of parts of a tensor; backward joins their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, sizes: Any, squeeze: bool = False) -> Any:
        ctx.dim = dim
        return tuple(torch.split(x, sizes, dim))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return torch.cat(grads, dim=ctx.dim), None, None, None


class Rotary(torch.autograd.Function):
    """Rotary embedding in one kernel; keeps the angles alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        LEDGER.kernel()
        ctx.save_for_backward(freqs)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        return grad.new_empty(grad.shape), None


def apply_rotary(x: torch.Tensor, freqs: torch.Tensor, **_: Any) -> Any:
    """te.pytorch.attention.rope.apply_rotary_pos_emb."""
    return Rotary.apply(x, freqs)


class LatentQueryRotary(torch.autograd.Function):
    """Rotates the last columns of queries in place. Source: fused_mla_yarn_rope_apply.py, ApplyMLARotaryEmbQ."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        LEDGER.kernel()
        ctx.save_for_backward(cos, sin)
        return q.view(q.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        return grad, None, None


class LatentKeyRotary(torch.autograd.Function):
    """Keys and values of each head from the up projection and the shared rotated key."""

    @staticmethod
    def forward(ctx: Any, kv: torch.Tensor, k_pe: torch.Tensor, cos: Any, sin: Any, sizes: Any) -> Any:
        LEDGER.kernel()
        rope, plain, v = sizes
        ctx.save_for_backward(cos, sin)
        ctx.shapes = (kv.shape, k_pe.shape)
        return kv.new_empty((*kv.shape[:-1], plain + rope)), kv.new_empty((*kv.shape[:-1], v))

    @staticmethod
    def backward(ctx: Any, dk: torch.Tensor, dv: torch.Tensor) -> Any:
        LEDGER.kernel()
        kv, k_pe = ctx.shapes
        return dk.new_empty(kv), dk.new_empty(k_pe), None, None, None


def latent_query_rotary(q: Any, cos: Any, sin: Any, *_: Any) -> Any:
    """fused_apply_mla_rope_for_q."""
    return LatentQueryRotary.apply(q, cos, sin)


def latent_key_rotary(kv: Any, k_pe: Any, cos: Any, sin: Any, rope: int, plain: int, v: int, *_: Any) -> Any:
    """fused_apply_mla_rope_for_kv."""
    return LatentKeyRotary.apply(kv, k_pe, cos, sin, (rope, plain, v))


def attended(length: int, ranks: int, window: Any) -> float:
    """Pairs of a query on this rank and a key that meet, of a sequence of length x ranks tokens; balanced. [1]"""
    whole = length * ranks
    width = whole if not window or window[0] < 0 else min(window[0] + 1, whole)
    return (whole * width - width**2 / 2) / ranks


class Core(torch.autograd.Function):
    """The attention core of one rank: exchange, fused kernels, exchange back."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: Any, layer: Any) -> Any:
        ctx.layer = layer
        (s, b, heads), dv = q.shape[:3], v.shape[-1]
        ctx.flops = (
            2 * b * heads * (q.shape[-1] + dv) * attended(s, layer.cp, layer.window_size) * layer.square(s)
        )
        LEDGER.flop("core", ctx.flops)
        LEDGER.kernel(layer.ring)
        ctx.shapes = tuple(x.shape for x in (q, k, v))
        ctx.out_shape = (s, b, heads, dv)
        ctx.with_sink = sink is not None
        out = q.new_empty(ctx.out_shape)
        statistics = q.new_empty((b, heads, s), dtype=torch.float32)
        if layer.unfused:
            scores = [q.new_empty((b, heads, s, s))]
            if layer.dropout:
                scores += [q.new_empty((b, heads, s, s)), q.new_empty((b, heads, s, s), dtype=torch.uint8)]
            ctx.save_for_backward(q, k, v, *scores)
        elif layer.cp == 1:
            ctx.save_for_backward(q, k, v, out, statistics)
        else:
            kept = exchange_forward(q, k, v, out, layer)
            ctx.save_for_backward(*kept, statistics)
        return out.view(s, b, heads * dv)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        saved = ctx.saved_tensors
        LEDGER.flop("core", (2 if ctx.layer.unfused else BACKWARD) * ctx.flops)
        LEDGER.kernel(ctx.layer.ring)
        grads = [grad.new_empty(shape) for shape in ctx.shapes]
        if ctx.layer.cp > 1:
            exchange_backward(grad, grads, saved, ctx.layer)
        sink = grad.new_empty(ctx.layer.softmax_offset.shape) if ctx.with_sink else None
        return *grads, sink, None


def ring_step(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Send to the next rank of the ring, receive from the one before."""
    received = torch.empty_like(tensor)
    ranks, here = dist.get_process_group_ranks(group), group.rank()
    dist.isend(tensor, ranks[(here + 1) % len(ranks)], group=group)
    dist.irecv(received, ranks[here - 1], group=group)
    return received


def to_all(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """All-to-all of one tensor: heads for sequence, or back."""
    out = torch.empty_like(tensor)
    dist.all_to_all_single(out, tensor.contiguous(), group=group)
    return out


def exchange_forward(q: Any, k: Any, v: Any, out: Any, layer: Any) -> tuple[torch.Tensor, ...]:
    """Messages of the forward pass, and what is kept: q, k, v (or their ring buffer), and the output."""
    kind = layer.cp_comm_type
    group, ring = layer.all_to_all_group, layer.ring_group
    own = out
    if kind in ("a2a", "a2a+p2p"):
        q, k, v = (to_all(x, group) for x in (q, k, v))
        own = to_all(out, group)
    if kind in ("p2p", "a2a+p2p"):
        buffer = torch.cat([k.reshape(-1), v.reshape(-1)])
        for _ in range(ring.size() - 1):
            buffer = ring_step(buffer, ring)
        # The ring saves its output as it came out of the last exchange.
        return q, buffer, out
    if kind == "all_gather":
        gather(k, ring)
        gather(v, ring)
        own = torch.empty_like(out)  # two half outputs, joined into the one that is returned
    return q, k, v, own


def exchange_backward(grad: Any, grads: list[torch.Tensor], saved: Any, layer: Any) -> None:
    """Messages of the backward pass."""
    kind = layer.cp_comm_type
    group, ring = layer.all_to_all_group, layer.ring_group
    if kind == "a2a":
        to_all(grad, group)
        for x in grads:
            to_all(x, group)
    if kind == "a2a+p2p":
        to_all(saved[2], group)
        to_all(grad, group)
    if kind in ("p2p", "a2a+p2p"):
        kv = saved[1]
        for step in range(ring.size()):
            # First keys and values alone, last their gradients alone, both in between.
            both = 0 < step < ring.size() - 1
            ring_step(torch.cat([kv, kv]) if both else kv, ring)
    if kind == "a2a+p2p":
        for x in grads:
            to_all(x, group)
    if kind == "all_gather":
        for x in grads[1:]:
            whole = gather(x, ring)
            scatter(whole, ring)


class DotProductAttention(torch.nn.Module):
    """te.pytorch.DotProductAttention for causal self-attention, (s, b, heads, d) to (s, b, heads d_v)."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        attention_dropout: float = 0.0,
        tp_size: int = 1,
        cp_group: Any = None,
        cp_comm_type: str = "p2p",
        window_size: Any = None,
        softmax_type: str = "vanilla",
        **_: Any,
    ) -> None:
        super().__init__()
        self.window_size, self.dropout = window_size, attention_dropout
        self.cp_comm_type = cp_comm_type
        levels = cp_group if isinstance(cp_group, list) else [cp_group, cp_group]
        self.all_to_all_group, self.ring_group = levels[0], levels[1]
        self.cp = 1 if cp_group is None else self.ring_group.size()
        if isinstance(cp_group, list):
            self.cp *= self.all_to_all_group.size()
        self.ring = self.ring_group.size() if self.cp > 1 and "p2p" in cp_comm_type else 1
        self.unfused = os.environ.get("NVTE_FUSED_ATTN") == "0" == os.environ.get("NVTE_FLASH_ATTN")
        self.softmax_offset = None
        if softmax_type == "learnable":
            self.softmax_offset = Parameter(torch.empty(num_attention_heads // tp_size))
        elif softmax_type != "vanilla":
            self.register_buffer("softmax_offset", torch.empty(num_attention_heads // tp_size))

    def square(self, length: int) -> float:
        """Unfused attention computes the whole square of scores: what fused kernels do, times this. [1]"""
        return length * length / attended(length, 1, self.window_size) if self.unfused else 1.0

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """The attention core."""
        return Core.apply(query, key, value, self.softmax_offset, self)
